"""The ledger of a cache: which token lies in which slot. It is kept once, whatever the number of layers."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attn_torch.tokens import Counts, Tokens, no_counts


@dataclass
class Ledger:
    """Per row: how far it has come, and the position and segment of the token in each slot.

    Every buffer has one slot more than it shows: what has no place is written there and never read.
    """

    counts: Counts
    positions: Int[Tensor, "B S+1"]
    segments: Int[Tensor, "B S+1"]

    @property
    def capacity(self) -> int:
        """S, the number of slots of a row."""
        return self.positions.shape[1] - 1

    def admit(self, queries: Tokens, counts: Counts, before: Int[Tensor, "B T"]) -> tuple["Ledger", Int[Tensor, "B T"]]:
        """The ledger with new tokens in it, and the slot of each: the number of valid tokens before it in its row.

        Invalid tokens get the slot `capacity`, which is never read.
        """
        B, T = self.positions.shape[0], before.shape[1]
        slots = before.expand(B, T).clamp(max=self.capacity)
        if queries.valid is not None:
            slots = torch.where(queries.valid, slots, self.capacity)
        positions = write(self.positions, slots, queries.positions.expand(B, T))
        segments = write(self.segments, slots, queries.segments)
        return Ledger(counts, positions, segments), slots

    def check_room(self, valid: Tensor | None, length: int) -> None:
        """Refuse a call whose valid tokens do not fit: "cache has 16 slots a row; got 17 tokens in row 0." """
        new = length if valid is None else valid.expand(self.positions.shape[0], length).sum(1)
        total = self.counts.length + new
        row = int(total.argmax())
        if int(total[row]) > self.capacity:
            raise ValueError(f"cache has {self.capacity} slots a row; got {int(total[row])} tokens in row {row}.")

    @property
    def overflowed(self) -> Bool[Tensor, "B"]:
        """The rows that hold more tokens than there are slots; what is computed for them is NaN."""
        return self.counts.length > self.capacity

    def poison(self, y: Tensor) -> Tensor:
        """y, with NaN in the rows that overflowed."""
        overflowed = self.overflowed.reshape(-1, *(1,) * (y.ndim - 1))
        return y.masked_fill(overflowed, torch.nan)

    def tokens(self) -> Tokens:
        """The tokens in the slots; a slot is valid once it has been written."""
        valid = torch.arange(self.capacity, device=self.positions.device)[None] < self.counts.length[:, None]
        return Tokens(self.positions[:, :-1], valid, self.segments[:, :-1])


def new_ledger(batch: int, capacity: int, device: torch.device | None = None) -> Ledger:
    """An empty ledger."""
    slots = torch.zeros(batch, capacity + 1, dtype=torch.long, device=device)
    return Ledger(no_counts(batch, device), slots, slots.clone())


def write(buffer: Tensor, slots: Int[Tensor, "B T"], values: Tensor) -> Tensor:
    """The buffer [B S+1 ...] with values [B T ...] in their slots, in place."""
    row = torch.arange(buffer.shape[0], device=buffer.device)[:, None]
    buffer[row, slots] = values.to(buffer.dtype)
    return buffer
