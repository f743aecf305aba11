"""Neutral weights: one flat mapping from a dotted name to an array, the same for both twins.

Here they are made, checked, and carried to the names and shapes of PyTorch and back. A conversion renames, transposes
and reshapes; it never computes and never changes a dtype, so it is exact to the bit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from zlib import crc32

import numpy as np

from attn.config import Config
from attn.layout import Leaf, leaves


def init_weights(cfg: Config, seed: int) -> dict[str, np.ndarray]:
    """Initial weights in float32: the same numbers for both twins, each tensor drawn from a stream of its own.

    Projections: normal with standard deviation 1/sqrt(fan in), cut at two of them. Tables: normal with 0.02.
    Scales are 1 (0 where a norm multiplies by 1 + scale), biases and sinks 0.
    """
    return {leaf.name: _draw(leaf, np.random.default_rng([seed, crc32(leaf.name.encode())])) for leaf in leaves(cfg)}


def _draw(leaf: Leaf, rng: np.random.Generator) -> np.ndarray:
    initial = leaf.initial
    if initial.std == 0:
        return np.full(leaf.shape, initial.mean, np.float32)
    values = rng.standard_normal(leaf.shape)
    while initial.cut and (beyond := np.abs(values) > 2).any():
        values[beyond] = rng.standard_normal(int(beyond.sum()))
    return (values * initial.std).astype(np.float32)


def count(cfg: Config) -> int:
    """The number of parameters."""
    return sum(int(np.prod(leaf.shape)) for leaf in leaves(cfg))


def check_weights(cfg: Config, shapes: Mapping[str, Iterable[int]], *, torch: bool = False) -> None:
    """Refuse weights that are not exactly the config's: every name once, every shape right.

    Args:
        cfg: what the weights are for.
        shapes: name to shape, as received.
        torch: whether names and shapes are PyTorch's rather than neutral.

    Raises:
        ValueError: one report of everything that is missing, unexpected or of another shape.
    """
    expected = {leaf.torch_name: leaf.torch_shape for leaf in leaves(cfg)} if torch else cfg.shapes()
    problems = [f"{name} is missing" for name in expected if name not in shapes]
    problems += [f"{name} is unexpected" for name in shapes if name not in expected]
    for name, shape in expected.items():
        if name in shapes and tuple(shapes[name]) != shape:
            problems.append(f"{name} has shape {tuple(shapes[name])} instead of {shape}")
    if problems:
        raise ValueError(f"weights do not fit the {cfg.variant} config: {'; '.join(problems)}.")


class Converted(Mapping):
    """Arrays under new names, each made when it is asked for: a file larger than memory can pass through."""

    def __init__(self, source: Mapping, entries: dict[str, tuple[str, tuple[int, ...], Callable]]):
        self._source, self._entries = source, entries
        self.shapes = {name: shape for name, (_, shape, _) in entries.items()}

    @property
    def dtypes(self) -> dict[str, np.dtype]:
        """The dtype of each array; a lazily read file answers from its header."""
        known = getattr(self._source, "dtypes", None)
        if known is None:
            known = {name: np.asarray(array).dtype for name, array in self._source.items()}
        return {name: known[origin] for name, (origin, _, _) in self._entries.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        origin, _, convert = self._entries[name]
        return np.array(convert(np.asarray(self._source[origin])), order="C")

    def __contains__(self, name: object) -> bool:
        # Mapping's own answer would read the array.
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def shapes_of(arrays: Mapping) -> dict[str, tuple[int, ...]]:
    """Name to shape; a lazily read file answers from its header."""
    return dict(getattr(arrays, "shapes", None) or {name: tuple(np.shape(array)) for name, array in arrays.items()})


def to_torch(cfg: Config, weights: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Neutral weights under PyTorch's names and in its shapes, checked first; each array is fresh and contiguous."""
    check_weights(cfg, shapes_of(weights))
    return Converted(weights, {leaf.torch_name: (leaf.name, leaf.torch_shape, leaf.to_torch) for leaf in leaves(cfg)})


def from_torch(cfg: Config, tensors: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """PyTorch's arrays as neutral weights, checked first; each array is fresh and contiguous."""
    check_weights(cfg, shapes_of(tensors), torch=True)
    return Converted(tensors, {leaf.name: (leaf.torch_name, leaf.shape, leaf.from_torch) for leaf in leaves(cfg)})
