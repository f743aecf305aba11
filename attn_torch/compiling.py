"""Compiling one step of a generation, so that Python is left out of it."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import nn

BACKEND: Any = "inductor"
"""What PyTorch compiles with."""


def compiled(function: Callable[..., Any], module: nn.Module) -> Callable[..., Any]:
    """function(module, ...) as one graph, compiled when it is called, and again only for another kind of batch.

    PyTorch would ask a thousand questions of the module at each call, which take as long as the step. They have one
    answer as long as the module's form stays the same, so this is what is asked instead.
    """
    step, form = _compiled(function, BACKEND), form_of(module)
    return partial(step, form, module)


@cache
def _compiled(function: Callable[..., Any], backend: Any) -> Callable[..., Any]:
    def step(form, module, *args):
        # What is read here is compared at each call.
        return function(module, *args) if form else None

    options: dict[str, Any] = {"guard_filter_fn": _asked}
    if backend == "inductor":
        options["cpp_wrapper"] = True
    return torch.compile(step, fullgraph=True, backend=backend, options=options)


def _asked(guards: Sequence[Any]) -> list[bool]:
    return [not (guard.is_global or guard.name.startswith("module")) for guard in guards]


def form_of(module: nn.Module) -> str:
    """All that compiled code takes for granted of a module: its config, its parts with their hooks, its arrays."""
    parts = [
        f"{type(part).__qualname__} {id(type(part))} {part.training} {list(part._forward_hooks)} "
        f"{list(part._forward_pre_hooks)}"
        for part in module.modules()
    ]
    arrays = [f"{name} {array.dtype} {array.device} {tuple(array.shape)}" for name, array in module.named_parameters()]
    return "\n".join([module.cfg.to_json(), f"{module.dtype} {module.kernel}", *parts, *arrays])
