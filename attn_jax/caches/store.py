"""The store of a cache: what one layer keeps of each token, by name, in the slots that the ledger gives."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from attn.letters import shape_of
from attn.variants.base import AttentionConfig
from attn_jax.caches.ledger import write

Store = dict[str, Array]


def new_store(cfg: AttentionConfig, batch: int, capacity: int, dtype: Any) -> Store:
    """An empty store: [B S ...] of zeros for each thing that the variant keeps."""
    sizes = cfg.sizes()
    return {name: jnp.zeros((batch, capacity, *shape_of(axes, sizes)), dtype) for name, axes in cfg.kept.items()}


def extend(store: Store, scope: Any, **new: Array) -> tuple[Store, Store]:
    """The store with the new tokens' values in their slots, and what can be read of it: [B S ...] by name."""
    store = {name: write(store[name], scope.slots, values) for name, values in new.items()}
    return store, store
