"""Which blocks of keys each block of queries must look at, and which of those need no mask."""

from collections.abc import Callable
from functools import reduce
from operator import and_, or_
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Int

from attn.kernels import span
from attn.masks import FAR, AllOf, AnyOf, Causal, Chunked, Full, Prefix, Rule, SlidingWindow

CORNERED = (Full, Causal, SlidingWindow, Chunked, Prefix)
"""The rules that allow all pairs of two ranges if they allow the pairs of the ranges' ends."""

AREA = 1024 * 256
"""About how many scores one step computes: they stay in a core's cache, and the loop around them costs little."""

SMALL = 128
"""The queries and the keys of a small block."""

NARROW = 512
"""Where a query sees at most so many keys, blocks are small: large ones would mostly be hidden."""


class Plan(NamedTuple):
    """What is known of a call before it runs; `jit` takes it as it is.

    Attributes:
        rule: which positions see which.
        scale: the multiplier of the scores.
        softcap: c in c * tanh(scores / c).
        slopes: ALiBi's, one a head.
        dropout: the probability with which a weight is dropped.
        keys: S, before the last block is filled up.
        by_index: positions are indices on both sides.
        group: G, the query heads of a key/value head.
        block_q: the queries of a block.
        block_k: the keys of a block.
        rows: how many rows of the batch one step computes.
        heads: how many key/value heads one step computes.
        single: a block of queries sees one block of keys, which starts anywhere: `starts` says where.
    """

    rule: Rule
    scale: float
    softcap: float | None
    slopes: tuple[float, ...] | None
    dropout: float
    keys: int
    by_index: bool
    group: int
    block_q: int
    block_k: int
    rows: int
    heads: int
    single: bool = False


class Given(NamedTuple):
    """What a call brings along beside what it is differentiated by; None for what it does not need."""

    q_positions: Int[Array, "B|1 T"] | None
    k_positions: Int[Array, "B|1 S"] | None
    q_valid: Bool[Array, "B T"] | None
    k_valid: Bool[Array, "B S"] | None
    q_segments: Int[Array, "B|1 T"] | None
    k_segments: Int[Array, "B|1 S"] | None
    allowed: Bool[Array, "B|1 K|1 G|1 T S"] | None
    rng: Array | None


class Bounds(NamedTuple):
    """For each block of queries the blocks of keys in the order in which they are visited.

    Attributes:
        order: first those that need no mask, then those that do, then those that nothing of the block can see.
        full: how many need no mask.
        seen: how many are visited.
    """

    order: Any
    full: Any
    seen: Any


def block_sizes(rule: Rule, queries: int, keys: int, group: int, by_index: bool) -> tuple[int, int, bool]:
    """The queries and the keys of a block, and whether one block of keys is all that a block of queries can see.

    Blocks are of nearly equal size: large ones where a query sees many keys, small ones where it sees few. A window
    that would lie in three small blocks is read at once instead; chunks begin where blocks do.
    """
    seen = min(sum(span(rule)) + 1, keys)
    if SMALL < seen <= NARROW and by_index and not isinstance(rule, Chunked):
        block_q = _even(queries, max(64, 256 // group))
        low, high = _seen(rule, queries, block_q)
        width = -(-int((high - low).max() + 1) // 8) * 8
        if 2 * width <= keys:
            return block_q, width, True
    q, k = (SMALL, SMALL) if seen <= NARROW else (1024, 256)
    return _even(queries, max(64, q // group)), _even(keys, k), False


def starts(plan: Plan) -> np.ndarray:
    """The first key of the one block that each block of queries sees; it ends where they see no further."""
    _, high = _seen(plan.rule, plan.keys, plan.block_q)
    return np.maximum(high + 1 - plan.block_k, 0)


def _seen(rule: Rule, length: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest index that each block of queries sees."""
    first = np.arange(0, length, block)
    low, high = rule.reach(first, np.minimum(first + block, length) - 1)
    return np.clip(low, 0, length - 1), np.clip(high, 0, length - 1)


def _even(size: int, block: int) -> int:
    number = -(-size // block)
    return -(-size // (8 * number)) * 8


def divisor(size: int, limit: int) -> int:
    """The largest divisor of `size` that is not above `limit`, and at least 1."""
    return next(d for d in range(max(1, min(size, limit)), 0, -1) if size % d == 0)


def bounds(plan: Plan, given: Given, blocks_q: int, blocks_k: int) -> Bounds:
    """The blocks to visit, for each group of rows that are computed together: [groups|1, blocks of queries, ...].

    A block is left out if its lowest and highest positions, its segments, its validity or `allowed` say that no query
    can see any of its keys. It needs no mask if they say that every query sees all of them.
    """
    q, k = _sides(plan, given, blocks_q, blocks_k)
    queries, keys = (q.low[:, :, None], q.high[:, :, None]), (k.low[:, None], k.high[:, None])
    touched = touches(plan.rule, queries, keys) & (queries[0] <= queries[1]) & (keys[0] <= keys[1])
    covered = covers(plan.rule, queries, keys) & k.all[:, None]
    if given.q_segments is not None and given.k_segments is not None:
        (q_low, q_high), (k_low, k_high) = _segments(given.q_segments, blocks_q), _segments(given.k_segments, blocks_k)
        touched = touched & (k_low[:, None] <= q_high[:, :, None]) & (k_high[:, None] >= q_low[:, :, None])
        covered = covered & (k_low[:, None] == q_high[:, :, None]) & (k_high[:, None] == q_low[:, :, None])
    if given.allowed is not None:
        some, every = _allowed(given.allowed, blocks_q, blocks_k)
        touched, covered = touched & some, covered & every
    return _ordered(touched, touched & covered, plan.rows)


def touches(rule: Rule, q: tuple[Any, Any], k: tuple[Any, Any]) -> Any:
    """Whether a query between q[0] and q[1] might see a key between k[0] and k[1]."""
    low, high = rule.reach(*q)
    touched = (k[1] >= low) & (k[0] <= high)
    if isinstance(rule, AllOf | AnyOf):
        touched = touched & _composed(rule, touches, q, k)
    return touched


def covers(rule: Rule, q: tuple[Any, Any], k: tuple[Any, Any]) -> Any:
    """Whether every query between q[0] and q[1] surely sees every key between k[0] and k[1]."""
    if isinstance(rule, AllOf | AnyOf):
        return _composed(rule, covers, q, k)
    corners = rule.allows(q[0], k[0]) & rule.allows(q[0], k[1]) & rule.allows(q[1], k[0]) & rule.allows(q[1], k[1])
    return corners if isinstance(rule, CORNERED) else corners & False


def _composed(rule: AllOf | AnyOf, question: Callable[..., Any], q: tuple[Any, Any], k: tuple[Any, Any]) -> Any:
    answers = [question(part, q, k) for part in rule.of]
    return reduce(and_ if isinstance(rule, AllOf) else or_, answers)


class _Side(NamedTuple):
    """The lowest and highest position of each block's real tokens, and whether all of its tokens are real."""

    low: Any
    high: Any
    all: Any


def _sides(plan: Plan, given: Given, blocks_q: int, blocks_k: int) -> tuple[_Side, _Side]:
    q, k = np.arange(blocks_q * plan.block_q)[None], np.arange(blocks_k * plan.block_k)[None]
    q_valid = q >= 0 if given.q_valid is None else given.q_valid
    k_valid = k < plan.keys if given.k_valid is None else given.k_valid
    if not plan.by_index:
        q, k = given.q_positions, given.k_positions
    return _side(q, q_valid, blocks_q), _side(k, k_valid, blocks_k)


def _side(positions: Any, real: Any, blocks: int) -> _Side:
    positions = (positions + 0 * real).reshape(-1, blocks, positions.shape[1] // blocks)
    real = real.reshape(real.shape[0], blocks, -1) | (positions < -FAR)
    low, high = positions.min(-1, where=real, initial=FAR), positions.max(-1, where=real, initial=-FAR)
    return _Side(low, high, real.all(-1))


def _segments(segments: Any, blocks: int) -> tuple[Any, Any]:
    segments = segments.reshape(segments.shape[0], blocks, -1)
    return segments.min(-1), segments.max(-1)


def _allowed(allowed: Any, blocks_q: int, blocks_k: int) -> tuple[Any, Any]:
    B, K, G, T, S = allowed.shape
    allowed = allowed.reshape(B, K, G, blocks_q, T // blocks_q, blocks_k, S // blocks_k)
    return allowed.any((1, 2, 4, 6)), allowed.all((1, 2, 4, 6))


def _ordered(touched: Any, covered: Any, rows: int) -> Bounds:
    batch, blocks_q, blocks_k = touched.shape
    if batch > 1:
        touched = touched.reshape(batch // rows, rows, blocks_q, blocks_k).any(1)
        covered = covered.reshape(batch // rows, rows, blocks_q, blocks_k).all(1)
    order = (2 - touched.astype(np.int32) - covered).argsort(-1, stable=True)
    return Bounds(order, covered.sum(-1), touched.sum(-1))
