"""Where a step over blocks stands, and what it reads and writes there: slices of the whole arrays."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

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


def unturned(block: Float[Array, "R N G t D"]) -> Float[Array, "R t N G D"]:
    """What `queries_of` turned round, as it was."""
    return block.transpose(0, 3, 1, 2, 4)


def keys_of(plan: Plan, array: Float[Array, "B S K D"], at: Place, start: Any) -> Float[Array, "R N s D"]:
    """A block of keys or values, time after heads."""
    lengths = plan.rows, plan.block_k, plan.heads, array.shape[3]
    return part(array, (at.row, start, at.head, 0), lengths).swapaxes(1, 2)


def pairs_of(plan: Plan, array: Array, at: Place, start: Any) -> Array:
    """The part of [B|1 K|1 G|1 T S] that belongs to a block of queries and one of keys."""
    return part(array, pairs_at(plan, at, start), (plan.rows, plan.heads, plan.group, plan.block_q, plan.block_k))


def positions_of(plan: Plan, given: Given, at: Place, start: Any) -> tuple[Array, Array]:
    """Where the queries of a block and the keys of one stand, to be compared with one another."""
    if plan.by_index:
        q, k = at.i * plan.block_q + jnp.arange(plan.block_q), start + jnp.arange(plan.block_k)
        return q[:, None], k
    return queries_row(plan, given.q_positions, at), keys_row(plan, given.k_positions, at, start)


def queries_row(plan: Plan, array: Any, at: Place) -> Array:
    """The part of [B|1 T] that belongs to a block of queries, [R|1 1 1 t 1]."""
    return part(array, (at.row, at.i * plan.block_q), (plan.rows, plan.block_q))[:, None, None, :, None]


def keys_row(plan: Plan, array: Any, at: Place, start: Any) -> Array:
    """The part of [B|1 S] that belongs to a block of keys, [R|1 1 1 1 s]."""
    return part(array, (at.row, start), (plan.rows, plan.block_k))[:, None, None, None]
