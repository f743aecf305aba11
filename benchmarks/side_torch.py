"""PyTorch: how candidates are called, and what a process has used of memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.comparing import Candidate

name = "torch"


def call(candidate: Candidate, x: Any, gradients: bool) -> Callable[[], Any]:
    """A function that returns y, or the gradients of sum(y^2) by x and by the parameters."""
    leaves = [t.detach().clone().requires_grad_(gradients) for t in _tensors(x)]
    given = tuple(leaves) if isinstance(x, tuple) else leaves[0]

    def forward() -> Tensor:
        with torch.no_grad():
            return candidate.function(given)

    def backward() -> tuple[Tensor, ...]:
        return torch.autograd.grad(candidate.function(given).square().sum(), [*leaves, *candidate.parameters])[
            : len(leaves)
        ]

    return backward if gradients else forward


def first(result: Any) -> list[np.ndarray]:
    """y, or the gradients by x."""
    return [tensor.detach().numpy() for tensor in _tensors(result)]


def of_module(module: nn.Module, function: Callable[..., Any] | None = None, **more: Any) -> Candidate:
    """A module as a candidate; `function` calls it where x alone is not enough."""
    return Candidate(function or module, [p for p in module.parameters() if p.requires_grad], **more)


def _tensors(x: Any) -> tuple[Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)


def given(x: Any) -> Any:
    """Arrays as tensors."""
    return tuple(map(torch.from_numpy, x)) if isinstance(x, tuple) else torch.from_numpy(x)
