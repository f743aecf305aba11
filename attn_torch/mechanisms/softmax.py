"""Softmax attention: queries, keys and values by projection, in one head, many, or groups."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attn.variants.softmax.base import SoftmaxConfig
from attn_torch import functional, kernels
from attn_torch.caches.store import extend
from attn_torch.mechanisms.base import AttentionModule
from attn_torch.parts import Rotary
from attn_torch.scope import Scope


class SoftmaxAttention(AttentionModule):
    """y = concat_h( softmax(q_h k_{h//G}^T * scale) v_{h//G} ) Wo, over the keys that each query may see."""

    def __init__(self, cfg: SoftmaxConfig, dtype: torch.dtype | None = None, kernel: str | None = None):
        super().__init__(cfg, dtype, kernel)
        if cfg.rope is not None:
            self.rotary = Rotary(cfg.rope, cfg.rope.rotated(cfg.head_dim))

    def within(
        self,
        scope: Scope,
        x: Float[Tensor, "B T M"],
        context: Float[Tensor, "B S X"] | None = None,
        store: Any = None,
    ) -> tuple[Tensor, Any]:
        """(y, store) in a scope that is already surveyed."""
        q, k, v, store = self._heads(scope, x, context, store)
        attended = kernels.attend(self.cfg, scope, q, k, v, scale=self.cfg.score_scale, kernel=self.kernel)
        attended = self.out(attended) if "out" in self.cfg.projections else attended.reshape(*x.shape[:2], -1)
        return functional.select(scope.queries.valid, attended), store

    def weights_within(
        self, scope: Scope, x: Float[Tensor, "B T M"], context: Float[Tensor, "B S X"] | None = None
    ) -> Float[Tensor, "B H T S"]:
        """The attention weights in a scope that is already surveyed."""
        q, k, _, _ = self._heads(scope, x, context, None)
        mask = scope.mask(self.cfg.rule)
        weights = functional.attention_weights(q, k, scale=self.cfg.score_scale, allowed=mask, bias=scope.bias)
        return functional.select(scope.queries.valid, weights.transpose(1, 2)).transpose(1, 2)

    def _heads(self, scope, x, context, store):
        x, context = self._selected(scope, x, context)
        q, k, v = self.q(x), self.k(context), self.v(context)
        if self.cfg.rope is not None:
            q, k = self._turn(q, scope.queries), self._turn(k, scope.queries if context is x else scope.keys)
        if store is not None:
            store, kept = extend(store, scope, k=k, v=v)
            k, v = kept["k"].to(q.dtype), kept["v"].to(q.dtype)
        return q, k, v, store

    def _turn(self, heads, tokens):
        cos, sin = self.rotary(tokens.positions, functional.wide(heads.dtype))
        return functional.rotate(heads, cos, sin, self.cfg.rope.layout)
