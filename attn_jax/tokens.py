"""What is known of the tokens of a call: where each stands, whether it is real, and which segment it belongs to."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from attn_jax.functional import select


class Tokens(NamedTuple):
    """One side of a call. A leading size of 1 stands for every row; None for "all valid" and "one segment"."""

    positions: Int[Array, "B|1 T"]
    valid: Bool[Array, "B T"] | None
    segments: Int[Array, "B|1 T"] | None


class Counts(NamedTuple):
    """How far each row has come: its valid tokens, where its segment began, that segment's number and its ordinal."""

    length: Int[Array, "B"]
    start: Int[Array, "B"]
    segment: Int[Array, "B"]
    run: Int[Array, "B"]


def no_counts(batch: int) -> Counts:
    """Rows in which nothing has been read yet."""
    return Counts(*(jnp.zeros(batch, jnp.int32) for _ in Counts._fields))


def rows(array: Array | None, batch: int) -> Array | None:
    """[B T] from [T] or [B T], integers in one type in which no difference of theirs wraps; None stays None."""
    if array is None:
        return None
    array = array if array.dtype == bool else array.astype(jnp.promote_types(array.dtype, jnp.int32))
    return jnp.broadcast_to(array, (batch, array.shape[-1]))


def describe(
    batch: int,
    length: int,
    *,
    positions: Int[Array, "B T"] | None = None,
    valid: Bool[Array, "B T"] | None = None,
    segments: Int[Array, "B T"] | None = None,
    counts: Counts | None = None,
) -> tuple[Tokens, Counts | None, Int[Array, "B|1 T"]]:
    """The tokens of a call, the counts after it, and the number of valid tokens before each one in its row.

    Default positions start at 0 in each segment; with `counts` they go on where the row stopped. A segment is a run of
    equal numbers among the valid tokens, so the tokens' `segments` are ordinals of runs.
    """
    valid, segments = rows(valid, batch), rows(segments, batch)
    before = jnp.arange(length)[None] if valid is None else jnp.cumsum(valid, axis=1) - valid
    if counts is not None:
        before = before + counts.length[:, None]
    if segments is None:
        default = before if counts is None else before - counts.start[:, None]
        run = None if counts is None else jnp.broadcast_to(counts.run[:, None], (batch, length))
        start = number = None
    else:
        change, number = _changes(valid, segments, counts)
        run = jnp.cumsum(change, axis=1) + (0 if counts is None else counts.run[:, None])
        began = 0 if counts is None else counts.start[:, None]
        start = jnp.maximum(lax.cummax(jnp.where(change, before, 0), axis=1), began)
        default = before - start
    tokens = Tokens(default if positions is None else select(valid, rows(positions, batch)), valid, run)
    return tokens, _advance(counts, length, valid, start, number, run), before


def _changes(valid, segments, counts):
    """Where a new run begins, and each row's last number: a valid token is compared with the valid one before it."""
    B, T = segments.shape
    first = jnp.zeros((B, 1), segments.dtype) if counts is None else counts.segment[:, None]
    index = jnp.broadcast_to(jnp.arange(1, T + 1), (B, T))
    latest = lax.cummax(index if valid is None else jnp.where(valid, index, 0), axis=1)
    latest = jnp.pad(latest, ((0, 0), (1, 0)))
    previous = latest[:, :-1]
    numbers = jnp.concatenate([first.astype(segments.dtype), segments], axis=1)
    change = segments != jnp.take_along_axis(numbers, previous, axis=1)
    begun = previous > 0 if counts is None else (previous > 0) | (counts.length > 0)[:, None]
    change = change & begun if valid is None else change & begun & valid
    return change, jnp.take_along_axis(numbers, latest[:, -1:], axis=1)[:, 0]


def _advance(counts, length, valid, start, number, run):
    """The counts after the call; a call without segments goes on with the row's last one."""
    if counts is None or length == 0:
        return counts
    total = counts.length + (length if valid is None else valid.sum(1, dtype=counts.length.dtype))
    if number is None:
        return counts._replace(length=total)
    return Counts(total, start[:, -1], number.astype(jnp.int32), run[:, -1])


def lengths(tokens: Tokens) -> Int[Array, "B|1 T|1"]:
    """The largest valid position + 1 of each token's own sequence: its segment, or its row."""
    positions = select(tokens.valid, tokens.positions)
    if tokens.segments is None:
        return positions.max(axis=1, keepdims=True, initial=0) + 1
    # Beside a context segments are the numbers that both sides share; a number that comes back begins another run.
    change, _ = _changes(tokens.valid, tokens.segments, None)
    runs = jnp.cumsum(change, axis=1)
    row = jnp.arange(len(runs))[:, None]
    return jnp.zeros(runs.shape, positions.dtype).at[row, runs].max(positions)[row, runs] + 1


def last(logits: Float[Array, "B T V"], valid: Bool[Array, "B T"] | None) -> Float[Array, "B V"]:
    """The logits of each row's last valid token."""
    if valid is None:
        return logits[:, -1]
    T = logits.shape[1]
    index = jnp.where(valid, jnp.arange(T), 0).max(axis=-1)
    return jnp.take_along_axis(logits, jnp.broadcast_to(index, logits.shape[:1])[:, None, None], axis=1)[:, 0]
