"""The ledger of a context that is read once: its tokens do not change, only x moves on."""

from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from attn_jax.caches.ledger import Admission
from attn_jax.tokens import Counts, Tokens, no_counts


@struct.dataclass
class ContextLedger:
    """How far each row of x has come, and the tokens of the context.

    Attributes:
        counts: how far each row of x has come.
        context: the context's tokens.
        ready: a call has read the context; those that follow need not bring it.
        length: how many tokens of x the cache was made for.
    """

    counts: Counts
    context: Tokens
    ready: bool = struct.field(pytree_node=False)
    length: int = struct.field(pytree_node=False)

    @property
    def ring(self) -> bool:
        """A context is never written over."""
        return False

    @property
    def capacity(self) -> int:
        """S, the length of the context."""
        return self.context.positions.shape[1]

    def admit(self, keys: Tokens | None, counts: Counts) -> Admission:
        """The ledger after a call that brought the context's tokens, or relied on those of an earlier one.

        Raises:
            ValueError: no call has brought the context yet.
        """
        if keys is None and not self.ready:
            raise ValueError("context is required by the first call with a cache; got None.")
        context = self.context if keys is None else self._filled(keys)
        return Admission(ContextLedger(counts, context, True, self.length), context, None, False)

    def _filled(self, keys: Tokens) -> Tokens:
        given = zip(keys, self.context, (None, True, 0), strict=True)
        return Tokens(*(jnp.broadcast_to(default if new is None else new, old.shape) for new, old, default in given))

    def check_room(self, valid: Array | None, length: int) -> None:
        """Never refuses: x takes no slots."""
        del valid, length

    @property
    def overflowed(self) -> Bool[Array, "B"]:
        """No row ever overflows."""
        return jnp.zeros_like(self.counts.length, dtype=bool)

    def rewound(self, length: Int[Array, "B"]) -> "ContextLedger":
        """The ledger as it was when each row of x had `length` tokens, all of one segment."""
        return self.replace(counts=self.counts._replace(length=length))


def new_context(batch: int, capacity: int, length: int) -> Any:
    """A ledger that still waits for its context."""
    numbers = jnp.zeros((batch, capacity), jnp.int32)
    return ContextLedger(no_counts(batch), Tokens(numbers, numbers > 0, numbers), False, length)
