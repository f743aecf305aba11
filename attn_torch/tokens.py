"""What is known of the tokens of a call: where each stands, whether it is real, and which segment it belongs to."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attn_torch.functional import select


class Tokens(NamedTuple):
    """One side of a call. A leading size of 1 stands for every row; None for "all valid" and "one segment"."""

    positions: Int[Tensor, "B|1 T"]
    valid: Bool[Tensor, "B T"] | None
    segments: Int[Tensor, "B|1 T"] | None


class Counts(NamedTuple):
    """How far each row has come: its valid tokens, where its segment began, that segment's number and its ordinal."""

    length: Int[Tensor, "B"]
    start: Int[Tensor, "B"]
    segment: Int[Tensor, "B"]
    run: Int[Tensor, "B"]


def no_counts(batch: int, device: torch.device | None = None) -> Counts:
    """Rows in which nothing has been read yet."""
    return Counts(*(torch.zeros(batch, dtype=torch.long, device=device) for _ in Counts._fields))


def rows(array: Tensor | None, batch: int) -> Tensor | None:
    """[B T] from [T] or [B T], integers in one type in which no difference of theirs wraps; None stays None."""
    if array is None:
        return None
    return (array if array.dtype == torch.bool else array.long()).expand(batch, array.shape[-1])


def describe(
    batch: int,
    length: int,
    *,
    positions: Int[Tensor, "B T"] | None = None,
    valid: Bool[Tensor, "B T"] | None = None,
    segments: Int[Tensor, "B T"] | None = None,
    counts: Counts | None = None,
    device: torch.device | None = None,
) -> tuple[Tokens, Counts | None, Int[Tensor, "B|1 T"]]:
    """The tokens of a call, the counts after it, and the number of valid tokens before each one in its row.

    Default positions start at 0 in each segment; with `counts` they go on where the row stopped. A segment is a run of
    equal numbers among the valid tokens, so the tokens' `segments` are ordinals of runs.
    """
    valid, segments = rows(valid, batch), rows(segments, batch)
    before = torch.arange(length, device=device)[None] if valid is None else torch.cumsum(valid, dim=1) - valid.long()
    if counts is not None:
        before = before + counts.length[:, None]
    if segments is None:
        default = before if counts is None else before - counts.start[:, None]
        run = None if counts is None else counts.run[:, None].expand(batch, length)
        start = number = None
    else:
        change, number = _changes(valid, segments, counts)
        run = torch.cumsum(change, dim=1) + (0 if counts is None else counts.run[:, None])
        start = torch.cummax(torch.where(change, before, 0), dim=1).values
        start = start if counts is None else torch.maximum(start, counts.start[:, None])
        default = before - start
    tokens = Tokens(default if positions is None else select(valid, rows(positions, batch)), valid, run)
    return tokens, _advance(counts, length, valid, start, number, run), before


def _changes(valid, segments, counts):
    """Where a new run begins, and each row's last number: a valid token is compared with the valid one before it."""
    B, T = segments.shape
    first = segments.new_zeros(B, 1) if counts is None else counts.segment[:, None]
    index = torch.arange(1, T + 1, device=segments.device).expand(B, T)
    latest = F.pad(torch.cummax(index if valid is None else torch.where(valid, index, 0), dim=1).values, (1, 0))
    previous = latest[:, :-1]
    numbers = torch.cat([first.to(segments.dtype), segments], dim=1)
    change = segments != torch.gather(numbers, 1, previous)
    begun = previous > 0 if counts is None else (previous > 0) | (counts.length > 0)[:, None]
    change = change & begun if valid is None else change & begun & valid
    return change, torch.gather(numbers, 1, latest[:, -1:])[:, 0]


def _advance(counts, length, valid, start, number, run):
    """The counts after the call; a call without segments goes on with the row's last one."""
    if counts is None or length == 0:
        return counts
    total = counts.length + (length if valid is None else valid.sum(1))
    if number is None:
        return counts._replace(length=total)
    return Counts(total, start[:, -1], number.long(), run[:, -1])


def lengths(tokens: Tokens) -> Int[Tensor, "B|1 T|1"]:
    """The largest valid position + 1 of each token's own sequence: its segment, or its row."""
    positions = select(tokens.valid, tokens.positions)
    if tokens.segments is None:
        return positions.amax(dim=1, keepdim=True) + 1 if positions.shape[1] else positions
    # Beside a context segments are the numbers that both sides share; a number that comes back begins another run.
    change, _ = _changes(tokens.valid, tokens.segments, None)
    runs = change.cumsum(1)
    positions = positions.expand(runs.shape)
    return torch.zeros_like(positions).scatter_reduce(1, runs, positions, "amax").gather(1, runs) + 1


def last(logits: Float[Tensor, "B T V"], valid: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B V"]:
    """The logits of each row's last valid token."""
    if valid is None:
        return logits[:, -1]
    T = logits.shape[1]
    index = torch.where(valid, torch.arange(T, device=valid.device), 0).amax(dim=-1)
    return logits[torch.arange(logits.shape[0], device=valid.device), index]
