"""Softmax attention: queries, keys and values by projection, in one head, many, or groups."""

from typing import Any

from jaxtyping import Array, Float

from attn_jax.mechanisms.base import AttentionModule
from attn_jax.scope import Scope


class SoftmaxAttention(AttentionModule):
    """y = concat_h( softmax(q_h k_{h//G}^T * scale) v_{h//G} ) Wo, over the keys that each query may see."""

    def within(
        self,
        scope: Scope,
        x: Float[Array, "B T M"],
        context: Float[Array, "B S X"] | None = None,
        store: Any = None,
        deterministic: bool = True,
    ) -> tuple[Array, Any]:
        """(y, store) in a scope that is already surveyed."""
        x, context = self._selected(scope, x, context)
        q = self._queries(scope, x)
        kept, store = self._keep(scope, self._new(scope, context), store)
        k, v = kept["k"].astype(q.dtype), kept["v"].astype(q.dtype)
        return self._finish(scope, x, self._attend(scope, q, k, v, deterministic)), store

    def weights_within(
        self, scope: Scope, x: Float[Array, "B T M"], context: Float[Array, "B S X"] | None = None
    ) -> Float[Array, "B H T S"]:
        """The attention weights in a scope that is already surveyed."""
        x, context = self._selected(scope, x, context)
        return self._weights(scope, self._queries(scope, x), self._new(scope, context)["k"])

    def _queries(self, scope, x):
        norm = self.cfg.qk_norm
        q = self.q(x)
        q = self.q_norm(q) if norm is not None and norm.place == "before" else q
        q = self._turn(scope, q)
        return self.q_norm(q) if norm is not None and norm.place == "after" else q

    def _new(self, scope, context):
        """Keys and values of the tokens that this call brings: x's own, or the context's; None without either."""
        if context is None:
            return None
        norm = self.cfg.qk_norm
        k = self.k(context)
        k = self.k_norm(k) if norm is not None and norm.place == "before" else k
        k = self._turn(scope, k, of_keys=True)
        k = self.k_norm(k) if norm is not None and norm.place == "after" else k
        return {"k": k, "v": self.v(context)}
