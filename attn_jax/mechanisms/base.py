"""What every mechanism does around its own computation: check the call, survey its tokens, keep its cache."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attn.call import check_call
from attn.kernels import FORMS
from attn.positions import Alibi, Buckets
from attn.variants.base import AttentionConfig
from attn_jax import functional, kernels
from attn_jax.caches.cache import Cache
from attn_jax.caches.context import ContextLedger
from attn_jax.caches.store import extend
from attn_jax.parts import declare
from attn_jax.rotary import turns
from attn_jax.scope import Scope, check_values, survey
from attn_jax.scoring import Scoring
from attn_jax.tokens import lengths


class AttentionModule(nn.Module):
    """An attention variant with its parameters.

    Attributes:
        cfg: the variant's config.
        dtype: what inputs and parameters are cast to on use; None computes in the parameters' own dtype.
        kernel: the name of a kernel to force; None lets `explain`'s choice stand.
    """

    cfg: AttentionConfig
    dtype: Any = None
    kernel: str | None = None

    def setup(self):
        declare(self, self.cfg, self.dtype)

    def __call__(
        self,
        x: Float[Array, "B T M"],
        context: Float[Array, "B S X"] | None = None,
        *,
        allowed: Bool[Array, "B|1 H|1 T S"] | None = None,
        bias: Float[Array, "B|1 H|1 T S"] | None = None,
        positions: Int[Array, "B T"] | None = None,
        valid: Bool[Array, "B T"] | None = None,
        segments: Int[Array, "B T"] | None = None,
        context_positions: Int[Array, "B S"] | None = None,
        context_valid: Bool[Array, "B S"] | None = None,
        context_segments: Int[Array, "B S"] | None = None,
        cache: Cache | None = None,
        deterministic: bool = True,
    ) -> Any:
        """y [B T M] (or [B T E] without an output projection); with a cache, (y, cache).

        `valid`, `positions` and `segments` ([B T] or [T]) describe x, `context_*` the context; `allowed` and `bias` are
        [T S], [B T S] or [B|1 H|1 T S]. True means: may attend, real token. Where a token is invalid y is exactly 0.
        Without `deterministic`, dropout draws from the "dropout" rng.

        Raises:
            ValueError: an argument contradicts the config or another argument; nothing is computed.
        """
        call = {"allowed": allowed, "bias": bias, "positions": positions, "valid": valid, "segments": segments}
        call |= {"context_positions": context_positions, "context_valid": context_valid}
        call |= {"context_segments": context_segments}
        scope = self._open(x, context, call, cache)
        y, store = self.within(scope, x, context, None if cache is None else cache.stores[0], deterministic)
        if cache is None:
            return y
        cache = cache.after((scope.ledger,), (store,))
        return cache.poison(y), cache

    def attention_weights(
        self,
        x: Float[Array, "B T M"],
        context: Float[Array, "B S X"] | None = None,
        *,
        allowed: Bool[Array, "B|1 H|1 T S"] | None = None,
        bias: Float[Array, "B|1 H|1 T S"] | None = None,
        positions: Int[Array, "B T"] | None = None,
        valid: Bool[Array, "B T"] | None = None,
        segments: Int[Array, "B T"] | None = None,
        context_positions: Int[Array, "B S"] | None = None,
        context_valid: Bool[Array, "B S"] | None = None,
        context_segments: Int[Array, "B S"] | None = None,
    ) -> Float[Array, "B H T S"]:
        """How much each query attends to each key, in at least float32; rows of invalid or blind queries are 0."""
        call = {"allowed": allowed, "bias": bias, "positions": positions, "valid": valid, "segments": segments}
        call |= {"context_positions": context_positions, "context_valid": context_valid}
        call |= {"context_segments": context_segments}
        scope = self._open(x, context, call, None)
        return self.weights_within(scope, x, context)

    def within(
        self,
        scope: Scope,
        x: Float[Array, "B T M"],
        context: Float[Array, "B S X"] | None = None,
        store: Any = None,
        deterministic: bool = True,
    ) -> tuple[Array, Any]:
        """The computation itself, in a scope that is already surveyed: (y, store)."""
        raise NotImplementedError

    def weights_within(
        self, scope: Scope, x: Float[Array, "B T M"], context: Float[Array, "B S X"] | None = None
    ) -> Float[Array, "B H T S"]:
        """The attention weights in a scope that is already surveyed."""
        raise NotImplementedError

    def _open(self, x, context, call, cache) -> Scope:
        length = None if context is None else context.shape[1]
        if cache is None:
            check_call(self.cfg, x, context, **call)
            check_values(call, (), x.shape[1])
            return survey(*x.shape[:2], length, **call)
        cache.check(self.cfg, x.shape[0], call)
        ledger = cache.ledgers[0]
        check_call(self.cfg, x, context, **call, slots=ledger.capacity, cached=isinstance(ledger, ContextLedger))
        check_values(call, cache.ledgers, x.shape[1])
        return survey(*x.shape[:2], length, **call, ledger=ledger)

    def _selected(self, scope, x, context):
        x = functional.select(scope.valid, x)
        if self.cfg.reads is None:
            return x, x
        return x, None if context is None else functional.select(scope.keys.valid, context)

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
        tokens, length = (scope.keys, None) if of_keys and self.cfg.reads is not None else (scope.queries, scope.length)
        if rope.by_length and length is None:
            length = lengths(tokens)
        width = rope.rotated(heads.shape[-1])
        cos, sin = turns(rope, width, tokens.positions, length, functional.wide(heads.dtype))
        return functional.rotate(heads, cos, sin, rope.layout)

    def _scoring(self, deterministic):
        alibi = self.cfg.position_bias if isinstance(self.cfg.position_bias, Alibi) else None
        slopes = None if alibi is None else tuple(alibi.slopes(self.cfg.heads).tolist())
        sinks = self.sinks if self.cfg.sinks else None
        dropout = 0.0 if deterministic else self.cfg.dropout
        return Scoring(
            self.cfg.score_scale,
            self.cfg.softcap,
            slopes,
            self._relative(),
            sinks,
            dropout,
            self.make_rng("dropout") if dropout else None,
        )

    def _relative(self):
        buckets = self.cfg.position_bias
        if not isinstance(buckets, Buckets):
            return None
        relative = self.position_bias(jnp.asarray(buckets.table())).T
        return relative.astype(functional.wide(relative.dtype))

    def _attend(self, scope, q, k, v, deterministic):
        kernel = None if self.kernel in FORMS else self.kernel
        scoring = self._scoring(deterministic)
        return kernels.attend(self.cfg.rule, scope, scoring, q, k, v, bias=scope.bias, kernel=kernel)

    def _weights(self, scope, q, k):
        scoring, mask = self._scoring(True), scope.mask(self.cfg.rule)
        bias = functional.positioned(scope.bias, scoring, scope.queries.positions, scope.keys.positions, q.dtype)
        weights = functional.attention_weights(q, k, scoring, allowed=mask, bias=bias)
        return functional.select(scope.valid, weights.swapaxes(1, 2)).swapaxes(1, 2)

    def _finish(self, scope, x, attended):
        if self.cfg.output_gate is not None:
            gate = functional.sigmoid(self.gate(x))
            attended = attended * (gate if self.cfg.output_gate == "elementwise" else gate[..., None])
        y = self.out(attended) if "out" in self.cfg.projections else attended.reshape(*x.shape[:2], -1)
        return functional.select(scope.valid, y)
