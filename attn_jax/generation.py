"""Generation: a prompt goes through the model at once, then one token after another through its cache."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from attn.sampling import Sampling, check_generation
from attn_jax.beams import search
from attn_jax.caches.building import init_cache
from attn_jax.functional import wide
from attn_jax.tokens import last


def generate(
    module: nn.Module,
    variables: Any,
    tokens: Int[Array, "B T"],
    steps: int,
    *,
    valid: Bool[Array, "B T"] | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int = 0,
    stop: int | None = None,
    beams: int = 1,
) -> Int[Array, "B T+steps"]:
    """The prompt and `steps` more tokens.

    A draw depends on the seed, the row and the step alone, and both twins draw alike. With `beams` nothing is drawn: it
    is the best of so many candidates by the sum of their log-probabilities. After its stop token a row repeats it.
    Prompts of different lengths come padded, on either side, with `valid`.

    Raises:
        ValueError: an argument is out of range, or the tokens do not fit the model; nothing is computed.
    """
    sampling = Sampling(temperature=float(temperature), top_k=top_k, top_p=float(top_p), seed=seed, stop=stop)
    tokens = jnp.asarray(tokens)
    B, T = tokens.shape
    check_generation(module.cfg, T, steps, sampling, beams)
    dtype = module.dtype or jax.tree.leaves(variables)[0].dtype
    uniforms = jnp.asarray(sampling.uniforms(B, steps), wide(dtype))
    module.check(tokens, valid)
    ended = -1 if stop is None else stop
    if beams > 1:
        new = search(module, dtype, variables, tokens, valid, steps=steps, beams=beams, stop=ended)
        return jnp.concatenate([tokens, new.astype(tokens.dtype)], axis=1)
    limits = (sampling.temperature or 1.0, top_k or module.cfg.vocab_size, sampling.top_p)
    new = _generate(module, dtype, temperature == 0, variables, tokens, valid, uniforms, limits, ended)
    return jnp.concatenate([tokens, new.astype(tokens.dtype)], axis=1)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _generate(module, dtype, greedy, variables, tokens, valid, uniforms, limits, stop):
    B, T = tokens.shape
    steps = uniforms.shape[1]

    def pick(logits, step):
        return jnp.argmax(logits, axis=-1) if greedy else draw(logits, uniforms[:, step], *limits)

    def advance(state):
        step, new, cache, done = state
        logits, cache = module.apply(variables, new[:, step - 1][:, None], cache=cache)
        token = jnp.where(done, stop, pick(logits[:, 0], step))
        return step + 1, new.at[:, step].set(token), cache, done | (token == stop)

    cache = init_cache(module.cfg, B, T + steps, dtype=dtype)
    logits, cache = module.apply(variables, tokens, valid=valid, cache=cache)
    first = pick(last(logits, valid), 0)
    new = jnp.full((B, steps), stop, first.dtype).at[:, 0].set(first)
    state = (jnp.asarray(1), new, cache, first == stop)
    state = lax.while_loop(lambda state: (state[0] < steps) & ~state[3].all(), advance, state)
    return state[1]


def draw(
    logits: Float[Array, "B V"], uniform: Float[Array, "B"], temperature: float, top_k: int, top_p: float
) -> Int[Array, "B"]:
    """The token at which the cumulative probability, from the highest down, passes a uniform number."""
    order = jnp.argsort(-logits, axis=-1, stable=True)
    probabilities = jax.nn.softmax(jnp.take_along_axis(logits, order, axis=-1) / temperature, axis=-1)
    probabilities = jnp.where(jnp.arange(logits.shape[-1]) < top_k, probabilities, 0)
    cumulative = jnp.cumsum(probabilities, axis=-1)
    before = cumulative - probabilities
    probabilities = jnp.where(before < top_p * cumulative[:, -1:], probabilities, 0)
    cumulative = jnp.cumsum(probabilities, axis=-1)
    rank = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(axis=-1)
    return jnp.take_along_axis(order, rank[:, None], axis=-1)[:, 0]
