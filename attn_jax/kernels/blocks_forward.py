"""The forward pass over blocks: an online softmax, which sees each block of scores once and keeps none of them."""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from attn_jax.functional import wide
from attn_jax.kernels.blocks_bias import Bias
from attn_jax.kernels.blocks_bounds import Given, Plan, bounds
from attn_jax.kernels.blocks_places import (
    Place,
    grid_of,
    keys_of,
    part,
    place,
    queries_at,
    queries_of,
    unturned,
    walk,
    written,
)
from attn_jax.kernels.blocks_scores import folded, product, scaled, scores, thinned


def forward(
    plan: Plan,
    q: Float[Array, "B T K G D"],
    k: Float[Array, "B S K D"],
    v: Float[Array, "B S K E"],
    bias: Bias,
    sinks: Float[Array, "K G"] | None,
    given: Given,
) -> tuple[Float[Array, "B T K G E"], Float[Array, "B T K G 1"]]:
    """The attended values, and the log of each query's denominator: +inf for a query that sees nothing.

    Over the blocks j of keys, with m the largest score so far, l the sum and a the weighted values relative to it:

        m' = max(m, max s_j)    l' = l e^(m - m') + sum e^(s_j - m')    a' = a e^(m - m') + e^(s_j - m') v_j

    and at the end a / l and m + log l (Milakov and Gimelshein 2018, Rabe and Staats 2021).
    """
    grid, kind = grid_of(plan, q, k), wide(q.dtype)
    limits = None if plan.single else bounds(plan, given, grid.blocks_q, grid.blocks_k)
    shape = (plan.rows, plan.heads, plan.group, plan.block_q, 1)

    def step(done: Any, number: Any) -> Any:
        at = place(plan, grid, number)
        block = scaled(plan, folded(queries_of(plan, q, at)))

        def visit(start: Any, carry: Any, masked: bool) -> Any:
            peak, total, mixed = carry
            s, _ = scores(plan, given, at, start, block, keys_of(plan, k, at, start), bias, masked)
            higher = jnp.maximum(peak, s.max(-1, keepdims=True))
            level = _finite(higher)
            weights, fade = jnp.exp(s - level), jnp.exp(peak - level)
            total = total * fade + weights.sum(-1, keepdims=True)
            weights = folded(thinned(plan, given, at, start, weights)).astype(v.dtype)
            more = product("rnms,rnse->rnme", weights, keys_of(plan, v, at, start))
            return higher, total, mixed * fade + more.reshape(mixed.shape)

        empty = jnp.full(shape, -jnp.inf, kind), jnp.zeros(shape, kind), jnp.zeros((*shape[:4], v.shape[3]), kind)
        peak, total, mixed = _joined(plan, sinks, at, walk(plan, limits, at, visit, empty))
        blind = total == 0
        attended = mixed / jnp.where(blind, 1, total)
        lse = jnp.where(blind, jnp.inf, peak + jnp.log(total))
        starts = queries_at(plan, at)
        return (written(done[0], starts, unturned(attended)), written(done[1], starts, unturned(lse))), None

    empty = jnp.zeros((*q.shape[:4], v.shape[3]), v.dtype), jnp.zeros((*q.shape[:4], 1), kind)
    return lax.scan(step, empty, jnp.arange(grid.steps))[0]


def _joined(plan: Plan, sinks: Array | None, at: Place, carry: Any) -> Any:
    """The sums after a head's sink has joined the denominator."""
    if sinks is None:
        return carry
    peak, total, mixed = carry
    sink = part(sinks, (at.head, 0), (plan.heads, plan.group))[..., None, None].astype(peak.dtype)
    higher = jnp.maximum(peak, sink)
    level = _finite(higher)
    fade = jnp.exp(peak - level)
    return higher, total * fade + jnp.exp(sink - level), mixed * fade


def _finite(peak: Array) -> Array:
    # Where nothing has been seen yet, -inf - -inf must not become NaN.
    return jnp.where(peak == -jnp.inf, 0, peak)
