"""JAX: how candidates are called, and what the compiler says they need of memory."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.comparing import Candidate

name = "jax"


def call(candidate: Candidate, x: Any, gradients: bool) -> Callable[[], Any]:
    """A compiled function that waits for y, or for the gradients of sum(y^2) by x and by the parameters."""
    compiled = compile(candidate, x, gradients)
    return lambda: jax.block_until_ready(compiled(candidate.parameters, x))


def compile(candidate: Candidate, x: Any, gradients: bool) -> Any:
    """The compiled function of (parameters, x); with gradients it returns (by x, by the parameters)."""

    def loss(parameters: Any, x: Any) -> jax.Array:
        return jnp.square(candidate.function(parameters, x)).sum()

    def slopes(parameters: Any, x: Any) -> Any:
        by_parameters, by_x = jax.grad(loss, argnums=(0, 1))(parameters, x)
        return by_x, by_parameters

    return jax.jit(slopes if gradients else candidate.function).lower(candidate.parameters, x).compile()


def first(result: Any) -> list[np.ndarray]:
    """y, or the gradients by x."""
    found = result if isinstance(result, jax.Array) else jax.tree.leaves(result[0])
    return [np.asarray(array) for array in (found if isinstance(found, list) else [found])]


def given(x: Any) -> Any:
    """Arrays as JAX's."""
    return jax.tree.map(jnp.asarray, x)
