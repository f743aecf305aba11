"""One block of scores: what the forward and the backward pass both compute, from slices of the whole arrays."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from attn.masks import Full
from attn_jax.functional import wide
from attn_jax.kernels.blocks_bounds import Bounds, Given, Plan, starts


class Place(NamedTuple):
    """Where a step stands: its number, its first row and first key/value head, its block of queries."""

    step: Any
    row: Any
    head: Any
    i: Any


class Grid(NamedTuple):
    """How steps divide the work: groups of rows, groups of key/value heads, blocks of queries, blocks of keys."""

    rows: int
    heads: int
    blocks_q: int
    blocks_k: int

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return self.rows * self.heads * self.blocks_q


def grid_of(plan: Plan, q: Float[Array, "B T K G D"], k: Float[Array, "B S K D"]) -> Grid:
    """The division of these arrays."""
    B, T, K = q.shape[:3]
    return Grid(B // plan.rows, K // plan.heads, T // plan.block_q, k.shape[1] // plan.block_k)


def place(plan: Plan, grid: Grid, step: Any) -> Place:
    """Where this step stands: the blocks of queries go round fastest, then the heads, then the rows."""
    group, i = step // grid.blocks_q, step % grid.blocks_q
    return Place(step, group // grid.heads * plan.rows, group % grid.heads * plan.heads, i)


def walk(plan: Plan, limits: Bounds | None, at: Place, visit: Callable[[Any, Any, bool], Any], carry: Any) -> Any:
    """`visit(start, carry, masked)` for each block of keys that a step must see, by its first key.

    Blocks that are full come first, then those that are masked.
    """
    if limits is None:
        return visit(jnp.asarray(starts(plan))[at.i], carry, True)
    group = at.row // plan.rows if limits.order.shape[0] > 1 else 0
    order, full, seen = (jnp.asarray(table)[group, at.i] for table in limits)
    known = isinstance(limits.full, np.ndarray)
    if not known or limits.full.any():
        carry = lax.fori_loop(0, full, lambda n, carry: visit(order[n] * plan.block_k, carry, False), carry)
    if not known or (limits.full < limits.seen).any():
        carry = lax.fori_loop(full, seen, lambda n, carry: visit(order[n] * plan.block_k, carry, True), carry)
    return carry


def part(array: Array, starts: tuple[Any, ...], lengths: tuple[int, ...]) -> Array:
    """A slice; along an axis of size 1 that one, whatever was asked for."""
    return lax.dynamic_slice(array, within(array, starts), tuple(map(min, array.shape, lengths)))


def within(array: Array, starts: tuple[Any, ...]) -> tuple[Any, ...]:
    """Where a slice starts; at 0 along an axis of size 1."""
    return tuple(0 if size == 1 else start for size, start in zip(array.shape, starts, strict=True))


def written(array: Array, starts: tuple[Any, ...], block: Array) -> Array:
    """The array with a block in that place."""
    return lax.dynamic_update_slice(array, block.astype(array.dtype), within(array, starts))


def added(array: Array, starts: tuple[Any, ...], block: Array) -> Array:
    """The array with a block added in that place; along an axis of which it has only one, the block's sum."""
    axes = tuple(axis for axis, size in enumerate(array.shape) if size == 1 < block.shape[axis])
    block = block.sum(axes, keepdims=True)
    return written(array, starts, part(array, starts, block.shape) + block)


def queries_at(plan: Plan, at: Place) -> tuple[Any, ...]:
    """Where a block of queries starts in [B T K G D]."""
    return at.row, at.i * plan.block_q, at.head, 0, 0


def pairs_at(plan: Plan, at: Place, start: Any) -> tuple[Any, ...]:
    """Where a block of pairs starts in [B|1 K|1 G|1 T S]."""
    return at.row, at.head, 0, at.i * plan.block_q, start


def queries_of(plan: Plan, array: Float[Array, "B T K G D"], at: Place) -> Float[Array, "R N G t D"]:
    """The block of queries of a step, time after heads: slices are cheaper to turn round than whole arrays."""
    lengths = plan.rows, plan.block_q, plan.heads, plan.group, array.shape[4]
    return part(array, queries_at(plan, at), lengths).transpose(0, 2, 3, 1, 4)


def keys_of(plan: Plan, array: Float[Array, "B S K D"], at: Place, start: Any) -> Float[Array, "R N s D"]:
    """A block of keys or values, time after heads."""
    lengths = plan.rows, plan.block_k, plan.heads, array.shape[3]
    return part(array, (at.row, start, at.head, 0), lengths).swapaxes(1, 2)


def pairs_of(plan: Plan, array: Array, at: Place, start: Any) -> Array:
    """The part of [B|1 K|1 G|1 T S] that belongs to a block of queries and one of keys."""
    return part(array, pairs_at(plan, at, start), (plan.rows, plan.heads, plan.group, plan.block_q, plan.block_k))


def folded(x: Float[Array, "R N G t D"]) -> Float[Array, "R N G*t D"]:
    """The queries of a group in one axis, so that one product serves them all."""
    return x.reshape(*x.shape[:2], -1, x.shape[-1])


def unturned(block: Float[Array, "R N G t D"]) -> Float[Array, "R t N G D"]:
    """What `queries_of` turned round, as it was."""
    return block.transpose(0, 3, 1, 2, 4)


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
    bias: Float[Array, "B|1 K|1 G|1 T S"] | None,
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
    if bias is not None:
        s = s + pairs_of(plan, bias, at, start).astype(s.dtype)
    if plan.slopes is not None:
        q_positions, k_positions = _positions(plan, given, at, start)
        slopes = jnp.asarray(plan.slopes, s.dtype).reshape(1, -1, plan.group, 1, 1)
        slopes = part(slopes, (0, at.head, 0, 0, 0), (1, plan.heads, plan.group, 1, 1))
        s = s - slopes * jnp.abs(q_positions - k_positions).astype(s.dtype)
    mask = visible(plan, given, at, start) if masked else None
    return s if mask is None else jnp.where(mask, s, -jnp.inf), dcap


def visible(plan: Plan, given: Given, at: Place, start: Any) -> Bool[Array, "R|1 N|1 G|1 t s"] | None:
    """Which query of a block may see which key of one; None when every one may see all."""
    parts = []
    if not isinstance(plan.rule, Full):
        parts.append(plan.rule.allows(*_positions(plan, given, at, start)))
    if given.k_valid is not None:
        parts.append(_keys_row(plan, given.k_valid, at, start))
    elif plan.keys % plan.block_k and not plan.single:
        parts.append(start + jnp.arange(plan.block_k) < plan.keys)
    if given.q_segments is not None and given.k_segments is not None:
        parts.append(_queries_row(plan, given.q_segments, at) == _keys_row(plan, given.k_segments, at, start))
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


def _positions(plan: Plan, given: Given, at: Place, start: Any) -> tuple[Array, Array]:
    if plan.by_index:
        q, k = at.i * plan.block_q + jnp.arange(plan.block_q), start + jnp.arange(plan.block_k)
        return q[:, None], k
    return _queries_row(plan, given.q_positions, at), _keys_row(plan, given.k_positions, at, start)


def _queries_row(plan: Plan, array: Any, at: Place) -> Array:
    return part(array, (at.row, at.i * plan.block_q), (plan.rows, plan.block_q))[:, None, None, :, None]


def _keys_row(plan: Plan, array: Any, at: Place, start: Any) -> Array:
    return part(array, (at.row, start), (plan.rows, plan.block_k))[:, None, None, None]
