"""Blocks of one shape behind one another: the kernel takes them as a batch, whose arrays are views, a step apart."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from attn_torch.kernels.cuts import Cut


class Run(NamedTuple):
    """Some blocks of one shape, each as many queries further as a block has.

    Attributes:
        count: how many.
        masks: how many masks they have: one for all, or one each.
        i: the first query of the first of them; j, low and high as in a Cut.
        j: the query after its last.
        low: its first key.
        high: the key after its last.
    """

    count: int
    masks: int
    i: int
    j: int
    low: int
    high: int

    @property
    def masked(self) -> list[Cut]:
        """The blocks whose masks are needed."""
        steps = [number * (self.j - self.i) for number in range(self.masks)]
        return [Cut(self.i + step, self.j + step, self.low + step, self.high + step) for step in steps]

    def batches(self, rows: int, added: Tensor | None) -> Iterator[tuple[int | None, Tensor | None]]:
        """One block of all rows (None), or all blocks of each row; with what is added to the scores."""
        if self.count == 1:
            yield None, None if added is None else added[:, 0]
            return
        for row in range(rows):
            yield row, None if added is None else added[row if len(added) > 1 else 0]

    def queries(self, array: Tensor, row: int | None) -> Tensor:
        """The part of an array [B H T ...] that belongs to the queries of a batch; a view."""
        return self._windows(array, row, self.i, self.j)

    def keys(self, array: Tensor, row: int | None) -> Tensor:
        """The part that belongs to its keys, of which blocks may share some."""
        return self._windows(array, row, self.low, self.high)

    def add_to_keys(self, array: Tensor, row: int | None, parts: Tensor) -> None:
        """Add to each key what its blocks bring."""
        size = self.high - self.low
        step = size if row is None else self.j - self.i
        # So many keys at once are no other block's.
        for start in range(0, size, step):
            end = min(start + step, size)
            self._windows(array, row, self.low + start, self.low + end).add_(parts[:, :, start:end])

    def _windows(self, array, row, start, end):
        if row is None:
            return array[:, :, start:end]
        step = self.j - self.i
        windows = array[row, :, start : end + (self.count - 1) * step].unfold(1, end - start, step)
        return windows.transpose(0, 1) if windows.ndim == 3 else windows.permute(1, 0, 3, 2)


def runs(blocks: list[Cut], shortest: int, alike: bool) -> list[Run]:
    """Blocks in runs; what would be a run of `shortest` or less stays single. `alike`: one mask serves a whole run."""
    found: list[list[Cut]] = []
    for block in blocks:
        if found and _follows(found[-1][-1], block):
            found[-1].append(block)
        else:
            found.append([block])
    parts = (part for run in found for part in ([run] if len(run) > shortest else [[block] for block in run]))
    return [Run(len(part), 1 if alike else len(part), *part[0]) for part in parts]


def _follows(last: Cut, block: Cut) -> bool:
    step = block.i - last.i
    return block == Cut(last.i + step, last.j + step, last.low + step, last.high + step)
