"""One block of scores: what the forward and the backward pass both compute, from slices of the whole arrays."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attn.masks import Full
from attn_jax.functional import wide
from attn_jax.kernels.blocks_bias import Bias, biased
from attn_jax.kernels.blocks_bounds import Given, Plan
from attn_jax.kernels.blocks_places import Place, keys_row, pairs_of, positions_of, queries_row


def folded(x: Float[Array, "R N G t D"]) -> Float[Array, "R N G*t D"]:
    """The queries of a group in one axis, so that one product serves them all."""
    return x.reshape(*x.shape[:2], -1, x.shape[-1])


def scaled(plan: Plan, x: Array) -> Array:
    """x times the scale, where its dtype is as wide as the scores': then they need not be multiplied."""
    return x * plan.scale if x.dtype == wide(x.dtype) else x


def product(text: str, a: Array, b: Array) -> Array:
    """An einsum whose sums are at least float32."""
    return jnp.einsum(text, a, b, preferred_element_type=wide(a.dtype))


def scores(
    plan: Plan,
    given: Given,
    at: Place,
    start: Any,
    q: Float[Array, "R N G*t D"],
    k: Float[Array, "R N s D"],
    bias: Bias,
    masked: bool,
) -> tuple[Float[Array, "R N G t s"], Float[Array, "R N G t s"] | None]:
    """The scores of a block, -inf where a query may not see a key, and the derivative of the soft-cap there.

    `q` has been multiplied by the scale where that costs no precision; see `scaled`.
    """
    s, dcap = product("rnmd,rnsd->rnms", q, k), None
    s = s.reshape(*s.shape[:2], plan.group, plan.block_q, plan.block_k)
    s = s if s.dtype == q.dtype else s * plan.scale
    if plan.softcap is not None:
        bent = jnp.tanh(s / plan.softcap)
        s, dcap = plan.softcap * bent, 1 - bent * bent
    s = biased(plan, given, at, start, s, bias)
    mask = visible(plan, given, at, start) if masked else None
    return s if mask is None else jnp.where(mask, s, -jnp.inf), dcap


def visible(plan: Plan, given: Given, at: Place, start: Any) -> Bool[Array, "R|1 N|1 G|1 t s"] | None:
    """Which query of a block may see which key of one; None when every one may see all."""
    parts = []
    if not isinstance(plan.rule, Full):
        parts.append(plan.rule.allows(*positions_of(plan, given, at, start)))
    if given.k_valid is not None:
        parts.append(keys_row(plan, given.k_valid, at, start))
    elif plan.keys % plan.block_k and not plan.single:
        parts.append(start + jnp.arange(plan.block_k) < plan.keys)
    if given.q_segments is not None and given.k_segments is not None:
        parts.append(queries_row(plan, given.q_segments, at) == keys_row(plan, given.k_segments, at, start))
    if given.allowed is not None:
        parts.append(pairs_of(plan, given.allowed, at, start))
    mask = None
    for piece in parts:
        mask = piece if mask is None else mask & piece
    return mask


def thinned(plan: Plan, given: Given, at: Place, start: Any, weights: Float[Array, "R N G t s"]) -> Array:
    """What dropout leaves of the weights of a block, by the block's own key: both passes draw the same."""
    if plan.dropout == 0:
        return weights
    key = jax.random.fold_in(jax.random.fold_in(given.rng, at.step), start)
    keep = jax.random.bernoulli(key, 1 - plan.dropout, weights.shape)
    return jnp.where(keep, weights / (1 - plan.dropout), 0)
