"""A cache: one ledger, and one store for each layer."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from attn_jax.caches.ledger import Ledger
from attn_jax.caches.store import Store


@struct.dataclass
class Cache:
    """What is kept of the tokens already read. A cache passed to a call is consumed: use the one it returns."""

    ledger: Ledger
    stores: tuple[Store, ...]

    @property
    def length(self) -> Any:
        """The number of valid tokens in each row. [B]."""
        return self.ledger.counts.length

    def after(self, scope: Any, stores: tuple[Store, ...]) -> "Cache":
        """The cache after a call."""
        return Cache(scope.ledger, stores)

    def copy(self) -> "Cache":
        """A cache of its own: what happens to one no longer happens to the other."""
        return jax.tree.map(jnp.copy, self)
