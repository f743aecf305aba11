"""The scope of a call: its queries, its keys, and which may see which. One scope serves all layers of a model."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch._C import _functorch
from torch._subclasses import FakeTensor
from torch.overrides import _get_current_function_mode

from attn.call import check_range
from attn.masks import Full, Rule
from attn.positions import LONGEST
from attn_torch.caches.context import ContextLedger
from attn_torch.caches.ledger import Ledger
from attn_torch.functional import select
from attn_torch.recording import Recording
from attn_torch.tokens import Tokens, describe, rows


@dataclass
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
        below: no position of x reaches it.
    """

    queries: Tokens
    keys: Tokens
    allowed: Bool[Tensor, "B|1 H|1 T S"] | None = None
    bias: Float[Tensor, "B|1 H|1 T S"] | None = None
    ledger: Ledger | ContextLedger | None = None
    slots: Tensor | None = None
    joined: bool = False
    given: frozenset[str] = frozenset()
    length: int | None = None
    below: int = LONGEST
    _made: list[tuple[tuple[Any, ...], Any]] = field(default_factory=list)

    @property
    def valid(self) -> Bool[Tensor, "B T"] | None:
        """Which tokens of x are real; None for all."""
        return self.queries.valid

    def mask(self, rule: Rule) -> Bool[Tensor, "B|1 H|1 T S"] | None:
        """Which query may see which key; None when every one may see all."""
        return self.once((rule,), lambda: self._mask(rule))

    def once(self, of: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """`make()`, called once for all layers that ask for it `of` the same."""
        for known, value in self._made:
            if known == of:
                return value
        value = make()
        self._made.append((of, value))
        return value

    def _mask(self, rule: Rule) -> Tensor | None:
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


class Whole(Scope):
    """The scope of x alone: every token is real; its position is its index, made when somebody asks for it."""

    def __init__(self, length: int, device: torch.device | None):
        self.length = self.below = length
        self._device, self._tokens, self._made = device, None, []

    @property
    def valid(self) -> None:
        """All of them."""

    @property
    def queries(self) -> Tokens:
        """The tokens of x."""
        if self._tokens is None:
            self._tokens = Tokens(torch.arange(self.length, device=self._device)[None], None, None)
        return self._tokens

    @property
    def keys(self) -> Tokens:
        """The same."""
        return self.queries


def survey(
    batch: int,
    length: int,
    context_length: int | None = None,
    *,
    allowed: Tensor | None = None,
    bias: Tensor | None = None,
    positions: Tensor | None = None,
    valid: Tensor | None = None,
    segments: Tensor | None = None,
    context_positions: Tensor | None = None,
    context_valid: Tensor | None = None,
    context_segments: Tensor | None = None,
    ledger: Ledger | ContextLedger | None = None,
    device: torch.device | None = None,
) -> Scope:
    """The scope of one call; see the module's call for the arguments."""
    if allowed is bias is positions is valid is segments is ledger is context_length is None:
        return Whole(length, device)
    given = {"valid": valid if context_length is None else context_valid, "segments": segments, "cache": ledger}
    given |= {"allowed": allowed, "bias": bias, "context": context_length, "positions": positions}
    named = frozenset([name for name, value in given.items() if value is not None])
    known = length if valid is positions is segments is None else None
    call = {"positions": positions, "valid": valid, "segments": segments}
    counts = None if ledger is None else ledger.counts
    queries, counts, before = describe(batch, length, **call, counts=counts, device=device)
    keys, slots, joined = queries, None, False
    if context_length is not None:
        context = {"positions": context_positions, "valid": context_valid, "segments": context_segments}
        keys, _, _ = describe(batch, context_length, **context, device=device)
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
    below = LONGEST if positions is not None else length if ledger is None else ledger.below
    return Scope(queries, keys, per_head(allowed), bias, ledger, slots, joined, named, known, below)


def numbers(ledger: Any, segments: Tensor | None, batch: int, length: int) -> Tensor | None:
    """The segment numbers of x, to compare with a context's; without any, a row goes on with its last one."""
    if segments is not None:
        return rows(segments, batch)
    return None if ledger is None else ledger.counts.segment[:, None].expand(batch, length)


def per_head(array: Tensor | None) -> Tensor | None:
    """[B|1 H|1 T S] from [T S], [B T S] or what is that already."""
    if array is None or array.ndim == 4:
        return array
    return array[None, None] if array.ndim == 2 else array[:, None]


def _of_real(valid, bias):
    """The bias, and 0 in the row of an invalid query: what stands there does not matter."""
    return bias if bias is None else select(valid, bias.transpose(1, 2)).transpose(1, 2)


def concrete(*arrays: Tensor | None) -> bool:
    """Whether the numbers can be looked at: not inside compiled code, while a step is written down, or where none are.

    There are none on the device "meta" or under a FakeTensorMode, and many where `torch.func.vmap` hides an axis.
    """
    # PyTorch tells which mode it is in, and what `torch.func` has wrapped, under private names alone.
    if torch.compiler.is_compiling() or isinstance(_get_current_function_mode(), Recording):
        return False
    return not any(array is not None and _unknown(array) for array in arrays)


def _unknown(array: Tensor) -> bool:
    while _functorch.is_functorch_wrapped_tensor(array):
        if _functorch.is_batchedtensor(array):
            return True
        array = _functorch.get_unwrapped(array)
    return array.is_meta or isinstance(array, FakeTensor)


def check_values(call: dict[str, Tensor | None], ledgers: tuple[Any, ...], length: int) -> None:
    """Refuse positions out of range and a cache that would overflow; compiled code gives NaN in those rows instead."""
    for side in ("", "context_"):
        array, valid = call.get(f"{side}positions"), call.get(f"{side}valid")
        if array is not None and concrete(array, valid) and array.numel():
            array = array.long() if valid is None else torch.where(valid, array.long(), 0)
            check_range(f"{side}positions", int(array.min()), int(array.max()), LONGEST)
    valid = call.get("valid")
    for ledger in ledgers:
        if concrete(ledger.counts.length, valid):
            ledger.check_room(valid, length)
