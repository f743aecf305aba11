"""Arrays across the border between numpy and JAX, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np

from attn.call import dtype_name


def as_jax(name: str, array: np.ndarray) -> jax.Array:
    """A copy on the JAX side; float64 without x64 is refused by name, because JAX would silently round it."""
    check_x64(name, array)
    return jnp.array(array, copy=True)


def check_x64(name: str, array: np.ndarray | jax.Array) -> None:
    """Refuse what JAX would silently round: "bias needs jax_enable_x64, without which JAX rounds it; got ..." """
    if dtype_name(array) in ("float64", "int64") and not jax.config.jax_enable_x64:
        raise ValueError(f"{name} needs jax_enable_x64, without which JAX rounds it; got dtype {dtype_name(array)}.")


def as_numpy(array: jax.Array) -> np.ndarray:
    """A copy on the numpy side, bit for bit."""
    return np.array(array)
