"""The ledger of a cache: which token lies in which slot. It is kept once, whatever the number of layers."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from attn_jax.tokens import Counts, Tokens, no_counts


@struct.dataclass
class Ledger:
    """Per row: how far it has come, and the position and segment of the token in each slot."""

    counts: Counts
    positions: Int[Array, "B S"]
    segments: Int[Array, "B S"]

    @property
    def capacity(self) -> int:
        """S, the number of slots of a row."""
        return self.positions.shape[1]

    def admit(self, queries: Tokens, counts: Counts, before: Int[Array, "B T"]) -> tuple["Ledger", Int[Array, "B T"]]:
        """The ledger with new tokens in it, and the slot of each: the number of valid tokens before it in its row.

        Invalid tokens get the slot `capacity`, which does not exist: writing there is dropped.
        """
        B, T = self.positions.shape[0], before.shape[1]
        slots = jnp.broadcast_to(before, (B, T))
        if queries.valid is not None:
            slots = jnp.where(queries.valid, slots, self.capacity)
        positions = write(self.positions, slots, jnp.broadcast_to(queries.positions, (B, T)))
        segments = write(self.segments, slots, queries.segments)
        return Ledger(counts, positions, segments), slots

    def check_room(self, valid: Array | None, length: int) -> None:
        """Refuse a call whose valid tokens do not fit: "cache has 16 slots a row; got 17 tokens in row 0." """
        new = length if valid is None else jnp.broadcast_to(valid, (self.positions.shape[0], length)).sum(1)
        total = self.counts.length + new
        row = int(total.argmax())
        if int(total[row]) > self.capacity:
            raise ValueError(f"cache has {self.capacity} slots a row; got {int(total[row])} tokens in row {row}.")

    @property
    def overflowed(self) -> Bool[Array, "B"]:
        """The rows that hold more tokens than there are slots; what is computed for them is NaN."""
        return self.counts.length > self.capacity

    def poison(self, y: Array) -> Array:
        """y, with NaN in the rows that overflowed."""
        overflowed = self.overflowed.reshape(-1, *(1,) * (y.ndim - 1))
        return jnp.where(overflowed, jnp.nan, y)

    def tokens(self) -> Tokens:
        """The tokens in the slots; a slot is valid once it has been written."""
        valid = jnp.arange(self.capacity)[None] < self.counts.length[:, None]
        return Tokens(self.positions, valid, self.segments)


def new_ledger(batch: int, capacity: int) -> Ledger:
    """An empty ledger."""
    slots = jnp.zeros((batch, capacity), jnp.int32)
    return Ledger(no_counts(batch), slots, slots)


def write(buffer: Array, slots: Int[Array, "B T"], values: Array) -> Array:
    """The buffer [B S ...] with values [B T ...] in their slots; a slot beyond the last one is dropped."""
    row = jnp.arange(buffer.shape[0])[:, None]
    return buffer.at[row, slots].set(values.astype(buffer.dtype), mode="drop")
