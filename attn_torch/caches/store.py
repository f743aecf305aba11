"""The store of a cache: what one layer keeps of each token, by name, in the slots that the ledger gives."""

from typing import Any

import torch
from torch import Tensor

from attn.letters import shape_of
from attn.variants.base import AttentionConfig
from attn_torch.caches.ledger import write

Store = dict[str, Tensor]


def new_store(cfg: AttentionConfig, batch: int, capacity: int, dtype: torch.dtype, device: Any = None) -> Store:
    """An empty store: [B S+1 ...] of zeros for each thing that the variant keeps; a context needs no slot more."""
    sizes, slots = cfg.sizes(), capacity + (cfg.reads is None)
    kept = {name: shape_of(axes, sizes) for name, axes in cfg.kept.items()}
    return {name: _zeros(batch, slots, shape, dtype, device) for name, shape in kept.items()}


def _zeros(batch, slots, shape, dtype, device):
    # In memory a head's slots lie behind one another, as a kernel reads them.
    *heads, width = shape
    return torch.zeros(batch, *heads, slots, width, dtype=dtype, device=device).movedim(-2, 1)


def extend(store: Store, scope: Any, new: Store) -> tuple[Store, Store]:
    """What the call reads, [B S ...] by name, and the store with the new tokens' values in it."""
    if scope.slots is None:
        store = {name: values.to(store[name].dtype) for name, values in new.items()}
        return store, store
    joined = None
    if scope.joined:
        # Written in place, the store would lose what the first of the new tokens still see.
        pairs = {name: (store[name][:, :-1], values.to(store[name].dtype)) for name, values in new.items()}
        joined = {name: torch.cat(pair, dim=1) for name, pair in pairs.items()}
    written = {name: write(store[name], scope.slots, values) for name, values in new.items()}
    return joined or {name: values[:, :-1] for name, values in written.items()}, written
