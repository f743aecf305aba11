"""The store of a cache: what one layer keeps of each token, by name, in the slots that the ledger gives."""

from typing import Any

import torch
from torch import Tensor

from attn.letters import shape_of
from attn.variants.base import AttentionConfig
from attn_torch.caches.ledger import write

Store = dict[str, Tensor]


def new_store(cfg: AttentionConfig, batch: int, capacity: int, dtype: torch.dtype, device: Any = None) -> Store:
    """An empty store: [B S+1 ...] of zeros for each thing that the variant keeps."""
    sizes, slots = cfg.sizes(), (batch, capacity + 1)
    return {
        name: torch.zeros(*slots, *shape_of(axes, sizes), dtype=dtype, device=device) for name, axes in cfg.kept.items()
    }


def extend(store: Store, scope: Any, **new: Tensor) -> tuple[Store, Store]:
    """The store with the new tokens' values in their slots, and what can be read of it: [B S ...] by name."""
    store = {name: write(store[name], scope.slots, values) for name, values in new.items()}
    return store, {name: values[:, :-1] for name, values in store.items()}
