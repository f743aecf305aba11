"""What a cache must know before it is made: how many slots each layer has, and which layers share a ledger."""

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

from attn.config import Config
from attn.letters import shape_of
from attn.variants.base import AttentionConfig

CONTEXT = ("positions", "valid", "segments")


class Slots(NamedTuple):
    """The slots of one ledger: a `ring` keeps the latest `capacity` tokens, others hold that many at most.

    `context` is for keys and values of a context, which are computed once.
    """

    capacity: int
    ring: bool = False
    context: bool = False


class Plan(NamedTuple):
    """The ledgers of a cache, and the ledger of each layer."""

    ledgers: tuple[Slots, ...]
    layers: tuple[int, ...]


def plan(cfg: Config, batch: int, length: int, context_length: int | None = None) -> Plan:
    """Which slots a cache for `length` tokens a row must have.

    Raises:
        ValueError: a size is not positive, a rule is not causal, or a context comes without its length.
    """
    for name, size in (("batch", batch), ("length", length), ("context_length", context_length)):
        if size is not None and size < 1:
            raise ValueError(f"{name} must be at least 1; got {size}.")
    layers = tuple(_slots(attention, length, context_length) for attention in cfg.attentions)
    if context_length is not None and not any(slots.context for slots in layers):
        raise ValueError(f"context_length must be None where nothing reads a context; got {context_length}.")
    ledgers = tuple(dict.fromkeys(layers))
    return Plan(ledgers, tuple(ledgers.index(slots) for slots in layers))


def _slots(cfg: AttentionConfig, length: int, context_length: int | None) -> Slots:
    if cfg.reads is not None:
        if context_length is None:
            raise ValueError(f"context_length must be given to cache a context of width {cfg.reads}; got None.")
        return Slots(context_length, context=True)
    if not cfg.rule.causal:
        raise ValueError(f"mask must be causal to be cached; got {cfg.rule.kind!r}.")
    memory = cfg.rule.memory
    return Slots(length) if memory is None or memory >= length else Slots(memory, ring=True)


def numbers_per_token(cfg: AttentionConfig) -> int:
    """How many numbers a cache keeps of each token."""
    sizes = cfg.sizes()
    return sum(prod(shape_of(axes, sizes)) for axes in cfg.kept.values())


def check_use(cfg: Config, rows: int, batch: int, stored: list) -> None:
    """Refuse a cache that was made for another batch or another config.

    Raises:
        ValueError: "cache has 3 rows; got a batch of 2."
    """
    if rows != batch:
        raise ValueError(f"cache has {rows} rows; got a batch of {batch}.")
    # In the order of the alphabet, which is that of a dict after it went through `jax.jit`.
    expected = [sorted(attention.kept) for attention in cfg.attentions]
    received = [sorted(names) for names in stored]
    if expected != received:
        raise ValueError(f"cache must keep {expected[0]} in each of {len(expected)} layers; got {received}.")


def check_ring(call: Mapping[str, Any]) -> None:
    """Refuse what a ring cannot honour, because its slots change their tokens.

    Raises:
        ValueError: "allowed cannot be used with a ring, whose slots change their tokens; got shape (3, 4)."
    """
    for name in ("allowed", "bias", "positions"):
        array = call.get(name)
        if array is not None:
            shape = tuple(array.shape)
            raise ValueError(f"{name} cannot be used with a ring, whose slots change their tokens; got shape {shape}.")


def check_arrays(cfg: Config, arrays: Mapping[str, np.ndarray]) -> tuple[int, int, int | None]:
    """Refuse arrays that are not a neutral cache of this config; return its batch, length and context length.

    Raises:
        ValueError: one report of what is missing, unexpected or of another shape.
    """
    length = arrays.get("length")
    counts = arrays.get("ledgers.0.counts.length")
    if length is None or counts is None:
        raise ValueError(f"cache must have length and ledgers.0.counts.length; got {sorted(arrays)[:4]}.")
    contexts = [array.shape[1] for name, array in arrays.items() if name.endswith("context.positions")]
    batch, context = counts.shape[0], contexts[0] if contexts else None
    expected = _expected(cfg, batch, int(length), context)
    problems = [f"{name} is missing" for name in expected if name not in arrays]
    problems += [f"{name} is unexpected" for name in arrays if name not in expected]
    for name, shape in expected.items():
        if name in arrays and arrays[name].shape != shape:
            problems.append(f"{name} has shape {arrays[name].shape} instead of {shape}")
    if problems:
        raise ValueError(f"cache does not fit the {cfg.variant} config: {'; '.join(problems)}.")
    return batch, int(length), context


def _expected(cfg: Config, batch: int, length: int, context: int | None) -> dict[str, tuple[int, ...]]:
    slots = plan(cfg, batch, length, context)
    shapes: dict[str, tuple[int, ...]] = {"length": ()}
    for i, kind in enumerate(slots.ledgers):
        shapes |= {f"ledgers.{i}.counts.{name}": (batch,) for name in ("length", "start", "segment", "run")}
        if kind.context:
            shapes |= {f"ledgers.{i}.context.{name}": (batch, kind.capacity) for name in CONTEXT}
            shapes[f"ledgers.{i}.ready"] = ()
        else:
            shapes[f"ledgers.{i}.slots"] = (batch, kind.capacity, 3)
    for i, (attention, layer) in enumerate(zip(cfg.attentions, slots.layers, strict=True)):
        rows = (batch, slots.ledgers[layer].capacity)
        shapes |= {
            f"layers.{i}.{name}": rows + shape_of(axes, attention.sizes()) for name, axes in attention.kept.items()
        }
    return shapes
