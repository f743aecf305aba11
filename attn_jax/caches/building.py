"""Making a cache for a config."""

from typing import Any

import jax.numpy as jnp

from attn.config import Config
from attn.variants.base import check_cachable
from attn_jax.caches.cache import Cache
from attn_jax.caches.ledger import new_ledger
from attn_jax.caches.store import new_store


def init_cache(cfg: Config, batch: int, length: int, *, dtype: Any = None) -> Cache:
    """An empty cache with `length` slots for each of `batch` rows, float32 unless `dtype` says otherwise.

    Raises:
        ValueError: the config's rule is not causal, so that no cache can be exact; or a size is not positive.
    """
    for name, size in (("batch", batch), ("length", length)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1; got {size}.")
    attentions = getattr(cfg, "attentions", (cfg,))
    for attention in attentions:
        check_cachable(attention)
    stores = tuple(new_store(attention, batch, length, dtype or jnp.float32) for attention in attentions)
    return Cache(new_ledger(batch, length), stores)
