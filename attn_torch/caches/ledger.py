"""The ledger of a cache: which token lies in which slot. It is kept once for all layers that have the same slots."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attn.positions import LONGEST
from attn_torch.tokens import Counts, Tokens, no_counts


class Admission(NamedTuple):
    """What a ledger says to new tokens.

    Attributes:
        ledger: the ledger with the tokens in it.
        keys: all tokens that the new ones may see, themselves included.
        slots: where each new token goes, [B T]; a slot that does not exist drops it.
        joined: the keys are the old slots followed by the new tokens, because a ring forgets while it writes.
    """

    ledger: Any
    keys: Tokens
    slots: Int[Tensor, "B T"] | None
    joined: bool


@dataclass
class Ledger:
    """Per row: how far it has come, and the position, run and segment number of the token in each slot.

    Every buffer has one slot more than it shows: what has no place is written there and never read.

    Attributes:
        counts: how far each row has come.
        slots: position, run and number, [B S+1 3].
        ring: the slots hold the latest S tokens, slot = count modulo S; otherwise the first S, slot = count.
        length: how many tokens the cache was made for.
        segmented: a call has brought segments; otherwise every row is one.
    """

    counts: Counts
    slots: Int[Tensor, "B S+1 3"]
    ring: bool
    length: int
    segmented: bool = False

    @property
    def capacity(self) -> int:
        """S, the number of slots of a row."""
        return self.slots.shape[1] - 1

    @property
    def below(self) -> int:
        """What no default position reaches."""
        return LONGEST if self.ring else self.capacity

    def admit(self, queries: Tokens, counts: Counts, before: Int[Tensor, "B T"], segments: Any) -> Admission:
        """The ledger with new tokens in it; a token's slot follows from the valid tokens before it in its row."""
        B, T = self.slots.shape[0], before.shape[1]
        numbers = self.counts.segment[:, None].expand(B, T) if segments is None else segments.long()
        positions = queries.positions.expand(B, T).long()
        slots = before.expand(B, T)
        if self.ring:
            latest = before >= (counts.length - self.capacity)[:, None]
            slots = torch.where(latest, slots % self.capacity, self.capacity)
        else:
            slots = slots.clamp(max=self.capacity)
        if queries.valid is not None:
            slots = torch.where(queries.valid, slots, self.capacity)
        entries = torch.stack([positions, queries.segments, numbers], dim=-1)
        ledger = replace(self, segmented=self.segmented or segments is not None)
        # A ring forgets while it writes, so its tokens are read before.
        joined = self.ring and T > 1
        keys = ledger._joined(positions, queries) if joined else None
        ledger = replace(ledger, counts=counts, slots=write(self.slots, slots, entries))
        return Admission(ledger, ledger.tokens() if keys is None else keys, slots, joined)

    def check_room(self, valid: Tensor | None, length: int) -> None:
        """Refuse a call whose valid tokens do not fit: "cache has 16 slots a row; got 17 tokens in row 0." """
        if self.ring:
            return
        new = length if valid is None else valid.expand(self.slots.shape[0], length).sum(1)
        total = self.counts.length + new
        row = int(total.argmax())
        if int(total[row]) > self.capacity:
            raise ValueError(f"cache has {self.capacity} slots a row; got {int(total[row])} tokens in row {row}.")

    @property
    def overflowed(self) -> Bool[Tensor, "B"]:
        """The rows that hold more tokens than there are slots; what is computed for them is NaN."""
        return (self.counts.length > self.capacity) & (not self.ring)

    def tokens(self) -> Tokens:
        """The tokens in the slots; a slot is valid once it has been written."""
        valid = torch.arange(self.capacity, device=self.slots.device)[None] < self.counts.length[:, None]
        return Tokens(self.slots[:, :-1, 0], valid, self.slots[:, :-1, 1] if self.segmented else None)

    def rewound(self, length: Int[Tensor, "B"]) -> "Ledger":
        """The ledger as it was when each row had `length` tokens.

        Raises:
            ValueError: a ring has forgotten what it would need.
        """
        if self.ring:
            raise ValueError(f"cache must keep every token to be rewound; got a ring of the latest {self.capacity}.")
        last = (length - 1).clamp(min=0)[:, None, None].expand(-1, 1, 3)
        _, run, number = torch.gather(self.slots, 1, last)[:, 0].unbind(-1)
        inside = torch.arange(self.capacity, device=length.device)[None] < length[:, None]
        start = (inside & (self.slots[:, :-1, 1] < run[:, None])).sum(dim=1)
        some = length > 0
        return replace(self, counts=Counts(length, start * some, number * some, run * some))

    def _joined(self, positions: Int[Tensor, "B T"], queries: Tokens) -> Tokens:
        """The tokens in the slots, followed by new ones."""
        valid = queries.valid if queries.valid is not None else torch.ones_like(positions, dtype=torch.bool)
        new = Tokens(positions, valid, queries.segments if self.segmented else None)
        pairs = zip(self.tokens(), new, strict=True)
        return Tokens(*(None if after is None else torch.cat([before, after], dim=1) for before, after in pairs))


def new_ledger(batch: int, capacity: int, ring: bool, length: int, device: torch.device | None = None) -> Ledger:
    """An empty ledger."""
    slots = torch.zeros(batch, capacity + 1, 3, dtype=torch.long, device=device)
    return Ledger(no_counts(batch, device), slots, ring, length)


def write(buffer: Tensor, slots: Int[Tensor, "B T"], values: Tensor) -> Tensor:
    """The buffer [B S+1 ...] with values [B T ...] in their slots, in place."""
    row = torch.arange(buffer.shape[0], device=buffer.device)[:, None]
    buffer[row, slots] = values.to(buffer.dtype)
    return buffer
