"""Making a cache for a config."""

from typing import Any

import torch

from attn.caching import Slots, plan
from attn.config import Config
from attn_torch.caches.cache import Cache
from attn_torch.caches.context import new_context
from attn_torch.caches.ledger import new_ledger
from attn_torch.caches.store import new_store


def init_cache(
    cfg: Config,
    batch: int,
    length: int,
    *,
    context_length: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Cache:
    """An empty cache for `length` tokens in each of `batch` rows, float32 unless `dtype` says otherwise.

    Layers with a window or chunks keep a ring of their width. A variant that reads a context keeps that context's keys
    and values, `context_length` of them, from the first call on.

    Raises:
        ValueError: a rule is not causal, so that no cache can be exact; or a size is not positive.
    """
    slots = plan(cfg, batch, length, context_length)
    ledgers = tuple(_ledger(batch, kind, length, device) for kind in slots.ledgers)
    capacities = [slots.ledgers[layer].capacity for layer in slots.layers]
    layers = zip(cfg.attentions, capacities, strict=True)
    stores = tuple(
        new_store(attention, batch, capacity, dtype or torch.float32, device) for attention, capacity in layers
    )
    return Cache(ledgers, stores, slots.layers)


def _ledger(batch: int, slots: Slots, length: int, device: Any) -> Any:
    if slots.context:
        return new_context(batch, slots.capacity, length, device)
    return new_ledger(batch, slots.capacity, slots.ring, length, device)
