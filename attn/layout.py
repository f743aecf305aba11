"""The kinds of parameters: how a weight is named, shaped and first drawn, said once.

A config's `layout()` maps the name of each part to one of these kinds. Everything else derives from it: parameters
in both twins, initial values, counts, checks, conversion and files. The neutral form of a leaf is also the Flax form;
the PyTorch form is what `nn.Linear`, `nn.Embedding` and the like hold.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod, sqrt
from typing import Literal, NamedTuple

import numpy as np

from attn.letters import shape_of


class Initial(NamedTuple):
    """How a leaf is first drawn: normal around 0, perhaps cut at two deviations; constant, `mean`, when std is 0."""

    mean: float = 0.0
    std: float = 0.0
    cut: bool = False


class Leaf(NamedTuple):
    """One array of a layout: its part, its names and shapes on both sides, and how it is first drawn."""

    part: "Part"
    name: str
    shape: tuple[int, ...]
    torch_name: str
    torch_shape: tuple[int, ...]
    initial: Initial
    matrix: bool = False

    def to_torch(self, array: np.ndarray) -> np.ndarray:
        """The neutral array in PyTorch's shape: a kernel is flattened to [inputs, outputs] and transposed."""
        return array.reshape(self.torch_shape[::-1]).T if self.matrix else array.reshape(self.torch_shape)

    def from_torch(self, array: np.ndarray) -> np.ndarray:
        """PyTorch's array in neutral shape."""
        return (array.T if self.matrix else array).reshape(self.shape)


@dataclass(frozen=True)
class Projection:
    """`y = x @ kernel + bias`. "M -> H D": kernel [M H D], bias [H D]; PyTorch weight [H*D, M], bias [H*D]."""

    axes: str
    bias: bool = False

    @property
    def inputs(self) -> str:
        """The contracted axes."""
        return self.axes.split(" -> ")[0]

    @property
    def outputs(self) -> str:
        """The axes that the projection makes."""
        return self.axes.split(" -> ")[1]

    def leaves(self, path: str, sizes: Mapping[str, int]) -> Iterator[Leaf]:
        """The kernel, and the bias where there is one."""
        inputs, outputs = shape_of(self.inputs, sizes), shape_of(self.outputs, sizes)
        flat, drawn = (prod(outputs), prod(inputs)), Initial(std=1 / sqrt(prod(inputs)), cut=True)
        yield Leaf(self, f"{path}.kernel", inputs + outputs, f"{path}.weight", flat, drawn, matrix=True)
        if self.bias:
            yield Leaf(self, f"{path}.bias", outputs, f"{path}.bias", flat[:1], Initial())


@dataclass(frozen=True)
class Scale:
    """The multiplier of a norm: y = normalised * scale, perhaps + bias.

    `normalised` axes, counted from the last, share one statistic; `offset` makes the multiplier 1 + scale.
    """

    axes: str
    kind: Literal["rms", "layer", "l2"] = "rms"
    eps: float = 1e-6
    normalised: int = 1
    learned: bool = True
    offset: bool = False
    shift: bool = False

    def leaves(self, path: str, sizes: Mapping[str, int]) -> Iterator[Leaf]:
        """The scale, and the bias where there is one."""
        shape = shape_of(self.axes, sizes)
        if self.learned:
            yield Leaf(self, f"{path}.scale", shape, f"{path}.weight", shape, Initial(mean=0.0 if self.offset else 1.0))
        if self.shift:
            yield Leaf(self, f"{path}.bias", shape, f"{path}.bias", shape, Initial())


@dataclass(frozen=True)
class Table:
    """Rows looked up by number: token embeddings [V M], learned positions [P M]."""

    axes: str

    def leaves(self, path: str, sizes: Mapping[str, int]) -> Iterator[Leaf]:
        """The table."""
        shape = shape_of(self.axes, sizes)
        yield Leaf(self, f"{path}.embedding", shape, f"{path}.weight", shape, Initial(std=0.02))


@dataclass(frozen=True)
class Vector:
    """Loose numbers under the part's own name, the same in both twins: sinks [H]."""

    axes: str

    def leaves(self, path: str, sizes: Mapping[str, int]) -> Iterator[Leaf]:
        """The numbers."""
        shape = shape_of(self.axes, sizes)
        yield Leaf(self, path, shape, path, shape, Initial())


Part = Projection | Scale | Table | Vector
Layout = dict[str, Part]


def leaves(cfg, prefix: str = "") -> Iterator[Leaf]:
    """Every array of a config: its own parts first, then those of its children, depth first."""
    sizes = cfg.sizes()
    for name, part in cfg.layout().items():
        yield from part.leaves(prefix + name, sizes)
    for name, child in cfg.children().items():
        yield from leaves(child, f"{prefix}{name}.")
