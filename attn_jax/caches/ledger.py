"""The ledger of a cache: which token lies in which slot. It is kept once for all layers that have the same slots."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int

from attn_jax.tokens import Counts, Tokens, no_counts


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
    slots: Int[Array, "B T"] | None
    joined: bool


@struct.dataclass
class Ledger:
    """Per row: how far it has come, and the position, run and segment number of the token in each slot.

    Attributes:
        counts: how far each row has come.
        slots: position, run and number, [B S 3].
        ring: the slots hold the latest S tokens, slot = count modulo S; otherwise the first S, slot = count.
        length: how many tokens the cache was made for.
    """

    counts: Counts
    slots: Int[Array, "B S 3"]
    ring: bool = struct.field(pytree_node=False)
    length: int = struct.field(pytree_node=False)

    @property
    def capacity(self) -> int:
        """S, the number of slots of a row."""
        return self.slots.shape[1]

    def admit(self, queries: Tokens, counts: Counts, before: Int[Array, "B T"], segments: Any) -> Admission:
        """The ledger with new tokens in it; a token's slot follows from the valid tokens before it in its row."""
        B, T = self.slots.shape[0], before.shape[1]
        numbers = jnp.broadcast_to(self.counts.segment[:, None] if segments is None else segments, (B, T))
        positions = jnp.broadcast_to(queries.positions, (B, T))
        slots = jnp.broadcast_to(before, (B, T))
        if self.ring:
            latest = before >= (counts.length - self.capacity)[:, None]
            slots = jnp.where(latest, slots % self.capacity, self.capacity)
        if queries.valid is not None:
            slots = jnp.where(queries.valid, slots, self.capacity)
        entries = jnp.stack([positions, queries.segments, numbers], axis=-1)
        ledger = self.replace(counts=counts, slots=write(self.slots, slots, entries))
        if self.ring and T > 1:
            new = Tokens(
                positions, jnp.ones((B, T), bool) if queries.valid is None else queries.valid, queries.segments
            )
            old = self.tokens()
            return Admission(
                ledger, Tokens(*(jnp.concatenate(pair, axis=1) for pair in zip(old, new, strict=True))), slots, True
            )
        return Admission(ledger, ledger.tokens(), slots, False)

    def check_room(self, valid: Array | None, length: int) -> None:
        """Refuse a call whose valid tokens do not fit: "cache has 16 slots a row; got 17 tokens in row 0." """
        if self.ring:
            return
        new = length if valid is None else np.broadcast_to(valid, (self.slots.shape[0], length)).sum(1)
        total = np.asarray(self.counts.length) + new
        row = int(total.argmax())
        if int(total[row]) > self.capacity:
            raise ValueError(f"cache has {self.capacity} slots a row; got {int(total[row])} tokens in row {row}.")

    @property
    def overflowed(self) -> Bool[Array, "B"]:
        """The rows that hold more tokens than there are slots; what is computed for them is NaN."""
        return (self.counts.length > self.capacity) & (not self.ring)

    def tokens(self) -> Tokens:
        """The tokens in the slots; a slot is valid once it has been written."""
        valid = jnp.arange(self.capacity)[None] < self.counts.length[:, None]
        return Tokens(self.slots[:, :, 0], valid, self.slots[:, :, 1])

    def rewound(self, length: Int[Array, "B"]) -> "Ledger":
        """The ledger as it was when each row had `length` tokens.

        Raises:
            ValueError: a ring has forgotten what it would need.
        """
        if self.ring:
            raise ValueError(f"cache must keep every token to be rewound; got a ring of the latest {self.capacity}.")
        last = jnp.maximum(length - 1, 0)[:, None, None]
        _, run, number = jnp.moveaxis(jnp.take_along_axis(self.slots, last, axis=1)[:, 0], -1, 0)
        inside = jnp.arange(self.capacity)[None] < length[:, None]
        start = (inside & (self.slots[:, :, 1] < run[:, None])).sum(axis=1, dtype=length.dtype)
        some = length > 0
        return self.replace(counts=Counts(length, start * some, number * some, run * some))


def new_ledger(batch: int, capacity: int, ring: bool, length: int) -> Ledger:
    """An empty ledger."""
    return Ledger(no_counts(batch), jnp.zeros((batch, capacity, 3), jnp.int32), ring, length)


def write(buffer: Array, slots: Int[Array, "B T"], values: Array) -> Array:
    """The buffer [B S ...] with values [B T ...] in their slots; a slot beyond the last one is dropped."""
    row = jnp.arange(buffer.shape[0])[:, None]
    return buffer.at[row, slots].set(values.astype(buffer.dtype), mode="drop")
