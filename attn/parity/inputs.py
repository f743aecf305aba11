"""What parity is measured on: one draw of weights, inputs and arguments, the same numbers for every implementation."""

from typing import NamedTuple
from zlib import crc32

import ml_dtypes  # noqa: F401  it teaches numpy the name bfloat16
import numpy as np

from attn.config import Config
from attn.layout import leaves
from attn.letters import size_of
from attn.variants.base import AttentionConfig
from attn.weights import init_weights

MODEL_ARGUMENTS = ("valid", "segments", "positions")
ARGUMENTS = (*MODEL_ARGUMENTS, "allowed", "bias")
"""What a call may bring along; on a config with a context the first three describe the context's tokens too."""

FIRST_POSITION = 50
"""Explicit positions begin here: errors of angles and of absolute positions grow with them."""


class Inputs(NamedTuple):
    """One draw. Real numbers are float64, already rounded to the dtype that is compared, so that casting is exact."""

    weights: dict[str, np.ndarray]
    x: np.ndarray
    context: np.ndarray | None
    call: dict[str, np.ndarray]
    cotangent: np.ndarray

    def real(self) -> dict[str, np.ndarray]:
        """Everything that has a gradient, by name."""
        inputs = {"x": self.x, "context": self.context, **self.call}
        return {name: a for name, a in inputs.items() if a is not None and a.dtype.kind == "f"} | self.weights

    def moved(self, name: str, step: np.ndarray) -> "Inputs":
        """The same with `step` added to one array."""
        if name in self.weights:
            return self._replace(weights=self.weights | {name: self.weights[name] + step})
        if name in self.call:
            return self._replace(call=self.call | {name: self.call[name] + step})
        return self._replace(**{name: getattr(self, name) + step})


def draw(
    cfg: Config, dtype: str, *, batch: int, queries: int, keys: int | None, seed: int, arguments: tuple[str, ...]
) -> Inputs:
    """Weights away from their defaults, normal inputs, and the arguments that are named, each from its own stream.

    Raises:
        ValueError: an argument is unknown, or `keys` is given to a config that reads no context.
    """
    attention = isinstance(cfg, AttentionConfig)
    _check_arguments(arguments, ARGUMENTS if attention else MODEL_ARGUMENTS)
    reads = cfg.reads if attention else None
    if keys is not None and reads is None:
        raise ValueError(f"keys must be None for a config that reads no context; got {keys}.")

    def normal(name: str, *shape: int) -> np.ndarray:
        return _rounded(_stream(seed, name).standard_normal(shape), dtype)

    sizes, length = cfg.sizes(), queries if keys is None else keys
    width = size_of(cfg.output.split()[-1] if attention else "V", sizes)
    x = normal("x", batch, queries, sizes["M"]) if attention else _tokens(cfg, batch, queries, seed)
    call = _rows(cfg, arguments, batch, queries, "", seed)
    if reads is not None:
        call |= _rows(cfg, arguments, batch, length, "context_", seed)
    if "allowed" in arguments:
        call["allowed"] = _stream(seed, "allowed").random((batch, sizes["H"], queries, length)) < 0.7
        call["allowed"][0, :, 0] = False
    if "bias" in arguments:
        call["bias"] = normal("bias", 1, sizes["H"], queries, length)
    weights = {name: _rounded(array, dtype) for name, array in perturbed(cfg, seed).items()}
    context = None if reads is None else normal("context", batch, length, reads)
    return Inputs(weights, x, context, call, normal("cotangent", batch, queries, width))


def perturbed(cfg: Config, seed: int) -> dict[str, np.ndarray]:
    """Initial weights moved by three tenths of their deviation, of 1 for what starts constant: defaults hide bugs."""
    drawn = init_weights(cfg, seed)
    moves = {leaf.name: 0.3 * (leaf.initial.std or 1.0) for leaf in leaves(cfg)}
    return {
        name: array + moves[name] * _stream(seed, f"{name}.move").standard_normal(array.shape)
        for name, array in drawn.items()
    }


def _stream(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, crc32(name.encode())])


def _rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    return array.astype(dtype).astype(np.float64)


def _check_arguments(arguments: tuple[str, ...], known: tuple[str, ...]) -> None:
    for name in arguments:
        if name not in known:
            raise ValueError(f"arguments must name some of {', '.join(known)}; got {name!r}.")


def _tokens(cfg, batch: int, length: int, seed: int) -> np.ndarray:
    return _stream(seed, "tokens").integers(0, cfg.vocab_size, (batch, length), dtype=np.int32)


def _rows(cfg, arguments: tuple[str, ...], batch: int, length: int, prefix: str, seed: int) -> dict[str, np.ndarray]:
    """valid, segments and positions of one side: holes anywhere, segment numbers that return, positions in disorder."""
    shape, rows = (batch, length), {}
    if "valid" in arguments:
        rng = _stream(seed, f"{prefix}valid")
        rows["valid"] = rng.random(shape) < 0.7
        rows["valid"][np.arange(batch), rng.integers(0, length, batch)] = True
    if "segments" in arguments:
        begins = _stream(seed, f"{prefix}segments").random(shape) < 0.3
        rows["segments"] = (np.cumsum(begins, axis=1) % 2).astype(np.int32)
    if "positions" in arguments:
        rng, table = _stream(seed, f"{prefix}positions"), getattr(cfg, "learned_positions", None)
        low, high = (FIRST_POSITION, FIRST_POSITION + 2 * length) if table is None else (0, table)
        places = np.arange(low, high, dtype=np.int32)
        rows["positions"] = np.stack([rng.permutation(places)[:length] for _ in range(batch)])
    return {f"{prefix}{name}": array for name, array in rows.items()}
