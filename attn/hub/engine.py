"""The engine: runs a page both ways over tensors, and is strict on both sides.

Every tensor of the source must be used once and every tensor of the target filled once. What is wrong is told in one
report, from names and shapes, before any tensor is read.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from attn.hub.page import Page, Place, Rule
from attn.hub.steps import Reshape, Shape, Step, Transpose, inverse, simplify
from attn.layout import Leaf, leaves
from attn.models import DecoderConfig
from attn.weights import shapes_of


@dataclass(frozen=True)
class Link:
    """Some tensors of one side, the steps, and the tensors of the other side that come out of them."""

    sources: dict[str, Shape]
    targets: dict[str, Shape]
    steps: tuple[Step, ...]

    def inverse(self) -> "Link":
        """The way back."""
        return Link(self.targets, self.sources, inverse(self.steps))


def plan(page: Page, cfg: DecoderConfig) -> tuple[Link, ...]:
    """The links from a foreign file to our neutral weights, from names and shapes alone.

    Raises:
        ValueError: one report of every weight of ours that has no place in the format, or more than one.
    """
    by_torch_name = {leaf.torch_name: leaf for leaf in leaves(cfg)}
    links = []
    for rule in page.tensors:
        for layer in range(cfg.layers) if "{i}" in rule.foreign else (None,):
            links += _resolve(rule, layer, _place(cfg, layer), by_torch_name)
    _check_page(page, cfg, links)
    return tuple(links)


def _check_page(page: Page, cfg: DecoderConfig, links: list[Link]) -> None:
    filled = Counter(name for link in links for name in link.targets)
    problems = [f"{name} has no place" for name in cfg.shapes() if name not in filled]
    for side, names in (("filled", filled), ("used", Counter(name for link in links for name in link.sources))):
        problems += [f"{name} is {side} {times} times" for name, times in names.items() if times > 1]
    if problems:
        raise ValueError(f"page of {page.model_type} does not fit the config: {'; '.join(problems)}.")


def _place(cfg: DecoderConfig, layer: int | None) -> Place:
    if layer is None:
        return Place(cfg.sizes())
    attention = cfg.attentions[layer]
    return Place(cfg.sizes() | cfg.mlp.sizes() | attention.sizes(), getattr(attention, "rope", None))


def _resolve(rule: Rule, layer: int | None, place: Place, by_torch_name: dict[str, Leaf]) -> Iterator[Link]:
    """The links of a rule: one for each kind of leaf that its parts have."""
    for suffix in ("", ".weight", ".bias"):
        names = [part.format(i=layer) + suffix for part in rule.parts]
        if not all(name in by_torch_name for name in names):
            continue
        ours = [by_torch_name[name] for name in names]
        lanes, steps = tuple(leaf.torch_shape for leaf in ours), _to_neutral(ours)
        for operation in reversed(rule.operations):
            lanes, before = operation.resolve(lanes, place)
            steps = before + steps
        foreign = {rule.foreign.format(i=layer) + suffix: lanes[0]}
        yield Link(foreign, {leaf.name: leaf.shape for leaf in ours}, simplify(steps))


def _to_neutral(ours: list[Leaf]) -> tuple[Step, ...]:
    """The steps from PyTorch's shapes to ours."""
    shapes, torch_shapes = tuple(leaf.shape for leaf in ours), tuple(leaf.torch_shape for leaf in ours)
    if not ours[0].matrix:
        return (Reshape(torch_shapes, shapes),)
    return Transpose(), Reshape(tuple(shape[::-1] for shape in torch_shapes), shapes)


def spare(page: Page, cfg: DecoderConfig) -> frozenset[str]:
    """The tensors that a file may hold and that are not read: buffers, and the head of a tied model."""
    names = {name.format(i=layer) for name in page.buffers for layer in range(cfg.layers)}
    return frozenset(names | set(page.head[:1]) if page.head and cfg.tied else names)


def check(
    what: str, links: tuple[Link, ...], arrays: Mapping[str, np.ndarray], spare: frozenset[str] = frozenset()
) -> None:
    """Refuse arrays that the links do not use up, all but the `spare` ones.

    Raises:
        ValueError: one report of everything that is missing, unexpected or of another shape or dtype.
    """
    shapes = shapes_of(arrays)
    expected = {name: shape for link in links for name, shape in link.sources.items()}
    problems = [f"{name} is missing" for name in expected if name not in shapes]
    problems += [f"{name} is unexpected" for name in shapes if name not in expected and name not in spare]
    for name, shape in expected.items():
        if name in shapes and tuple(shapes[name]) != shape:
            problems.append(f"{name} has shape {tuple(shapes[name])} instead of {shape}")
    problems = problems or list(_mixed(links, arrays))
    if problems:
        raise ValueError(f"{what}: {'; '.join(problems)}.")


def check_tied(page: Page, cfg: DecoderConfig, tensors: Mapping[str, np.ndarray]) -> None:
    """Refuse a file that is tied by its config and yet has a head that is not the embedding.

    Raises:
        ValueError: "tie_word_embeddings must be false where lm_head.weight and wte.weight differ, not true."
    """
    if page.head is None or not cfg.tied or page.head[0] not in tensors:
        return
    head, embedding = page.head
    one, other = tensors[head], tensors[embedding]
    if (one.dtype, one.shape) != (other.dtype, other.shape) or not np.array_equal(_bytes(one), _bytes(other)):
        raise ValueError(f"tie_word_embeddings must be false where {head} and {embedding} differ, not true.")


def _bytes(array: np.ndarray) -> np.ndarray:
    # A NaN equals itself here.
    return np.ascontiguousarray(array).view(np.uint8)


def _mixed(links: tuple[Link, ...], arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
    dtypes = dtypes_of(arrays)
    for link in links:
        kinds = {name: str(dtypes[name]) for name in link.sources}
        if len(set(kinds.values())) > 1:
            yield f"{', '.join(kinds)} become one tensor and have dtypes {', '.join(kinds.values())}"


def dtypes_of(arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.dtype]:
    """Name to dtype; a lazily read file answers from its header."""
    known = getattr(arrays, "dtypes", None)
    return {name: np.asarray(array).dtype for name, array in arrays.items()} if known is None else known


class Linked(Mapping[str, np.ndarray]):
    """What comes out of the links, each array made when it is asked for, fresh and contiguous.

    Attributes:
        shapes: the shape of each array.
        dtypes: the dtype of each array, as it was.
    """

    def __init__(self, links: tuple[Link, ...], source: Mapping[str, np.ndarray]):
        self._source = source
        self._entries = {name: (link, lane) for link in links for lane, name in enumerate(link.targets)}
        self.shapes = {name: link.targets[name] for name, (link, _) in self._entries.items()}
        dtypes = dtypes_of(source)
        self.dtypes = {name: dtypes[next(iter(link.sources))] for name, (link, _) in self._entries.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        link, lane = self._entries[name]
        lanes = [np.asarray(self._source[origin]) for origin in link.sources]
        for step in link.steps:
            lanes = step.run(lanes)
        return np.array(lanes[lane], order="C")

    def __contains__(self, name: object) -> bool:
        # Mapping's own answer would read the array.
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
