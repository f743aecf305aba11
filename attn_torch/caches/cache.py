"""A cache: one ledger, and one store for each layer."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attn_torch.caches.ledger import Ledger
from attn_torch.caches.store import Store
from attn_torch.tokens import Counts


@dataclass
class Cache:
    """What is kept of the tokens already read. A cache passed to a call is consumed: use the one it returns."""

    ledger: Ledger
    stores: tuple[Store, ...]

    @property
    def length(self) -> Tensor:
        """The number of valid tokens in each row. [B]."""
        return self.ledger.counts.length

    def after(self, scope: Any, stores: tuple[Store, ...]) -> "Cache":
        """The cache after a call."""
        return Cache(scope.ledger, stores)

    def copy(self) -> "Cache":
        """A cache of its own: what happens to one no longer happens to the other."""
        counts = Counts(*(count.clone() for count in self.ledger.counts))
        ledger = Ledger(counts, self.ledger.positions.clone(), self.ledger.segments.clone())
        return Cache(ledger, tuple({name: kept.clone() for name, kept in store.items()} for store in self.stores))
