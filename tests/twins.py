"""Both twins behind numpy arrays, so that one test can be run in each."""

from functools import lru_cache, partial
from typing import Any

import numpy as np

from attn.kernels import FORMS


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


def by_every_kernel(twin: Any, cfg: Any, *args: Any, compute: Any = None, **call: Any) -> dict[str, Any]:
    """What each kernel and form makes of a call, by its name, those aside that say they cannot run it.

    `compute` is the twin itself, unless its gradients are wanted.
    """
    found, compute = {}, compute or twin
    for kernel in twin.kernels + list(FORMS if cfg.variant == "latent" else ()):
        try:
            found[kernel] = compute(cfg, *args, options={"kernel": kernel}, **call)
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
