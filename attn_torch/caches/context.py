"""The ledger of a context that is read once: its tokens do not change, only x moves on."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attn.positions import LONGEST
from attn_torch.caches.ledger import Admission
from attn_torch.tokens import Counts, Tokens, no_counts


@dataclass
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
    ready: bool
    length: int

    @property
    def ring(self) -> bool:
        """A context is never written over."""
        return False

    @property
    def capacity(self) -> int:
        """S, the length of the context."""
        return self.context.positions.shape[1]

    @property
    def below(self) -> int:
        """What no default position of x reaches: it takes no slots."""
        return LONGEST

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
        return Tokens(
            *(torch.full_like(old, default) if new is None else new.expand_as(old) for new, old, default in given)
        )

    def check_room(self, valid: Tensor | None, length: int) -> None:
        """Never refuses: x takes no slots."""
        del valid, length

    @property
    def overflowed(self) -> Bool[Tensor, "B"]:
        """No row ever overflows."""
        return torch.zeros_like(self.counts.length, dtype=torch.bool)

    def rewound(self, length: Int[Tensor, "B"]) -> "ContextLedger":
        """The ledger as it was when each row of x had `length` tokens, all of one segment."""
        return replace(self, counts=self.counts._replace(length=length))


def new_context(batch: int, capacity: int, length: int, device: torch.device | None = None) -> Any:
    """A ledger that still waits for its context."""
    numbers = torch.zeros(batch, capacity, dtype=torch.long, device=device)
    return ContextLedger(no_counts(batch, device), Tokens(numbers, numbers > 0, numbers), False, length)
