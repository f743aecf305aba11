"""Beam search: the most probable continuations that a few candidates at a time can find."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from attn_jax.caches.building import init_cache
from attn_jax.tokens import last


@partial(jax.jit, static_argnums=(0, 1), static_argnames=("steps", "beams", "stop"))
def search(
    module: nn.Module,
    dtype: Any,
    variables: Any,
    tokens: Int[Array, "B T"],
    valid: Bool[Array, "B T"] | None,
    *,
    steps: int,
    beams: int,
    stop: int,
) -> Int[Array, "B steps"]:
    """The best of `beams` candidates by the sum of their tokens' log-probabilities; equal ones by the lowest token.

    A candidate that has met the stop token keeps its sum and repeats it. `stop` is -1 where there is none.
    """
    B, T = tokens.shape
    V = module.cfg.vocab_size
    cache = init_cache(module.cfg, B, T + steps, dtype=dtype)
    logits, cache = module.apply(variables, tokens, valid=valid, cache=cache)
    sums, first = lax.top_k(jax.nn.log_softmax(last(logits, valid)), beams)
    cache = cache.select(jnp.repeat(jnp.arange(B), beams))
    new = jnp.full((B, beams, steps), stop, first.dtype).at[:, :, 0].set(first)

    def advance(state):
        step, new, sums, cache, done = state
        logits, cache = module.apply(variables, new[:, :, step - 1].reshape(-1, 1), cache=cache)
        logs = jax.nn.log_softmax(logits.reshape(B, beams, V))
        logs = jnp.where(done[:, :, None], jnp.where(jnp.arange(V) == stop, 0, -jnp.inf), logs)
        sums, best = lax.top_k((sums[:, :, None] + logs).reshape(B, -1), beams)
        beam, token = best // V, best % V
        new = jnp.take_along_axis(new, beam[:, :, None], axis=1).at[:, :, step].set(token)
        done = jnp.take_along_axis(done, beam, axis=1) | (token == stop)
        rows = (beam + jnp.arange(B)[:, None] * beams).reshape(-1)
        return step + 1, new, sums, cache.select(rows), done

    state = (jnp.asarray(1), new, sums, cache, first == stop)
    state = lax.while_loop(lambda state: (state[0] < steps) & ~state[4].all(), advance, state)
    return state[1][:, 0]
