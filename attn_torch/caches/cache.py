"""A cache: a store for each layer, and a ledger for each kind of slots."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from attn.caching import check_ring, check_use
from attn.config import Config
from attn_torch.caches.context import ContextLedger
from attn_torch.caches.ledger import Ledger
from attn_torch.caches.store import Store
from attn_torch.tokens import Counts, Tokens


@dataclass
class Cache:
    """What is kept of the tokens already read. A cache passed to a call is consumed: use the one it returns.

    Attributes:
        ledgers: which token lies in which slot, for each kind of slots that the layers have.
        stores: what each layer keeps of the tokens, in the slots of its ledger.
        layers: the ledger of each layer.
    """

    ledgers: tuple[Ledger, ...]
    stores: tuple[Store, ...]
    layers: tuple[int, ...]
    consumed: bool = False

    @property
    def length(self) -> Int[Tensor, "B"]:
        """The number of valid tokens in each row."""
        return self.ledgers[0].counts.length

    @property
    def batch(self) -> int:
        """B, the number of rows."""
        return self.length.shape[0]

    def check(self, cfg: Config, batch: int, call: dict[str, Any]) -> None:
        """Refuse a call that this cache cannot serve.

        Raises:
            ValueError: another batch, another config, an argument that a ring cannot honour, or a cache used before.
        """
        check_use(cfg, self.batch, batch, [store.keys() for store in self.stores])
        for ledger in self.ledgers:
            if ledger.ring:
                check_ring(call)
        self._check_unused()

    def after(self, ledgers: tuple[Any, ...], stores: tuple[Store, ...]) -> "Cache":
        """The cache after a call, which has consumed this one."""
        if not torch.compiler.is_compiling():
            self.consumed = True
        return Cache(ledgers, stores, self.layers)

    def poison(self, y: Tensor) -> Tensor:
        """y, with NaN in the rows that overflowed; only compiled code lets them."""
        if not torch.compiler.is_compiling():
            return y
        for ledger in self.ledgers:
            if not ledger.ring:
                y = y.masked_fill(ledger.overflowed.reshape(-1, *(1,) * (y.ndim - 1)), torch.nan)
        return y

    def copy(self) -> "Cache":
        """A cache of its own: what happens to one no longer happens to the other."""
        return self._each(torch.clone)

    def rewind(self, length: int | Int[Tensor, "B"]) -> "Cache":
        """The cache as it was when its rows had `length` tokens, one number for all or one for each.

        It consumes this one, as a call does; a `copy` stays.

        Raises:
            ValueError: a row does not have that many tokens, a ring has forgotten them, or a cache used before.
        """
        self._check_unused()
        wanted = torch.as_tensor(length, device=self.length.device).to(self.length.dtype).expand_as(self.length)
        if not torch.compiler.is_compiling() and bool(((wanted < 0) | (wanted > self.length)).any()):
            raise ValueError(f"length must lie between 0 and {self.length.tolist()}; got {wanted.tolist()}.")
        return self.after(tuple(ledger.rewound(wanted) for ledger in self.ledgers), self.stores)

    def select(self, rows: Int[Tensor, "B"]) -> "Cache":
        """The cache with these rows in this order; a row may come twice, as a beam search needs."""
        return self._each(lambda tensor: tensor[rows])

    def _check_unused(self) -> None:
        if self.consumed and not torch.compiler.is_compiling():
            raise ValueError("cache must be the one that the last call returned; got one that a call has consumed.")

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Cache":
        stores = tuple({name: change(kept) for name, kept in store.items()} for store in self.stores)
        return Cache(tuple(_each(ledger, change) for ledger in self.ledgers), stores, self.layers)


def _each(ledger: Any, change: Callable[[Tensor], Tensor]) -> Any:
    counts = Counts(*(change(count) for count in ledger.counts))
    if isinstance(ledger, ContextLedger):
        return replace(ledger, counts=counts, context=Tokens(*(change(tokens) for tokens in ledger.context)))
    return replace(ledger, counts=counts, slots=change(ledger.slots))
