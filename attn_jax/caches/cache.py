"""A cache: a store for each layer, and a ledger for each kind of slots."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int

from attn.caching import check_ring, check_use
from attn.config import Config
from attn_jax.caches.ledger import Ledger
from attn_jax.caches.store import Store


@struct.dataclass
class Cache:
    """What is kept of the tokens already read. A cache passed to a call is consumed: use the one it returns.

    Attributes:
        ledgers: which token lies in which slot, for each kind of slots that the layers have.
        stores: what each layer keeps of the tokens, in the slots of its ledger.
        layers: the ledger of each layer.
    """

    ledgers: tuple[Ledger, ...]
    stores: tuple[Store, ...]
    layers: tuple[int, ...] = struct.field(pytree_node=False)

    @property
    def length(self) -> Int[Array, "B"]:
        """The number of valid tokens in each row."""
        return self.ledgers[0].counts.length

    @property
    def batch(self) -> int:
        """B, the number of rows."""
        return self.length.shape[0]

    def check(self, cfg: Config, batch: int, call: dict[str, Any]) -> None:
        """Refuse a call that this cache cannot serve.

        Raises:
            ValueError: another batch, another config, or an argument that a ring cannot honour.
        """
        check_use(cfg, self.batch, batch, [store.keys() for store in self.stores])
        for ledger in self.ledgers:
            if ledger.ring:
                check_ring(call)

    def after(self, ledgers: tuple[Any, ...], stores: tuple[Store, ...]) -> "Cache":
        """The cache after a call."""
        return Cache(ledgers, stores, self.layers)

    def poison(self, y: Array) -> Array:
        """y, with NaN in the rows that overflowed."""
        for ledger in self.ledgers:
            y = jnp.where(ledger.overflowed.reshape(-1, *(1,) * (y.ndim - 1)), jnp.nan, y)
        return y

    def copy(self) -> "Cache":
        """A cache of its own: what happens to one no longer happens to the other."""
        return jax.tree.map(jnp.copy, self)

    def rewind(self, length: int | Int[Array, "B"]) -> "Cache":
        """The cache as it was when its rows had `length` tokens, one number for all or one for each.

        Raises:
            ValueError: a row does not have that many tokens, or a ring has forgotten them.
        """
        wanted = jnp.broadcast_to(jnp.asarray(length, self.length.dtype), self.length.shape)
        if not isinstance(self.length, jax.core.Tracer) and bool(((wanted < 0) | (wanted > self.length)).any()):
            raise ValueError(f"length must lie between 0 and {self.length.tolist()}; got {wanted.tolist()}.")
        return Cache(tuple(ledger.rewound(wanted) for ledger in self.ledgers), self.stores, self.layers)

    def select(self, rows: Int[Array, "B"]) -> "Cache":
        """The cache with these rows in this order; a row may come twice, as a beam search needs."""
        return jax.tree.map(lambda array: array[rows], self)
