"""The backward pass over blocks: the scores are computed again, from the log of each query's denominator."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from attn_jax.functional import wide
from attn_jax.kernels.blocks_bias import Bias, bias_added
from attn_jax.kernels.blocks_bounds import Given, Plan, bounds
from attn_jax.kernels.blocks_places import (
    added,
    grid_of,
    keys_of,
    place,
    queries_at,
    queries_of,
    unturned,
    walk,
    written,
)
from attn_jax.kernels.blocks_scores import folded, product, scaled, scores, thinned


def backward(
    plan: Plan,
    q: Float[Array, "B T K G D"],
    k: Float[Array, "B S K D"],
    v: Float[Array, "B S K E"],
    bias: Bias,
    sinks: Float[Array, "K G"] | None,
    given: Given,
    attended: Float[Array, "B T K G E"],
    lse: Float[Array, "B T K G 1"],
    dy: Float[Array, "B T K G E"],
) -> tuple[Array, Array, Array, Bias, Array | None]:
    """The gradients of q, k, v, bias and sinks; `dy` is that of the attended values y.

    With the weights p = e^(s - lse), and r what dropout left of them, in one pass over the blocks, queries outer:

        dv += r^T dy    dr = dy v^T    ds = r dr - p delta    dq += ds k * scale    dk += ds^T q * scale

    and for a sink, a key without a value, -sum_t e^(sink - lse) delta, with delta = dy . y (Dao et al. 2022).
    """
    grid, kind = grid_of(plan, q, k), wide(q.dtype)
    limits = None if plan.single else bounds(plan, given, grid.blocks_q, grid.blocks_k)
    delta = (dy.astype(kind) * attended.astype(kind)).sum(-1, keepdims=True)

    def step(sums: Any, number: Any) -> Any:
        at = place(plan, grid, number)
        block, dblock = scaled(plan, folded(queries_of(plan, q, at))), folded(queries_of(plan, dy, at))
        block_lse, block_delta = queries_of(plan, lse, at), queries_of(plan, delta, at)

        def visit(start: Any, carry: Any, masked: bool) -> Any:
            here, (dq, dk, dv, dbias) = carry
            keys, where = keys_of(plan, k, at, start), (at.row, at.head, 0, start)
            s, dcap = scores(plan, given, at, start, block, keys, bias, masked)
            weights = jnp.exp(s - block_lse)
            left = folded(thinned(plan, given, at, start, weights)).astype(dblock.dtype)
            dv = added(dv, where, product("rnme,rnms->rnes", dblock, left))
            dweights = product("rnme,rnse->rnms", dblock, keys_of(plan, v, at, start)).reshape(s.shape)
            ds = weights * (thinned(plan, given, at, start, dweights) - block_delta)
            dbias = bias_added(plan, given, at, start, dbias, ds)
            ds = folded(ds if dcap is None else ds * dcap).astype(block.dtype)
            dk = added(dk, where, product("rnmd,rnms->rnds", block, ds))
            return here + product("rnms,rnsd->rnmd", ds, keys), (dq, dk, dv, dbias)

        here, (dq, *rest) = walk(plan, limits, at, visit, (jnp.zeros(block.shape, kind), sums))
        here = here.reshape(*block_lse.shape[:4], -1) * plan.scale
        return (written(dq, queries_at(plan, at), unturned(here)), *rest), None

    # Keys last: these products are a third faster than those that would put them first.
    empty = (jnp.zeros((x.shape[0], x.shape[2], x.shape[3], x.shape[1]), kind) for x in (k, v))
    dbias = jax.tree.map(lambda array: jnp.zeros(array.shape, kind), bias)
    (dq, dk, dv, dbias), _ = lax.scan(step, (jnp.zeros_like(q), *empty, dbias), jnp.arange(grid.steps))
    dk, dv = (jnp.moveaxis(x, 3, 1) for x in (dk, dv))
    # Where q was too narrow to be multiplied by the scale, so is dk.
    dk = dk if q.dtype == kind else dk * plan.scale
    dbias = jax.tree.map(lambda gradient, array: gradient.astype(array.dtype), dbias, bias)
    return dq, dk.astype(k.dtype), dv.astype(v.dtype), dbias, _of_sinks(sinks, lse, delta)


def _of_sinks(sinks: Array | None, lse: Array, delta: Array) -> Array | None:
    if sinks is None:
        return None
    weights = jnp.exp(sinks.astype(lse.dtype)[..., None] - lse)
    return -(weights * delta).sum((0, 1, 4)).astype(sinks.dtype)
