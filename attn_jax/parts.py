"""Parameters: what a layout's parts are in Flax. A part checks and casts what it is given, then computes."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn import layout
from attn.config import Config
from attn.positions import FINE, LONGEST, Rope, rotary_tables
from attn_jax.functional import layer_norm, rms_norm


def initializer(initial: layout.Initial) -> jax.nn.initializers.Initializer:
    """The distribution that the layout declares, which `attn.init_weights` draws from too."""
    if initial.std == 0:
        return jax.nn.initializers.constant(initial.mean)
    if initial.cut:
        return jax.nn.initializers.truncated_normal(initial.std)
    return jax.nn.initializers.normal(initial.std)


def working(name: str, x: Array, parameter: Array, dtype: Any) -> tuple[Array, Array]:
    """x and a parameter in the dtype of the computation: `dtype`, or the parameter's own, which x must then have.

    Raises:
        ValueError: "x of q has dtype float64; expected float32, the dtype of its parameters."
    """
    if dtype is not None:
        return x.astype(dtype), parameter.astype(dtype)
    if x.dtype != parameter.dtype:
        raise ValueError(f"x of {name} has dtype {x.dtype}; expected {parameter.dtype}, the dtype of its parameters.")
    return x, parameter


class Part(nn.Module):
    """A part of a layout with its parameters, each under the last word of its neutral name."""

    part: Any
    leaves: tuple[layout.Leaf, ...]
    dtype: Any = None

    def setup(self):
        for leaf in self.leaves:
            name = leaf.name.rpartition(".")[2]
            setattr(self, name, self.param(name, initializer(leaf.initial), leaf.shape))


class Projection(Part):
    """y = x @ kernel + bias; kernel [inputs outputs], bias [outputs]."""

    def __call__(self, x: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
        x, kernel = working(self.name, x, self.kernel, self.dtype)
        y = jnp.tensordot(x, kernel, axes=len(self.part.inputs.split()))
        return y + self.bias.astype(y.dtype) if self.part.bias else y


class Norm(Part):
    """RMS or layer norm over the last axis; scale [M], and bias [M] for the layer norm."""

    def __call__(self, x: Float[Array, "... M"]) -> Float[Array, "... M"]:
        x, scale = working(self.name, x, self.scale, self.dtype)
        if self.part.kind == "layer":
            return layer_norm(x, scale, self.bias, self.part.eps)
        return rms_norm(x, scale, self.part.eps)


class Table(Part):
    """Rows looked up by number; embedding [V M]. A number that has no row gives NaN."""

    def __call__(self, numbers: Int[Array, "B T"]) -> Float[Array, "B T M"]:
        table = self.embedding if self.dtype is None else self.embedding.astype(self.dtype)
        # A negative number would count from the end; sent beyond it, it has no row either.
        numbers = jnp.where(numbers < 0, table.shape[0], numbers)
        return jnp.take(table, numbers, axis=0, mode="fill", fill_value=jnp.nan)

    def attend(self, x: Float[Array, "B T M"]) -> Float[Array, "B T V"]:
        """x @ embedding^T: the head that is tied to the table."""
        x, table = working(self.name, x, self.embedding, self.dtype)
        return jnp.einsum("btm,vm->btv", x, table)


class Rotary(nn.Module):
    """Cosines and sines of a rope's angles at any position; no parameters."""

    rope: Rope
    width: int

    def __call__(self, positions: Int[Array, "B T"], dtype: Any) -> tuple[Float[Array, "B T R/2"], ...]:
        """cos and sin in `dtype`; NaN at a position outside 0..LONGEST-1."""
        cos, sin = (jnp.asarray(table, dtype) for table in rotary_tables(self.rope, self.width))
        coarse, fine = positions // FINE, positions % FINE
        cos_fine, sin_fine, cos_coarse, sin_coarse = cos[0][fine], sin[0][fine], cos[1][coarse], sin[1][coarse]
        inside = ((positions >= 0) & (positions < LONGEST))[..., None]
        turned_cos = cos_fine * cos_coarse - sin_fine * sin_coarse
        turned_sin = sin_fine * cos_coarse + cos_fine * sin_coarse
        return jnp.where(inside, turned_cos, jnp.nan), jnp.where(inside, turned_sin, jnp.nan)


PARTS = {layout.Projection: Projection, layout.Scale: Norm, layout.Table: Table}


def declare(module: nn.Module, cfg: Config, dtype: Any) -> None:
    """Give a module the parts of its config's layout, each under its own name."""
    sizes = cfg.sizes()
    for name, part in cfg.layout().items():
        leaves = tuple(part.leaves(name, sizes))
        if isinstance(part, layout.Vector):
            setattr(module, name, module.param(name, initializer(leaves[0].initial), leaves[0].shape))
        else:
            setattr(module, name, PARTS[type(part)](part, leaves, dtype))
