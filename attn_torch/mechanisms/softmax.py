"""Softmax attention: queries, keys and values by projection, in one head, many, or groups."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attn.variants.softmax.base import SoftmaxConfig
from attn_torch import functional
from attn_torch.caches.store import extend
from attn_torch.mechanisms.base import AttentionModule
from attn_torch.rotary import Tables, angles
from attn_torch.scope import Scope
from attn_torch.tokens import lengths


class SoftmaxAttention(AttentionModule):
    """y = concat_h( softmax(q_h k_{h//G}^T * scale) v_{h//G} ) Wo, over the keys that each query may see."""

    def __init__(self, cfg: SoftmaxConfig, dtype: torch.dtype | None = None, kernel: str | None = None):
        super().__init__(cfg, dtype, kernel)
        if cfg.rope is not None:
            self.rotary = Tables(cfg.rope, cfg.rope.rotated(cfg.head_dim))

    def within(
        self,
        scope: Scope,
        x: Float[Tensor, "B T M"],
        context: Float[Tensor, "B S X"] | None = None,
        store: Any = None,
    ) -> tuple[Tensor, Any]:
        """(y, store) in a scope that is already surveyed."""
        x, context = self._selected(scope, x, context)
        q, k, v, store = self._heads(scope, x, context, store)
        return self._finish(scope, x, self._attend(scope, q, k, v)), store

    def weights_within(
        self, scope: Scope, x: Float[Tensor, "B T M"], context: Float[Tensor, "B S X"] | None = None
    ) -> Float[Tensor, "B H T S"]:
        """The attention weights in a scope that is already surveyed."""
        q, k, _, _ = self._heads(scope, *self._selected(scope, x, context), None)
        return self._weights(scope, q, k)

    def _heads(self, scope, x, context, store):
        q, k, v = self.q(x), self.k(context), self.v(context)
        q, k = self._normed(q, k, "before")
        if self.cfg.rope is not None:
            q = self._turn(q, scope.queries, scope.length)
            k = self._turn(k, scope.queries, scope.length) if context is x else self._turn(k, scope.keys, None)
        q, k = self._normed(q, k, "after")
        if store is not None:
            store, kept = extend(store, scope, k=k, v=v)
            k, v = kept["k"].to(q.dtype), kept["v"].to(q.dtype)
        return q, k, v, store

    def _normed(self, q, k, place):
        norm = self.cfg.qk_norm
        return (q, k) if norm is None or norm.place != place else (self.q_norm(q), self.k_norm(k))

    def _turn(self, heads, tokens, length):
        rope = self.cfg.rope
        if rope.by_length and length is None:
            length = lengths(tokens)
        cos, sin = angles(self.rotary, tokens.positions, length, functional.wide(heads.dtype))
        return functional.rotate(heads, cos, sin, rope.layout)
