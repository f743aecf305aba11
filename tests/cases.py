"""What the tests share: a case for each variant, sizes that are all different, and what it means to be close."""

from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import pytest

import attn
from attn.config import Config
from attn.masks import Causal, Chunked, Full, Prefix, SlidingWindow
from attn.tolerance import bound, row_error
from tests.twins import TWINS

B, T, S, M, X = 5, 11, 13, 17, 19
H, K, D, E, C = 6, 3, 7, 4, 23
"""A size for each letter of the legend, no two the same."""

CAUSAL = {"kind": "causal"}
WINDOW = {"kind": "sliding_window", "width": 4}
ROPE = {"kind": "default", "theta": 100.0, "width": 4}

ONE_HEAD: dict[str, Any] = {"input_dim": M, "dim_k": D, "dim_v": E, "bias": True}
HEADS: dict[str, Any] = {"input_dim": M, "heads": H, "dim_k": H * D, "dim_v": H * E, "bias": True}

CASES: dict[str, Any] = {
    "self": attn.SelfAttentionConfig(**ONE_HEAD),
    "cross": attn.CrossAttentionConfig(**ONE_HEAD, context_dim=X),
    "causal": attn.CausalAttentionConfig(**ONE_HEAD, rope=ROPE),
    "multi_head": attn.MultiHeadAttentionConfig(**HEADS),
    "multi_head_reading": attn.MultiHeadAttentionConfig(**HEADS, context_dim=X),
    "multi_query": attn.MultiQueryAttentionConfig(**HEADS, mask=WINDOW),
    "grouped_query": attn.GroupedQueryAttentionConfig(**HEADS, kv_heads=K, rope=ROPE, mask=CAUSAL),
    "latent": attn.MultiHeadLatentAttentionConfig(**HEADS, kv_lora_rank=C),
    "latent_reading": attn.MultiHeadLatentAttentionConfig(**HEADS, kv_lora_rank=C, context_dim=X),
}
"""Every variant; those that may read a context, with one and without."""

RULES = {
    "full": Full(),
    "causal": Causal(),
    "window_of_1": SlidingWindow(width=1),
    "window_of_3": SlidingWindow(width=3),
    "symmetric_window_of_1": SlidingWindow(width=1, symmetric=True),
    "symmetric_window_of_3": SlidingWindow(width=3, symmetric=True),
    "chunks_of_2": Chunked(width=2),
    "chunks_of_3": Chunked(width=3),
    "prefix_of_3": Prefix(length=3),
    "window_and_chunks": SlidingWindow(width=2) & Chunked(width=3),
    "symmetric_window_and_prefix": SlidingWindow(width=2, symmetric=True) & Prefix(length=2),
    "window_or_chunks": SlidingWindow(width=2) | Chunked(width=4),
    "nested": (SlidingWindow(width=3) & (Chunked(width=2) | Chunked(width=3))) | SlidingWindow(width=2),
}
"""Every rule, and rules of rules."""

WITHIN = [name for name, cfg in CASES.items() if cfg.reads is None]
READING = [name for name, cfg in CASES.items() if cfg.reads is not None]


def under(mask: dict[str, Any], name: str) -> Any:
    """A case under that rule; the causal variant keeps its own."""
    return CASES[name] if name == "causal" else CASES[name].replace(mask=mask)


def decoder(**options: Any) -> attn.DecoderConfig:
    """A decoder whose two layers differ in mechanism, rule and positions."""
    latent = attn.MultiHeadLatentAttentionConfig(**HEADS, kv_lora_rank=C, mask=WINDOW)
    given = {"vocab_size": 29, "layers": 2, "attention": (CASES["grouped_query"], latent), "tied": False}
    return attn.DecoderConfig(**(given | {"mlp": attn.MLPConfig(input_dim=M, hidden_dim=31)} | options))


def draw(*shape: int, seed: int = 0, dtype: str = "float64") -> np.ndarray:
    """Normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def weights_of(cfg: Config, dtype: str = "float64") -> dict[str, np.ndarray]:
    """Weights of which none has its default: biases and scales are moved, so that one that is not read shows."""
    rng = np.random.default_rng(1)
    weights = attn.init_weights(cfg, seed=0)
    moved = {name: array + rng.normal(0, 0.3, array.shape) for name, array in weights.items() if array.ndim < 2}
    moved |= {name: rng.normal(0, 0.3, array.shape) for name, array in weights.items() if name.endswith("bias")}
    return {name: array.astype(dtype) for name, array in (weights | moved).items()}


def sides_of(cfg: Any, dtype: str = "float64", batch: int = B) -> list[np.ndarray]:
    """x, and the context where the config reads one."""
    sides = [draw(batch, T, cfg.input_dim, seed=2, dtype=dtype)]
    return sides if cfg.reads is None else [*sides, draw(batch, S, cfg.reads, seed=3, dtype=dtype)]


def keys_of(cfg: Any) -> int:
    """The number of keys in `sides_of`."""
    return T if cfg.reads is None else S


def error(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest relative L2 error of a row, a row being the last axis. A row of zeros has to be met exactly."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    np.testing.assert_equal(actual.shape, expected.shape)
    difference, size = np.linalg.norm(actual - expected, axis=-1), np.linalg.norm(expected, axis=-1)
    return float(np.max(difference / np.maximum(size, np.finfo(float).tiny), initial=0))


def assert_close(actual: np.ndarray, expected: np.ndarray, cfg: Any = None, dtype: str = "float64") -> None:
    """Equal but for rounding: that of float64, whose floor is 1e-12, or what a config's bound grants another dtype."""
    if dtype == "float64":
        assert error(actual, expected) < 1e-12
    else:
        depth = getattr(cfg, "layers", 1)
        assert row_error(actual, expected) < bound(cfg, T, max(T, S), dtype, depth=depth)


@contextmanager
def refused(text: str) -> Iterator[None]:
    """Expect a ValueError of exactly this text; what JAX notes below it aside."""
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 (the text is compared whole)
        yield
    assert str(refusal.value) == text


in_both = pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
"""Run a test once for each twin."""

SHORTLIST = ("multi_head_reading", "grouped_query")
"""One case for each direction."""


def in_both_for(names: str, cases: Iterable[Any], first: Container[Any] = SHORTLIST) -> Any:
    """Run a test for each case in each twin. JAX compiles every shape anew: in the first tier it runs `first` alone."""
    params = []
    for twin, (place, case) in product(TWINS, enumerate(cases)):
        values = case if isinstance(case, tuple) else (case,)
        later = () if twin.name == "torch" or case in first else pytest.mark.full
        label = "-".join(map(str, values)) if all(isinstance(value, str | int) for value in values) else place
        params.append(pytest.param(twin, *values, marks=later, id=f"{twin.name}-{label}"))
    return pytest.mark.parametrize(("twin", *names.split()), params)
