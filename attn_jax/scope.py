"""The scope of a call: its queries, its keys, and which may see which. One scope serves all layers of a model."""

from typing import Any

import jax
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float

from attn.call import check_range
from attn.masks import Full, Rule
from attn.positions import LONGEST
from attn_jax.arrays import check_x64
from attn_jax.caches.context import ContextLedger
from attn_jax.caches.ledger import Ledger
from attn_jax.functional import select
from attn_jax.tokens import Tokens, describe, rows


@struct.dataclass
class Scope:
    """What every layer of a call shares.

    Attributes:
        queries: the tokens of x.
        keys: the tokens that keys and values belong to: x's own, the context's, or those in the cache.
        allowed: a further restriction, [B|1 H|1 T S].
        bias: added to the scores, [B|1 H|1 T S].
        ledger: the cache's bookkeeping after this call, None without a cache.
        slots: where in the cache each token of x goes, [B T].
        joined: the keys are the cache's old slots followed by the tokens of x.
        given: what the call brought along, for the choice of a kernel: valid, segments, positions, ...
        length: one length for all tokens of x, where it is known before the call: T, or a cache's capacity.
    """

    queries: Tokens
    keys: Tokens
    allowed: Bool[Array, "B|1 H|1 T S"] | None = None
    bias: Float[Array, "B|1 H|1 T S"] | None = None
    ledger: Ledger | ContextLedger | None = None
    slots: Array | None = None
    joined: bool = struct.field(pytree_node=False, default=False)
    given: frozenset[str] = struct.field(pytree_node=False, default=frozenset())
    length: int | None = struct.field(pytree_node=False, default=None)

    @property
    def valid(self) -> Bool[Array, "B T"] | None:
        """Which tokens of x are real; None for all."""
        return self.queries.valid

    def mask(self, rule: Rule) -> Bool[Array, "B|1 H|1 T S"] | None:
        """Which query may see which key; None when every one may see all."""
        parts = []
        if not isinstance(rule, Full):
            q, k = self.queries.positions[:, :, None], self.keys.positions[:, None, :]
            parts.append(rule.allows(q, k)[:, None])
        if self.keys.valid is not None:
            parts.append(self.keys.valid[:, None, None, :])
        if self.keys.segments is not None and self.queries.segments is not None:
            same = self.queries.segments[:, :, None] == self.keys.segments[:, None, :]
            parts.append(same[:, None])
        if self.allowed is not None:
            parts.append(self.allowed)
        mask = None
        for part in parts:
            mask = part if mask is None else mask & part
        return mask


def survey(
    batch: int,
    length: int,
    context_length: int | None = None,
    *,
    allowed: Array | None = None,
    bias: Array | None = None,
    positions: Array | None = None,
    valid: Array | None = None,
    segments: Array | None = None,
    context_positions: Array | None = None,
    context_valid: Array | None = None,
    context_segments: Array | None = None,
    ledger: Ledger | ContextLedger | None = None,
) -> Scope:
    """The scope of one call; see the module's call for the arguments."""
    given = {"valid": valid if context_length is None else context_valid, "segments": segments, "cache": ledger}
    given |= {"allowed": allowed, "bias": bias, "context": context_length, "positions": positions}
    named = frozenset([name for name, value in given.items() if value is not None])
    known = length if valid is positions is segments is None else None
    call = {"positions": positions, "valid": valid, "segments": segments}
    counts = None if ledger is None else ledger.counts
    queries, counts, before = describe(batch, length, **call, counts=counts)
    keys, slots, joined = queries, None, False
    if context_length is not None:
        context = {"positions": context_positions, "valid": context_valid, "segments": context_segments}
        keys, _, _ = describe(batch, context_length, **context)
        if segments is not None:
            # Within a sequence runs are compared; across two, only the numbers mean the same.
            keys = keys._replace(segments=rows(context_segments, batch))
    if isinstance(ledger, ContextLedger) or context_length is not None:
        queries = queries._replace(segments=numbers(ledger, segments, batch, length))
    if isinstance(ledger, ContextLedger):
        ledger, keys, slots, joined = ledger.admit(None if context_length is None else keys, counts)
    elif ledger is not None:
        ledger, keys, slots, joined = ledger.admit(queries, counts, before, rows(segments, batch))
    known = known if ledger is None else ledger.length
    bias = _of_real(queries.valid, per_head(bias))
    return Scope(queries, keys, per_head(allowed), bias, ledger, slots, joined, named, known)


def numbers(ledger: Any, segments: Array | None, batch: int, length: int) -> Array | None:
    """The segment numbers of x, to compare with a context's; without any, a row goes on with its last one."""
    if segments is not None:
        return rows(segments, batch)
    return None if ledger is None else ledger.counts.segment[:, None].repeat(length, axis=1)


def per_head(array: Array | None) -> Array | None:
    """[B|1 H|1 T S] from [T S], [B T S] or what is that already."""
    if array is None or array.ndim == 4:
        return array
    return array[None, None] if array.ndim == 2 else array[:, None]


def _of_real(valid, bias):
    """The bias, and 0 in the row of an invalid query: what stands there does not matter."""
    return bias if bias is None else select(valid, bias.swapaxes(1, 2)).swapaxes(1, 2)


def concrete(*arrays: Array | None) -> bool:
    """Whether the numbers can be looked at, by numpy: inside compiled code only those that it takes for constants."""
    return not any(isinstance(array, jax.core.Tracer) for array in arrays)


def check_values(call: dict[str, Array | None], ledgers: tuple[Any, ...], length: int) -> None:
    """Refuse a bias that JAX would round, positions out of range and a cache that would overflow.

    Compiled code cannot refuse the last two; it gives NaN in those rows.
    """
    for side in ("", "context_"):
        array, valid = call.get(f"{side}positions"), call.get(f"{side}valid")
        if array is not None and concrete(array, valid) and array.size:
            array = np.asarray(array) if valid is None else np.where(valid, array, 0)
            check_range(f"{side}positions", int(array.min()), int(array.max()), LONGEST)
    bias, valid = call.get("bias"), call.get("valid")
    if bias is not None:
        check_x64("bias", bias)
    for ledger in ledgers:
        if concrete(ledger.counts.length, valid):
            ledger.check_room(valid, length)
