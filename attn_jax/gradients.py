"""A value and all its gradients, numpy in and numpy out: what `attn.parity` compares."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from attn.call import FLOATS, dtype_name
from attn.config import Config
from attn_jax.building import build
from attn_jax.weights import as_jax, from_neutral, to_neutral

_QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
# A comparison runs each program once: compiling it costs seconds, running it nothing. Without LLVM's passes and with
# the older emitters XLA compiles for a CPU ten times faster, and computes the same operations.


@contextmanager
def precise(dtype: str) -> Iterator[None]:
    """Products as exact as `dtype` allows: no bfloat16 or TensorFloat-32 passes, and 64 bits for float64 alone."""
    with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision("highest"):
        yield


def matmul_error() -> float:
    """The relative error of a float32 product of two 256 x 256 matrices, as this machine computes it."""
    a, b = np.random.default_rng(0).standard_normal((2, 256, 256)).astype(np.float32)
    with precise("float32"):
        product = np.asarray(as_jax("a", a) @ as_jax("b", b), np.float64)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    return float(np.linalg.norm(product - exact) / np.linalg.norm(exact))


def value_and_gradients(
    cfg: Config,
    weights: Mapping[str, np.ndarray],
    x: np.ndarray,
    context: np.ndarray | None,
    call: Mapping[str, np.ndarray],
    cotangent: np.ndarray,
    dtype: str,
    kernel: str | None = None,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """y, and the gradients of sum(cotangent * y) by name: of x, context and bias where they are real, of all weights.

    Args:
        cfg: an attention variant or a model.
        weights: neutral weights.
        x: the sequence, or a model's tokens.
        context: what keys and values are read from, where the config has it.
        call: the other arguments of the call, by name.
        cotangent: what multiplies y, in its shape.
        dtype: what every real number is cast to first.
        kernel: the name of an attention kernel to force; None chooses by what the call needs.
    """
    weights = {name: array.astype(dtype) for name, array in weights.items()}
    inputs = {name: array for name, array in {"x": x, "context": context, **call}.items() if array is not None}
    real = [name for name, array in inputs.items() if dtype_name(array) in FLOATS]
    inputs |= {name: inputs[name].astype(dtype) for name in real}
    with precise(dtype):
        variables = from_neutral(cfg, weights)
        arrays = {name: as_jax(name, array) for name, array in inputs.items()}
        sources = {name: arrays.pop(name) for name in real}
        direction = as_jax("cotangent", cotangent.astype(dtype))
        y, of_inputs, of_weights = _compiled()(cfg, kernel, sources, arrays, variables, direction)
    # A compiled function returns a dict in the order of the alphabet.
    of_inputs = {name: np.array(of_inputs[name]) for name in real}
    return np.array(y), of_inputs | to_neutral(cfg, of_weights)


@lru_cache(maxsize=1)
def _compiled() -> Callable:
    options = {name: value for name, value in _QUICK.items() if _is_known(name, value)}
    return jax.jit(_value_and_gradients, static_argnames=("cfg", "kernel"), compiler_options=options)


def _is_known(name: str, value: Any) -> bool:
    # Options come and go with XLA's versions, and other devices may not have them.
    if jax.default_backend() != "cpu":
        return False
    try:
        jax.jit(lambda: 0, compiler_options={name: value})()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def _value_and_gradients(cfg, kernel, sources, others, variables, direction):
    def value(sources, variables) -> Any:
        inputs = sources | others
        return build(cfg, kernel=kernel).apply(variables, inputs.pop("x"), **inputs)

    y, pullback = jax.vjp(value, sources, variables)
    return y, *pullback(direction.astype(y.dtype))
