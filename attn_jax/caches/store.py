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


def extend(store: Store, scope: Any, new: Store) -> tuple[Store, Store]:
    """What the call reads, [B S ...] by name, and the store with the new tokens' values in it."""
    if scope.slots is None:
        store = {name: values.astype(store[name].dtype) for name, values in new.items()}
        return store, store
    written = {name: write(store[name], scope.slots, values) for name, values in new.items()}
    if not scope.joined:
        return written, written
    joined = {name: jnp.concatenate([store[name], values.astype(store[name].dtype)], 1) for name, values in new.items()}
    return joined, written
