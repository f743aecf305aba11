"""Softmax attention: queries, keys and values by projection, in one head, many, or groups."""

from typing import Any

from jaxtyping import Array, Float

from attn_jax import functional
from attn_jax.caches.store import extend
from attn_jax.mechanisms.base import AttentionModule
from attn_jax.rotary import angles
from attn_jax.scope import Scope
from attn_jax.tokens import lengths


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
        q, k, v, store = self._heads(scope, x, context, store)
        return self._finish(scope, x, self._attend(scope, q, k, v, deterministic)), store

    def weights_within(
        self, scope: Scope, x: Float[Array, "B T M"], context: Float[Array, "B S X"] | None = None
    ) -> Float[Array, "B H T S"]:
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
            k, v = kept["k"].astype(q.dtype), kept["v"].astype(q.dtype)
        return q, k, v, store

    def _normed(self, q, k, place):
        norm = self.cfg.qk_norm
        return (q, k) if norm is None or norm.place != place else (self.q_norm(q), self.k_norm(k))

    def _turn(self, heads, tokens, length):
        rope = self.cfg.rope
        if rope.by_length and length is None:
            length = lengths(tokens)
        width = rope.rotated(heads.shape[-1])
        cos, sin = angles(rope, width, tokens.positions, length, functional.wide(heads.dtype))
        return functional.rotate(heads, cos, sin, rope.layout)
