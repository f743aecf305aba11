"""What the tests share: a case for each variant, sizes that are all different, and both twins behind numpy arrays."""

from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import product
from typing import Any

import numpy as np
import pytest

import attn
from attn.config import Config
from attn.kernels import FORMS
from attn.masks import Causal, Chunked, Full, Prefix, SlidingWindow

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


def assert_close(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal but for the rounding of float64, whose floor is 1e-12."""
    assert error(actual, expected) < 1e-12


@contextmanager
def refused(text: str) -> Iterator[None]:
    """Expect a ValueError of exactly this text; what JAX notes below it aside."""
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 (the text is compared whole)
        yield
    assert str(refusal.value) == text


class Torch:
    """attn_torch on numpy arrays; a cache goes through as it is."""

    name = "torch"
    call = "forward"

    @property
    def kernels(self) -> list[str]:
        """The names of its kernels, the fastest first."""
        from attn_torch.kernels.choice import KERNELS

        return list(KERNELS)

    def array(self, value: Any) -> Any:
        """The tensor of a numpy array; anything else as it is."""
        from attn_torch.weights import as_torch

        return as_torch(value) if isinstance(value, np.ndarray) else value

    def module(self, cfg: Any, weights: Any, **options: Any) -> Any:
        """A module with its weights."""
        import torch

        import attn_torch

        options |= {"dtype": getattr(torch, options["dtype"])} if "dtype" in options else {}
        module = attn_torch.build(cfg, **options)
        module.load_state_dict(attn_torch.from_neutral(cfg, weights))
        return module

    def __call__(self, cfg, weights, *sides, method="forward", compiled=False, options=None, **call) -> Any:
        """y, or (y, cache)."""
        import torch

        from attn_torch.weights import as_numpy

        function = getattr(self.module(cfg, weights, **options or {}), method)
        if compiled:
            torch.compiler.reset()
            function = torch.compile(function, fullgraph=True, backend="eager")
        with torch.no_grad():
            y = function(*map(self.array, sides), **{name: self.array(value) for name, value in call.items()})
        return (as_numpy(y[0]), y[1]) if isinstance(y, tuple) else as_numpy(y)

    def gradients(self, cfg, weights, direction, *sides, options=None, **call) -> dict[str, np.ndarray]:
        """The gradients of sum(y * direction): of x, context, bias, and of each weight by its name."""
        import attn_torch
        from attn_torch.weights import as_numpy

        module = self.module(cfg, weights, **options or {})
        call = {name: self.array(value) for name, value in (named(sides) | call).items()}
        wanted = {name: value.requires_grad_() for name, value in call.items() if value.is_floating_point()}
        (module(call.pop("x"), **call) * self.array(direction)).sum().backward()
        found = {name: as_numpy(value.grad) for name, value in wanted.items()}
        return found | attn_torch.to_neutral(cfg, {name: value.grad for name, value in module.named_parameters()})

    def init_cache(self, cfg: Any, batch: int, length: int, dtype: str = "float64", **sizes: int) -> Any:
        """An empty cache."""
        import torch

        import attn_torch

        return attn_torch.init_cache(cfg, batch, length, dtype=getattr(torch, dtype), **sizes)

    def filled(self, array: Any, value: float) -> Any:
        """An array like that one with a number everywhere."""
        return array * 0 + value


class Jax:
    """attn_jax on numpy arrays, in x64 where the weights are; a cache goes through as it is."""

    name = "jax"
    call = "__call__"

    @property
    def kernels(self) -> list[str]:
        """The names of its kernels, the fastest first."""
        from attn_jax.kernels.choice import KERNELS

        return list(KERNELS)

    def array(self, value: Any) -> Any:
        """The JAX array of a numpy array; anything else as it is."""
        import jax.numpy as jnp

        return jnp.array(value) if isinstance(value, np.ndarray) else value

    def module(self, cfg: Any, weights: Any, **options: Any) -> tuple[Any, Any]:
        """A module and its variables."""
        import attn_jax

        return attn_jax.build(cfg, **options), attn_jax.from_neutral(cfg, weights)

    def __call__(self, cfg, weights, *sides, method="__call__", compiled=False, options=None, **call) -> Any:
        """y, or (y, cache)."""
        import jax

        with jax.enable_x64(is_wide(weights)):
            module, variables = self.module(cfg, weights, **options or {})
            function = partial(compiled_in_jax(), module, method) if compiled else partial(module.apply, method=method)
            call = {name: self.array(value) for name, value in call.items()}
            y = function(variables, *map(self.array, sides), **call)
            return (np.array(y[0]), y[1]) if isinstance(y, tuple) else np.array(y)

    def gradients(self, cfg, weights, direction, *sides, options=None, **call) -> dict[str, np.ndarray]:
        """The gradients of sum(y * direction): of x, context, bias, and of each weight by its name."""
        import jax

        import attn_jax

        with jax.enable_x64(is_wide(weights)):
            module, variables = self.module(cfg, weights, **options or {})
            call = {name: self.array(value) for name, value in (named(sides) | call).items()}
            wanted = {name: value for name, value in call.items() if value.dtype.kind in "fV"}
            rest = {name: value for name, value in call.items() if name not in wanted}
            of_weights, found = gradients_in_jax()(module, variables, wanted, rest, direction)
            return {name: np.array(value) for name, value in found.items()} | attn_jax.to_neutral(cfg, of_weights)

    def init_cache(self, cfg: Any, batch: int, length: int, dtype: str = "float64", **sizes: int) -> Any:
        """An empty cache."""
        import jax

        import attn_jax

        with jax.enable_x64(dtype == "float64"):
            return attn_jax.init_cache(cfg, batch, length, dtype=dtype, **sizes)

    def filled(self, array: Any, value: float) -> Any:
        """An array like that one with a number everywhere."""
        import jax

        with jax.enable_x64(array.dtype == "float64"):
            return array * 0 + value


def by_every_kernel(twin: Any, cfg: Any, *args: Any, **call: Any) -> dict[str, Any]:
    """What each kernel and form makes of a call, by its name, those aside that say they cannot run it."""
    found = {}
    for kernel in twin.kernels + list(FORMS if cfg.variant == "latent" else ()):
        try:
            found[kernel] = twin(cfg, *args, options={"kernel": kernel}, **call)
        except ValueError as error:
            if not str(error).startswith(f"kernel {kernel!r} cannot run this call: "):
                raise
    assert "plain" in found
    return found


@lru_cache
def compiled_in_jax() -> Any:
    """A module's method, compiled once for each module and each shape; operations one by one would be compiled too."""
    import jax

    def apply(module, method, variables, *sides, **call):
        return module.apply(variables, *sides, method=method, **call)

    return jax.jit(apply, static_argnums=(0, 1))


@lru_cache
def gradients_in_jax() -> Any:
    """The gradients of sum(y * direction), compiled once for each module and each shape."""
    import jax

    def loss(variables, wanted, module, rest, direction):
        return (module.apply(variables, **wanted, **rest) * direction).sum()

    def gradients(module, variables, wanted, rest, direction):
        return jax.grad(loss, argnums=(0, 1))(variables, wanted, module, rest, direction)

    return jax.jit(gradients, static_argnums=0)


def named(sides: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
    """x and the context by name."""
    return dict(zip(("x", "context"), sides, strict=False))


def is_wide(weights: dict[str, np.ndarray]) -> bool:
    """Whether JAX needs x64 for these weights."""
    return any(array.dtype == np.float64 for array in weights.values())


TWINS = (Jax(), Torch())

in_both = pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
"""Run a test once for each twin."""

SHORTLIST = ("multi_head_reading", "grouped_query", "latent")
"""One case for each mechanism and direction."""


def in_both_for(names: str, cases: Iterable[Any], first: Container[Any] = SHORTLIST) -> Any:
    """Run a test for each case in each twin. JAX compiles every shape anew: in the first tier it runs `first` alone."""
    params = []
    for twin, (place, case) in product(TWINS, enumerate(cases)):
        values = case if isinstance(case, tuple) else (case,)
        later = () if twin.name == "torch" or case in first else pytest.mark.full
        label = "-".join(map(str, values)) if all(isinstance(value, str | int) for value in values) else place
        params.append(pytest.param(twin, *values, marks=later, id=f"{twin.name}-{label}"))
    return pytest.mark.parametrize(("twin", *names.split()), params)
