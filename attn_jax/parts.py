"""Parameters: what a layout's parts are in Flax. A part checks and casts what it is given, then computes."""

from math import prod
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn import layout
from attn.config import Config
from attn_jax.functional import normalised


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


def attribute(leaf: layout.Leaf) -> str:
    """The last word of a leaf's name: the parameter of its part."""
    return leaf.name.rpartition(".")[2]


def product(x: Float[Array, "... inputs"], kernel: Float[Array, "inputs outputs"], axes: int) -> Float[Array, "..."]:
    """The sum over the last axes of x and the first of a kernel, so many of each."""
    if jax.default_backend() != "cpu":
        return jnp.tensordot(x, kernel, axes=axes)
    # A kernel of more than two axes, or x, would be copied in both passes, which takes as long as a small product.
    # Elsewhere copies are part of the product, and merged axes would be the loss of their sharding.
    lead, inputs, outputs = x.shape[: x.ndim - axes], prod(kernel.shape[:axes]), kernel.shape[axes:]
    return (x.reshape(-1, inputs) @ kernel.reshape(inputs, -1)).reshape(*lead, *outputs)


class Part(nn.Module):
    """A part of a layout with its parameters, each under the last word of its neutral name."""

    part: Any
    leaves: tuple[layout.Leaf, ...]
    dtype: Any = None

    def setup(self):
        for leaf in self.leaves:
            name = attribute(leaf)
            setattr(self, name, self.param(name, initializer(leaf.initial), leaf.shape))


class Projection(Part):
    """y = x @ kernel + bias; kernel [inputs outputs], bias [outputs]."""

    def __call__(self, x: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
        x, kernel = working(self.name, x, self.kernel, self.dtype)
        y = product(x, kernel, len(self.part.inputs.split()))
        return y + self.bias.astype(y.dtype) if self.part.bias else y

    @property
    def biased(self) -> bool:
        """Whether there is a bias."""
        return self.part.bias

    def into(self, heads: Float[Array, "B T H D"]) -> Float[Array, "B T H C"]:
        """Each head's own columns of a kernel [C H D], transposed: heads @ kernel_h^T."""
        heads, kernel = working(self.name, heads, self.kernel, self.dtype)
        return jnp.einsum("bthd,chd->bthc", heads, kernel)

    def onto_bias(self, heads: Float[Array, "B T H D"]) -> Float[Array, "B T H 1"]:
        """Each head's product with its bias [H D]."""
        heads, bias = working(self.name, heads, self.bias, self.dtype)
        return (heads * bias).sum(-1, keepdims=True)

    def by_head(
        self, latents: Float[Array, "B T H C"], total: Float[Array, "B T H 1"] | None
    ) -> Float[Array, "B T H E"]:
        """Each head's own latent through its own columns of a kernel [C H E], plus `total` times its bias."""
        latents, kernel = working(self.name, latents, self.kernel, self.dtype)
        y = jnp.einsum("bthc,che->bthe", latents, kernel)
        return y if total is None else y + total * self.bias.astype(y.dtype)


class Norm(Part):
    """Each vector over its root mean square, its deviation or its length, times scale (or 1 + scale), plus bias."""

    def __call__(self, x: Float[Array, "... M"]) -> Float[Array, "... M"]:
        part = self.part
        for parameter in self.leaves:
            working(self.name, x, getattr(self, attribute(parameter)), self.dtype)
        y = normalised(part.kind, x if self.dtype is None else x.astype(self.dtype), part.normalised, part.eps)
        y = y * (self.scale + 1 if part.offset else self.scale).astype(y.dtype) if part.learned else y
        y = y + self.bias.astype(y.dtype) if part.shift else y
        return y.astype(self.dtype or x.dtype)


class Table(Part):
    """Rows looked up by number; embedding [V M]. A number that has no row gives NaN."""

    def __call__(self, numbers: Int[Array, "B T"]) -> Float[Array, "B T M"]:
        table = self.embedding if self.dtype is None else self.embedding.astype(self.dtype)
        numbers = numbers.astype(jnp.promote_types(numbers.dtype, jnp.int32))
        # A negative number would count from the end; sent beyond it, it has no row either.
        numbers = jnp.where(numbers < 0, table.shape[0], numbers)
        return jnp.take(table, numbers, axis=0, mode="fill", fill_value=jnp.nan)

    def attend(self, x: Float[Array, "B T M"]) -> Float[Array, "B T V"]:
        """x @ embedding^T: the head that is tied to the table."""
        x, table = working(self.name, x, self.embedding, self.dtype)
        return product(x, table.T, 1)


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
