"""Generation: a prompt goes through the model at once, then one token after another through its cache."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

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
    given = _given(module, variables, tokens, steps, valid, sampling, beams)
    if beams > 1:
        new = search(module, given.dtype, variables, tokens, valid, steps=steps, beams=beams, stop=given.stop)
    else:
        new = _generate(module, given.dtype, given.greedy, variables, tokens, valid, *given[2:])
    return jnp.concatenate([tokens, new.astype(tokens.dtype)], axis=1)


def stream(
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
) -> Iterator[Int[Array, "B"]]:
    """What `generate` adds to the prompt, one token for each row at a time, until every row has met its stop token.

    Raises:
        ValueError: as `generate` does, when the first token is asked for.
    """
    sampling = Sampling(temperature=float(temperature), top_k=top_k, top_p=float(top_p), seed=seed, stop=stop)
    tokens = jnp.asarray(tokens)
    given = _given(module, variables, tokens, steps, valid, sampling)
    for token in _stream(module, variables, given, tokens, valid):
        yield token.astype(tokens.dtype)


class _Given(NamedTuple):
    """What a generation is given beside the model and its prompt; stop is -1 where there is none."""

    dtype: Any
    greedy: bool
    uniforms: Float[Array, "B steps"]
    limits: tuple[float, int, float]
    stop: int


def _given(module, variables, tokens, steps, valid, sampling, beams=1):
    B, T = tokens.shape
    check_generation(module.cfg, T, steps, sampling, beams)
    module.check(tokens, valid)
    dtype = module.dtype or jax.tree.leaves(variables)[0].dtype
    uniforms = jnp.asarray(sampling.uniforms(B, steps), wide(dtype))
    limits = sampling.temperature or 1.0, sampling.top_k or module.cfg.vocab_size, sampling.top_p
    return _Given(dtype, sampling.temperature == 0, uniforms, limits, -1 if sampling.stop is None else sampling.stop)


def _stream(module, variables, given, tokens, valid):
    steps, limits = given.uniforms.shape[1], given.limits
    uniform = given.uniforms[:, 0]
    token, cache = _begin(module, given.dtype, given.greedy, steps, variables, tokens, valid, uniform, limits)
    done = token == given.stop
    yield token
    for step in range(1, steps):
        if given.stop >= 0 and bool(done.all()):
            return
        uniform = given.uniforms[:, step]
        token, cache, done = _advance(module, given.greedy, variables, token, cache, done, uniform, limits, given.stop)
        yield token


@partial(jax.jit, static_argnums=(0, 1, 2))
def _generate(module, dtype, greedy, variables, tokens, valid, uniforms, limits, stop):
    """The whole generation as one program."""
    B, steps = uniforms.shape

    def advance(state):
        step, new, cache, done = state
        token, uniform = new[:, step - 1], uniforms[:, step]
        token, cache, done = _advance(module, greedy, variables, token, cache, done, uniform, limits, stop)
        return step + 1, new.at[:, step].set(token), cache, done

    first, cache = _begin(module, dtype, greedy, steps, variables, tokens, valid, uniforms[:, 0], limits)
    new = jnp.full((B, steps), stop, first.dtype).at[:, 0].set(first)
    state = (jnp.asarray(1), new, cache, first == stop)
    state = lax.while_loop(lambda state: (state[0] < steps) & ~state[3].all(), advance, state)
    return state[1]


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _begin(module, dtype, greedy, steps, variables, tokens, valid, uniform, limits):
    B, T = tokens.shape
    cache = init_cache(module.cfg, B, T + steps, dtype=dtype)
    logits, cache = module.apply(variables, tokens, valid=valid, cache=cache)
    return _pick(greedy, last(logits, valid), uniform, limits), cache


@partial(jax.jit, static_argnums=(0, 1))
def _advance(module, greedy, variables, token, cache, done, uniform, limits, stop):
    logits, cache = module.apply(variables, token[:, None], cache=cache)
    token = jnp.where(done, stop, _pick(greedy, logits[:, 0], uniform, limits))
    return token, cache, done | (token == stop)


def _pick(greedy, logits, uniform, limits):
    return jnp.argmax(logits, axis=-1) if greedy else draw(logits, uniform, *limits)


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
