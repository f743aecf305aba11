"""Compiling one step of a generation, so that Python is left out of it."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

BACKEND = "inductor"
"""What PyTorch compiles with."""


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as one graph: compiled when it is called, and again only for another model or kind of batch."""
    return _compiled(function, BACKEND)


@cache
def _compiled(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    return torch.compile(function, fullgraph=True, backend=backend)
