"""Softmax attention: queries, keys and values by projection, in one head, many, or groups."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attn.variants.softmax.base import SoftmaxConfig
from attn_torch.mechanisms.base import AttentionModule
from attn_torch.rotary import Tables
from attn_torch.scope import Scope


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
        flat, flat_keys = self._selected(scope, x, context)
        q = self._queries(scope, flat)
        kept, store = self._keep(scope, self._new(scope, flat_keys), store)
        k, v = kept["k"], kept["v"]
        if k.dtype != q.dtype:
            k, v = k.to(q.dtype), v.to(q.dtype)
        return self._finish(scope, flat, self._attend(scope, q, k, v)), store

    def weights_within(
        self, scope: Scope, x: Float[Tensor, "B T M"], context: Float[Tensor, "B S X"] | None = None
    ) -> Float[Tensor, "B H T S"]:
        """The attention weights in a scope that is already surveyed."""
        flat, flat_keys = self._selected(scope, x, context)
        return self._weights(scope, self._queries(scope, flat), self._new(scope, flat_keys)["k"])

    def _queries(self, scope, flat):
        norm = self.cfg.qk_norm
        q = self.q(*flat)
        q = self.q_norm(q) if norm is not None and norm.place == "before" else q
        q = self._turn(scope, q)
        return self.q_norm(q) if norm is not None and norm.place == "after" else q

    def _new(self, scope, flat):
        """Keys and values of the tokens that this call brings: x's own, or the context's; None without either."""
        if flat is None:
            return None
        norm = self.cfg.qk_norm
        k = self.k(*flat)
        k = self.k_norm(k) if norm is not None and norm.place == "before" else k
        k = self._turn(scope, k, of_keys=True)
        k = self.k_norm(k) if norm is not None and norm.place == "after" else k
        return {"k": k, "v": self.v(*flat)}
