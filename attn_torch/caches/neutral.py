"""A cache as plain arrays, to be carried to the other twin in the middle of a generation."""

from collections.abc import Mapping

import numpy as np

from attn.caching import check_arrays
from attn.config import Config
from attn_torch.arrays import as_numpy, as_torch
from attn_torch.caches.building import init_cache
from attn_torch.caches.cache import Cache
from attn_torch.caches.context import ContextLedger
from attn_torch.caches.ledger import Ledger
from attn_torch.tokens import Counts, Tokens


def cache_to_neutral(cfg: Config, cache: Cache) -> dict[str, np.ndarray]:
    """Every array of a cache by name, and the length it was made for; each is a copy."""
    del cfg
    arrays = {"length": np.array(cache.ledgers[0].length)}
    for i, ledger in enumerate(cache.ledgers):
        named = {f"counts.{name}": as_numpy(count) for name, count in ledger.counts._asdict().items()}
        if isinstance(ledger, ContextLedger):
            named |= {f"context.{name}": as_numpy(tensor) for name, tensor in ledger.context._asdict().items()}
            named["ready"] = np.array(ledger.ready)
        else:
            named["slots"] = as_numpy(ledger.slots[:, :-1])
        arrays |= {f"ledgers.{i}.{name}": array for name, array in named.items()}
    for i, store in enumerate(cache.stores):
        spare = isinstance(cache.ledgers[cache.layers[i]], Ledger)
        arrays |= {f"layers.{i}.{name}": as_numpy(kept[:, :-1] if spare else kept) for name, kept in store.items()}
    return arrays


def cache_from_neutral(cfg: Config, arrays: Mapping[str, np.ndarray]) -> Cache:
    """The cache that `cache_to_neutral` of either twin has written.

    Raises:
        ValueError: the arrays are not those of a cache of this config.
    """
    batch, length, context_length = check_arrays(cfg, arrays)
    kept = next(iter(cfg.attentions[0].kept))
    dtype = as_torch(arrays[f"layers.0.{kept}"]).dtype
    cache = init_cache(cfg, batch, length, context_length=context_length, dtype=dtype)
    for i, store in enumerate(cache.stores):
        for name, buffer in store.items():
            values = as_torch(arrays[f"layers.{i}.{name}"])
            buffer[:, : values.shape[1]] = values
    ledgers = tuple(_ledger(ledger, f"ledgers.{i}.", arrays) for i, ledger in enumerate(cache.ledgers))
    return Cache(ledgers, cache.stores, cache.layers)


def _ledger(ledger, prefix: str, arrays):
    counts = Counts(*(as_torch(arrays[f"{prefix}counts.{name}"]).long() for name in Counts._fields))
    if not isinstance(ledger, ContextLedger):
        slots = ledger.slots.clone()
        slots[:, :-1] = as_torch(arrays[f"{prefix}slots"]).long()
        return Ledger(
            counts, slots, ledger.ring, ledger.length, segmented=bool(counts.segment.any() or counts.run.any())
        )
    context = Tokens(*(as_torch(arrays[f"{prefix}context.{name}"]) for name in Tokens._fields))
    return ContextLedger(counts, context, bool(arrays[f"{prefix}ready"]), ledger.length)
