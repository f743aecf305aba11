"""What every mechanism does around its own computation: check the call, survey its tokens, keep its cache."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attn.call import check_call
from attn.kernels import FORMS
from attn.positions import LONGEST, Alibi, Buckets
from attn.variants.base import AttentionConfig
from attn_torch import functional, kernels
from attn_torch.caches.cache import Cache
from attn_torch.caches.context import ContextLedger
from attn_torch.caches.store import extend
from attn_torch.parts import declare, flattened
from attn_torch.rotary import turns
from attn_torch.scope import Scope, Whole, check_values, survey
from attn_torch.scoring import Scoring
from attn_torch.tokens import lengths


class AttentionModule(nn.Module):
    """An attention variant with its parameters.

    Attributes:
        cfg: the variant's config.
        dtype: what inputs and parameters are cast to on use; None computes in the parameters' own dtype.
        kernel: the name of a kernel to force; None lets `explain`'s choice stand.
    """

    def __init__(self, cfg: AttentionConfig, dtype: torch.dtype | None = None, kernel: str | None = None):
        super().__init__()
        self.cfg = cfg
        self.dtype = dtype
        self.kernel = kernel
        declare(self, cfg, dtype)
        # What each call would otherwise read out of the config again.
        self._width = cfg.input_dim if cfg.reads is None else None
        alibi = cfg.position_bias if isinstance(cfg.position_bias, Alibi) else None
        slopes = None if alibi is None else tuple(alibi.slopes(cfg.heads).tolist())
        self._scored = Scoring(cfg.score_scale, cfg.softcap, slopes)
        self._kernels = {}

    def forward(
        self,
        x: Float[Tensor, "B T M"],
        context: Float[Tensor, "B S X"] | None = None,
        *,
        allowed: Bool[Tensor, "B|1 H|1 T S"] | None = None,
        bias: Float[Tensor, "B|1 H|1 T S"] | None = None,
        positions: Int[Tensor, "B T"] | None = None,
        valid: Bool[Tensor, "B T"] | None = None,
        segments: Int[Tensor, "B T"] | None = None,
        context_positions: Int[Tensor, "B S"] | None = None,
        context_valid: Bool[Tensor, "B S"] | None = None,
        context_segments: Int[Tensor, "B S"] | None = None,
        cache: Cache | None = None,
    ) -> Any:
        """y [B T M] (or [B T E] without an output projection); with a cache, (y, cache).

        `valid`, `positions` and `segments` ([B T] or [T]) describe x, `context_*` the context; `allowed` and `bias` are
        [T S], [B T S] or [B|1 H|1 T S]. True means: may attend, real token. Where a token is invalid y is exactly 0.

        Raises:
            ValueError: an argument contradicts the config or another argument; nothing is computed.
        """
        # Of x alone there is nothing to check but its shape; to look for more would take as long as a small product.
        if context is allowed is bias is positions is valid is segments is cache is None and (
            context_positions is context_valid is context_segments is None and self._plainly(x)
        ):
            return self.within(Whole(x.shape[1], x.device), x)[0]
        call = {"allowed": allowed, "bias": bias, "positions": positions, "valid": valid, "segments": segments}
        call |= {"context_positions": context_positions, "context_valid": context_valid}
        call |= {"context_segments": context_segments}
        scope = self._open(x, context, call, cache)
        y, store = self.within(scope, x, context, None if cache is None else cache.stores[0])
        if cache is None:
            return y
        cache = cache.after((scope.ledger,), (store,))
        return cache.poison(y), cache

    def attention_weights(
        self,
        x: Float[Tensor, "B T M"],
        context: Float[Tensor, "B S X"] | None = None,
        *,
        allowed: Bool[Tensor, "B|1 H|1 T S"] | None = None,
        bias: Float[Tensor, "B|1 H|1 T S"] | None = None,
        positions: Int[Tensor, "B T"] | None = None,
        valid: Bool[Tensor, "B T"] | None = None,
        segments: Int[Tensor, "B T"] | None = None,
        context_positions: Int[Tensor, "B S"] | None = None,
        context_valid: Bool[Tensor, "B S"] | None = None,
        context_segments: Int[Tensor, "B S"] | None = None,
    ) -> Float[Tensor, "B H T S"]:
        """How much each query attends to each key, in at least float32; rows of invalid or blind queries are 0."""
        call = {"allowed": allowed, "bias": bias, "positions": positions, "valid": valid, "segments": segments}
        call |= {"context_positions": context_positions, "context_valid": context_valid}
        call |= {"context_segments": context_segments}
        scope = self._open(x, context, call, None)
        return self.weights_within(scope, x, context)

    def within(
        self,
        scope: Scope,
        x: Float[Tensor, "B T M"],
        context: Float[Tensor, "B S X"] | None = None,
        store: Any = None,
    ) -> tuple[Tensor, Any]:
        """The computation itself, in a scope that is already surveyed: (y, store)."""
        raise NotImplementedError

    def weights_within(
        self, scope: Scope, x: Float[Tensor, "B T M"], context: Float[Tensor, "B S X"] | None = None
    ) -> Float[Tensor, "B H T S"]:
        """The attention weights in a scope that is already surveyed."""
        raise NotImplementedError

    def _plainly(self, x) -> bool:
        """Whether a call that brings x alone has nothing more to check."""
        return x.ndim == 3 and x.shape[2] == self._width

    def _open(self, x, context, call, cache) -> Scope:
        length = None if context is None else context.shape[1]
        if cache is None:
            check_call(self.cfg, x, context, **call)
            check_values(call, (), x.shape[1])
            return survey(*x.shape[:2], length, **call, device=x.device)
        cache.check(self.cfg, x.shape[0], call)
        ledger = cache.ledgers[0]
        check_call(self.cfg, x, context, **call, slots=ledger.capacity, cached=isinstance(ledger, ContextLedger))
        check_values(call, cache.ledgers, x.shape[1])
        return survey(*x.shape[:2], length, **call, ledger=ledger, device=x.device)

    def _selected(self, scope, x, context):
        """x and what keys are read from, each flattened for its projections; None for a context read before."""
        flat = flattened(functional.select(scope.valid, x))
        if self.cfg.reads is None:
            return flat, flat
        return flat, None if context is None else flattened(functional.select(scope.keys.valid, context))

    def _keep(self, scope, new, store):
        """What the call reads of its keys, by name, and the store after it; `new` is None for a context read before."""
        if store is None:
            return new, None
        return (store, store) if new is None else extend(store, scope, new)

    def _turn(self, scope, heads, of_keys=False):
        """Heads at the positions of their tokens; keys of a context have positions of their own."""
        rope = self.cfg.rope
        if rope is None:
            return heads
        apart, dtype = of_keys and self.cfg.reads is not None, functional.wide(heads.dtype)
        key = rope, self.rotary.width, apart, dtype
        cos, sin = scope.once(key, lambda: self._turns(scope, apart, dtype))
        return functional.rotate(heads, cos, sin, rope.layout)

    def _turns(self, scope, apart, dtype):
        if isinstance(scope, Whole):
            # Positions that are indices need not be written down.
            return turns(self.rotary, None, scope.length, dtype, scope.length)
        tokens, length, below = (scope.keys, None, LONGEST) if apart else (scope.queries, scope.length, scope.below)
        if self.cfg.rope.by_length and length is None:
            length = lengths(tokens)
        return turns(self.rotary, tokens.positions, length, dtype, below)

    def _scoring(self):
        dropout, buckets = self.cfg.dropout if self.training else 0.0, isinstance(self.cfg.position_bias, Buckets)
        if not (self.cfg.sinks or buckets or dropout):
            return self._scored
        sinks, relative = self.sinks if self.cfg.sinks else None, self._relative() if buckets else None
        return self._scored._replace(relative=relative, sinks=sinks, dropout=dropout)

    def _relative(self):
        table = self.cfg.position_bias.table().tolist()
        relative = self.position_bias(torch.tensor(table, device=self.position_bias.weight.device)).T
        return relative.to(functional.wide(relative.dtype))

    def _attend(self, scope, q, k, v):
        scoring, kernel = self._scoring(), None if self.kernel in FORMS else self.kernel
        bias, known = scope.bias, self._kernels
        return kernels.attend(self.cfg.rule, scope, scoring, q, k, v, bias=bias, kernel=kernel, known=known)

    def _weights(self, scope, q, k):
        scoring, mask = self._scoring()._replace(dropout=0.0), scope.mask(self.cfg.rule)
        bias = functional.positioned(scope.bias, scoring, scope.queries.positions, scope.keys.positions, q.dtype)
        weights = functional.attention_weights(q, k, scoring, allowed=mask, bias=bias)
        return functional.select(scope.valid, weights.transpose(1, 2)).transpose(1, 2)

    def _finish(self, scope, flat, attended):
        if self.cfg.output_gate is not None:
            gate = functional.sigmoid(self.gate(*flat))
            attended = attended * (gate if self.cfg.output_gate == "elementwise" else gate[..., None])
        y = self.out(attended) if "out" in self._modules else attended.flatten(2)
        return functional.select(scope.valid, y)
