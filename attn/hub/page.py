"""What a page may say of a foreign format: its config fields, its tensors, and the operations between them and ours."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from attn.hub.fields import Aspect
from attn.hub.known import SILENT
from attn.hub.steps import Cut, Pairing, Reshape, Shape, Step, Transpose
from attn.rope import Rotation

Shapes = tuple[Shape, ...]


class Place(NamedTuple):
    """Where a rule applies: the sizes of the letters there, and the rotary positions of the layer's attention."""

    sizes: Mapping[str, int]
    rope: Rotation | None = None


class Operation(Protocol):
    """An invertible operation of a page, from the foreign side to ours; it never computes and never changes a dtype."""

    def resolve(self, lanes: Shapes, place: Place) -> tuple[Shapes, tuple[Step, ...]]:
        """The shapes on its foreign side and its steps, given the shapes on our side."""
        ...


@dataclass(frozen=True)
class Turn:
    """Transpose every matrix, as where a file holds [inputs, outputs]; a vector stays as it is."""

    def resolve(self, lanes: Shapes, place: Place) -> tuple[Shapes, tuple[Step, ...]]:
        return tuple(shape[::-1] for shape in lanes), (Transpose(),)


@dataclass(frozen=True)
class Split:
    """Cut one tensor into several that lie one after the other along an axis: [q|k|v]."""

    axis: int = 0

    def resolve(self, lanes: Shapes, place: Place) -> tuple[Shapes, tuple[Step, ...]]:
        shape, sizes = _joined(lanes, self.axis)
        return (shape,), (Cut(self.axis, sizes),)


@dataclass(frozen=True)
class SplitWithin:
    """Cut one tensor into several, of which each group of its rows holds a share: [k|v] within each head.

    `groups` is the letter that counts the groups.
    """

    groups: str

    def resolve(self, lanes: Shapes, place: Place) -> tuple[Shapes, tuple[Step, ...]]:
        groups = place.sizes[self.groups]
        grouped = tuple((groups, shape[0] // groups, *shape[1:]) for shape in lanes)
        whole, sizes = _joined(grouped, 1)
        flat = (groups * whole[1], *whole[2:])
        return (flat,), (Reshape((flat,), (whole,)), Cut(1, sizes), Reshape(grouped, lanes))


@dataclass(frozen=True)
class Pairs:
    """Reorder the rows of each head from the file's rotary layout to that of our config, where they differ.

    `heads` is the letter that counts the heads, None where all rows are one; `layout` is the file's. `last` is the
    letter that counts the rows of a head that turn, its last ones; None where its first ones do.
    """

    heads: str | None
    layout: str = "half"
    last: str | None = None

    def resolve(self, lanes: Shapes, place: Place) -> tuple[Shapes, tuple[Step, ...]]:
        if place.rope is None or place.rope.layout == self.layout:
            return lanes, ()
        heads = 1 if self.heads is None else place.sizes[self.heads]
        width = lanes[0][0] // heads
        turned = width if self.last is None else place.sizes[self.last]
        rotated = place.rope.rotated(turned)
        return lanes, (Pairing(heads, width, rotated, self.layout == "half", width - turned),)


def _joined(lanes: Shapes, axis: int) -> tuple[Shape, tuple[int, ...]]:
    """The shape of the lanes laid side by side along an axis, and the size of each along it."""
    shape, sizes = list(lanes[0]), tuple(lane[axis] for lane in lanes)
    shape[axis] = sum(sizes)
    return tuple(shape), sizes


@dataclass(frozen=True)
class Rule:
    """Where one part of a file stands in our layout, its kernel (under PyTorch's name, `weight`) and bias alike.

    Attributes:
        foreign: the part's name in the file; `{i}` is the number of a layer.
        ours: the part, or parts, of our layout that it holds; PyTorch's shapes are on this side.
        operations: from the file to us, in order.
    """

    foreign: str
    ours: str | tuple[str, ...]
    operations: tuple[Operation, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """Our parts, however many."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours


@dataclass(frozen=True)
class Page:
    """A foreign format, as data.

    Attributes:
        model_type: its name in config.json.
        architecture: the class that transformers builds for it.
        fields: what the fields of config.json say of our config.
        tensors: where each part stands.
        prefix: what the names of a file lack if it was saved from the model without its head.
        head: names of the head and of the embedding, which a tied file may hold both if they are equal.
        buffers: tensors that are no weights and are passed over.
        harmless: further fields, and the value at which they change nothing; any other is refused.
        silent: fields that say nothing of the function from tokens to logits.
        written: fields that are written besides, where the format's own defaults would say too much.
    """

    model_type: str
    architecture: str
    fields: tuple[Aspect, ...]
    tensors: tuple[Rule, ...]
    prefix: str = ""
    head: tuple[str, str] | None = None
    buffers: tuple[str, ...] = ()
    harmless: Mapping[str, Any] = field(default_factory=dict)
    silent: frozenset[str] = SILENT
    written: Mapping[str, Any] = field(default_factory=dict)

    def bare(self) -> "Page":
        """The page of a file whose names lack the prefix."""

        def short(name: str) -> str:
            return name.removeprefix(self.prefix)

        head = None if self.head is None else (short(self.head[0]), short(self.head[1]))
        tensors = tuple(replace(rule, foreign=short(rule.foreign)) for rule in self.tensors)
        return replace(self, tensors=tensors, head=head, buffers=tuple(map(short, self.buffers)), prefix="")
