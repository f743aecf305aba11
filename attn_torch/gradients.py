"""A value and all its gradients, numpy in and numpy out: what `attn.parity` compares."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch

from attn.call import FLOATS, dtype_name
from attn.config import Config
from attn.weights import from_torch
from attn_torch.building import build
from attn_torch.weights import as_numpy, as_torch, from_neutral


@contextmanager
def precise(dtype: str) -> Iterator[None]:
    """Products as exact as `dtype` allows: no TensorFloat-32."""
    del dtype
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def matmul_error() -> float:
    """The relative error of a float32 product of two 256 x 256 matrices, as this machine computes it."""
    a, b = np.random.default_rng(0).standard_normal((2, 256, 256)).astype(np.float32)
    with precise("float32"):
        product = as_numpy(as_torch(a) @ as_torch(b)).astype(np.float64)
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
        module = build(cfg, kernel=kernel).eval()
        module.load_state_dict(from_neutral(cfg, weights))
        tensors = {name: as_torch(array) for name, array in inputs.items()}
        sources = {name: tensors[name].requires_grad_() for name in real} | dict(module.named_parameters())
        y = module(tensors.pop("x"), **tensors)
        direction = as_torch(cotangent.astype(dtype)).to(y.dtype)
        gradients = torch.autograd.grad(y, tuple(sources.values()), direction, materialize_grads=True)
    arrays = {name: as_numpy(gradient) for name, gradient in zip(sources, gradients, strict=True)}
    of_inputs = {name: arrays.pop(name) for name in real}
    return as_numpy(y), of_inputs | dict(from_torch(cfg, arrays))
