"""Where tokens stand and which may see which, by counting."""

import numpy as np


def row(array, batch: int) -> np.ndarray | None:
    """[B T] from [T] or [B T], integers in one type in which no difference of theirs wraps; None stays None."""
    if array is None:
        return None
    array = array if array.dtype == bool else array.astype(int)
    return np.broadcast_to(array, (batch, array.shape[-1]))


def runs(valid: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """The ordinal of each token's segment: a segment is a run of equal numbers among the valid tokens. [B T]."""
    result = np.zeros(valid.shape, int)
    for b in range(valid.shape[0]):
        run, number = 0, None
        for t in range(valid.shape[1]):
            if valid[b, t]:
                if number is not None and segments[b, t] != number:
                    run += 1
                number = segments[b, t]
            result[b, t] = run
    return result


def default_positions(valid: np.ndarray, run: np.ndarray) -> np.ndarray:
    """The number of valid tokens before each one in its row, starting again at 0 in each run. [B T]."""
    result = np.zeros(valid.shape, int)
    for b in range(valid.shape[0]):
        seen: dict[int, int] = {}
        for t in range(valid.shape[1]):
            result[b, t] = seen.get(run[b, t], 0)
            seen[run[b, t]] = seen.get(run[b, t], 0) + int(valid[b, t])
    return result


class Row:
    """What one side of a call knows of its tokens: positions, validity, segment numbers and runs, each [B T]."""

    def __init__(self, batch: int, length: int, positions=None, valid=None, segments=None):
        self.valid = np.ones((batch, length), bool) if valid is None else row(valid, batch)
        self.segments = np.zeros((batch, length), int) if segments is None else row(segments, batch)
        self.runs = runs(self.valid, self.segments)
        default = default_positions(self.valid, self.runs)
        self.positions = default if positions is None else np.where(self.valid, row(positions, batch), 0)

    @property
    def lengths(self) -> np.ndarray:
        """The largest valid position + 1 of each token's own run, [B T]."""
        lengths = np.ones(self.positions.shape, int)
        for b in range(len(lengths)):
            for t in range(len(lengths[b])):
                own = self.positions[b, self.valid[b] & (self.runs[b] == self.runs[b, t])]
                lengths[b, t] = own.max(initial=0) + 1
        return lengths


def visible(rule, queries: Row, keys: Row, allowed, heads: int) -> np.ndarray:
    """Whether query t of head h may see key s: the rule, validity, segments and `allowed` must all agree. [B H T S]."""
    batch, length = queries.valid.shape
    seen = np.zeros((batch, heads, length, keys.valid.shape[1]), bool)
    for b in range(batch):
        same = (
            queries.runs[b][:, None] == keys.runs[b]
            if queries is keys
            else queries.segments[b][:, None] == keys.segments[b]
        )
        ruled = rule.allows(queries.positions[b][:, None], keys.positions[b][None, :])
        seen[b] = ruled & same & queries.valid[b][:, None] & keys.valid[b][None, :]
    return seen & per_head(allowed, seen.shape) if allowed is not None else seen


def per_head(array, shape: tuple[int, ...]) -> np.ndarray:
    """[B H T S] from [T S], [B T S] or [B|1 H|1 T S]."""
    return np.broadcast_to(array[:, None] if array.ndim == 3 else array, shape)
