"""A cache as plain arrays, to be carried to the other twin in the middle of a generation."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from attn.caching import check_arrays
from attn.config import Config
from attn_jax.arrays import as_jax, as_numpy
from attn_jax.caches.building import init_cache
from attn_jax.caches.cache import Cache
from attn_jax.caches.context import ContextLedger
from attn_jax.tokens import Counts, Tokens


def cache_to_neutral(cfg: Config, cache: Cache) -> dict[str, np.ndarray]:
    """Every array of a cache by name, and the length it was made for; each is a copy."""
    del cfg
    arrays = {"length": np.array(cache.ledgers[0].length)}
    for i, ledger in enumerate(cache.ledgers):
        named = {f"counts.{name}": count for name, count in ledger.counts._asdict().items()}
        if isinstance(ledger, ContextLedger):
            named |= {f"context.{name}": array for name, array in ledger.context._asdict().items()}
            named["ready"] = np.array(ledger.ready)
        else:
            named["slots"] = ledger.slots
        arrays |= {f"ledgers.{i}.{name}": as_numpy(array) for name, array in named.items()}
    for i, store in enumerate(cache.stores):
        arrays |= {f"layers.{i}.{name}": as_numpy(kept) for name, kept in store.items()}
    return arrays


def cache_from_neutral(cfg: Config, arrays: Mapping[str, np.ndarray]) -> Cache:
    """The cache that `cache_to_neutral` of either twin has written.

    Raises:
        ValueError: the arrays are not those of a cache of this config.
    """
    batch, length, context_length = check_arrays(cfg, arrays)
    cache = init_cache(cfg, batch, length, context_length=context_length)
    ledgers = tuple(_ledger(ledger, f"ledgers.{i}.", arrays) for i, ledger in enumerate(cache.ledgers))
    stores = tuple(
        {name: as_jax(name, arrays[f"layers.{i}.{name}"]) for name in store} for i, store in enumerate(cache.stores)
    )
    return Cache(ledgers, stores, cache.layers)


def _ledger(ledger, prefix: str, arrays):
    counts = Counts(*(jnp.array(arrays[f"{prefix}counts.{name}"], jnp.int32) for name in Counts._fields))
    if not isinstance(ledger, ContextLedger):
        return ledger.replace(counts=counts, slots=jnp.array(arrays[f"{prefix}slots"], jnp.int32))
    context = Tokens(*(jnp.array(arrays[f"{prefix}context.{name}"]) for name in Tokens._fields))
    return ledger.replace(counts=counts, context=context, ready=bool(arrays[f"{prefix}ready"]))
