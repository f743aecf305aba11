"""Latent attention: the keys and values of all heads are read from one small latent per token."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from attn_torch.caches.store import extend
from attn_torch.mechanisms.base import AttentionModule
from attn_torch.scope import Scope


class LatentAttention(AttentionModule):
    """y = concat_h( softmax(q_h k_h^T * scale) v_h ) Wo with k_h = l Wk_h, v_h = l Wv_h and the latent l = c Wdown."""

    def within(
        self,
        scope: Scope,
        x: Float[Tensor, "B T M"],
        context: Float[Tensor, "B S X"] | None = None,
        store: Any = None,
    ) -> tuple[Tensor, Any]:
        """(y, store) in a scope that is already surveyed."""
        x, context = self._selected(scope, x, context)
        q, latent, store = self._latent(scope, x, context, store)
        attended = self._attend(scope, q, self.k_up(latent), self.v_up(latent))
        return self._finish(scope, x, attended), store

    def weights_within(
        self, scope: Scope, x: Float[Tensor, "B T M"], context: Float[Tensor, "B S X"] | None = None
    ) -> Float[Tensor, "B H T S"]:
        """The attention weights in a scope that is already surveyed."""
        q, latent, _ = self._latent(scope, *self._selected(scope, x, context), None)
        return self._weights(scope, q, self.k_up(latent))

    def _latent(self, scope, x, context, store):
        q, latent = self.q(x), self.kv_down(context)
        if store is not None:
            store, kept = extend(store, scope, latent=latent)
            latent = kept["latent"].to(q.dtype)
        return q, latent, store
