"""Arithmetic without parameters: the plain form of everything the twins compute."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from attn_jax.scoring import Scoring

SUMMED = 32
"""A number's gradient is the sum of very many: over so many queries at once, and then of these sums. It rounds less."""


def wide(dtype) -> jnp.dtype:
    """The dtype of scores, statistics and angles: at least float32."""
    return jnp.promote_types(dtype, jnp.float32)


def select(valid: Bool[Array, "B T"] | None, x: Float[Array, "B T ..."]) -> Float[Array, "B T ..."]:
    """x where a token is valid, exactly 0 elsewhere, whatever stood there."""
    if valid is None:
        return x
    return jnp.where(valid.reshape(*valid.shape, *(1,) * (x.ndim - 2)), x, jnp.zeros((), x.dtype))


def attend(
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    v: Float[Array, "B S K E"],
    scoring: Scoring,
    *,
    allowed: Bool[Array, "B|1 H|1 T S"] | None = None,
    bias: Float[Array, "B|1 H|1 T S"] | None = None,
) -> Float[Array, "B T H E"]:
    """softmax(cap(q k^T * scale) + bias over the allowed keys) v; 0, with zero gradient, where nothing may be seen.

    Query head h reads key/value head h // G. Scores and weights are at least float32; dropout acts on the weights.
    """
    B, T, H, _ = q.shape
    S, K, E = v.shape[1:]
    weights = dropped(attention_weights(q, k, scoring, allowed=allowed, bias=bias), scoring).astype(v.dtype)
    weights = weights.reshape(B, K, H // K * T, S)
    attended = jnp.matmul(weights, v.swapaxes(1, 2), preferred_element_type=wide(v.dtype))
    return attended.reshape(B, H, T, E).swapaxes(1, 2).astype(v.dtype)


def attention_weights(
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    scoring: Scoring,
    *,
    allowed: Bool[Array, "B|1 H|1 T S"] | None = None,
    bias: Float[Array, "B|1 H|1 T S"] | None = None,
) -> Float[Array, "B H T S"]:
    """softmax(cap(q k^T * scale) + bias) over the allowed keys, in at least float32; 0 where nothing may be seen."""
    B, T, H, D = q.shape
    S, K = k.shape[1:3]
    # One product for all queries of a group; an einsum would choose an order in which XLA has to turn the scores round.
    q = q.swapaxes(1, 2).reshape(B, K, H // K * T, D)
    scores = jnp.matmul(q, k.transpose(0, 2, 3, 1), preferred_element_type=wide(q.dtype))
    scores = capped(scores.reshape(B, H, T, S) * scoring.scale, scoring.softcap)
    if bias is not None:
        allowed, bias = finite_bias(allowed, bias)
        scores = scores + bias.astype(scores.dtype)
    return softmax(scores, allowed, scoring.sinks)


def finite_bias(
    allowed: Bool[Array, "B|1 H|1 T S"] | None, bias: Float[Array, "B|1 H|1 T S"]
) -> tuple[Bool[Array, "B|1 H|1 T S"], Float[Array, "B|1 H|1 T S"]]:
    """What a bias hides by -inf, taken out of it and told as `allowed` tells it."""
    seen = bias != -jnp.inf
    return seen if allowed is None else allowed & seen, jnp.where(seen, bias, 0)


def scaled(x: Float[Array, "..."], factor: float) -> Float[Array, "..."]:
    """x times a plain number; untouched where it is 1."""
    return x if factor == 1 else x * factor


def capped(scores: Float[Array, "..."], softcap: float | None) -> Float[Array, "..."]:
    """c * tanh(scores / c)."""
    return scores if softcap is None else softcap * jnp.tanh(scores / softcap)


def softmax(
    scores: Float[Array, "B H T S"],
    allowed: Bool[Array, "B|1 H|1 T S"] | None,
    sinks: Float[Array, "H"] | None = None,
) -> Float[Array, "B H T S"]:
    """exp(scores) over its sum, to which a head's sink adds one more, over the allowed keys; a row without any is 0."""
    if allowed is None and sinks is None:
        return jax.nn.softmax(scores, axis=-1)
    if allowed is not None:
        scores = jnp.where(allowed, scores, -jnp.inf)
    peak = scores.max(-1, keepdims=True, initial=-jnp.inf)
    if sinks is not None:
        sinks = sinks.astype(scores.dtype)[:, None, None]
        peak = jnp.maximum(peak, sinks)
    # Where nothing is seen, -inf - -inf must not become NaN.
    peak = lax.stop_gradient(jnp.where(peak == -jnp.inf, 0, peak))
    exponentials = jnp.exp(scores - peak)
    total = exponentials.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + jnp.exp(sinks - peak)
    return exponentials / jnp.where(total == 0, 1, total)


def dropped(weights: Float[Array, "B H T S"], scoring: Scoring) -> Float[Array, "B H T S"]:
    """Each weight 0 with the probability of dropout, else divided by what is left."""
    if scoring.dropout == 0:
        return weights
    keep = jax.random.bernoulli(scoring.rng, 1 - scoring.dropout, weights.shape)
    return jnp.where(keep, weights / (1 - scoring.dropout), 0)


def sigmoid(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """1 / (1 + exp(-x)), in at least float32, rounded once."""
    return jax.nn.sigmoid(x.astype(wide(x.dtype))).astype(x.dtype)


def positioned(
    bias: Float[Array, "B|1 H|1 T S"] | None,
    scoring: Scoring,
    q: Int[Array, "B|1 T"],
    k: Int[Array, "B|1 S"],
    dtype: Any,
) -> Float[Array, "B|1 H|1 T S"] | None:
    """The bias of the scores with ALiBi's or T5's added, where there is any."""
    if scoring.slopes is not None:
        distances = distance_bias(scoring.slopes, q, k, wide(dtype))
    elif scoring.relative is not None:
        distances = relative_bias(scoring.relative, q, k)
    else:
        return bias
    return distances if bias is None else distances + bias.astype(distances.dtype)


def distance_bias(
    slopes: tuple[float, ...], q: Int[Array, "B T"], k: Int[Array, "B S"], dtype: Any
) -> Float[Array, "B H T S"]:
    """ALiBi: -slope_h * |q - k| for positions q and k."""
    distance = jnp.abs(q[:, None, :, None] - k[:, None, None, :]).astype(dtype)
    return -jnp.asarray(slopes, dtype)[:, None, None] * distance


def relative_bias(
    relative: Float[Array, "H 2F+1"], q: Int[Array, "B|1 T"], k: Int[Array, "B|1 S"]
) -> Float[Array, "B|1 H T S"]:
    """T5's: the number of the distance k - q for positions q and k, those beyond F taken for F."""
    T, N = q.shape[1], relative.shape[1]
    distance = jnp.clip(k[:, None, :] - q[:, :, None], -(N // 2), N // 2) + N // 2
    copy = jnp.arange(T) // SUMMED
    copies = jnp.tile(relative, -(-T // SUMMED))
    return jnp.moveaxis(copies.at[:, distance + N * copy[:, None]].get(mode="promise_in_bounds"), 0, 1)


def rotate(
    x: Float[Array, "B T H D"],
    cos: Float[Array, "B|1 T R/2"],
    sin: Float[Array, "B|1 T R/2"],
    layout: str,
) -> Float[Array, "B T H D"]:
    """x with the pairs of its first R numbers turned; `layout` is half or interleaved."""
    R = 2 * cos.shape[-1]
    turned, rest = x[..., :R].astype(cos.dtype), x[..., R:]
    cos, sin = cos[:, :, None], sin[:, :, None]
    a, b = (
        (turned[..., : R // 2], turned[..., R // 2 :]) if layout == "half" else (turned[..., 0::2], turned[..., 1::2])
    )
    pair = (a * cos - b * sin, a * sin + b * cos)
    turned = jnp.concatenate(pair, -1) if layout == "half" else jnp.stack(pair, -1).reshape(turned.shape)
    return jnp.concatenate([turned.astype(x.dtype), rest], -1)


def normalised(kind: str, x: Float[Array, "... M"], axes: int, eps: float) -> Float[Array, "... M"]:
    """x over its statistic on the last `axes` axes, in at least float32.

    rms: sqrt(mean(x^2) + eps); layer: the same after the mean is taken out; l2: sqrt(sum(x^2) + eps).
    """
    along = tuple(range(-axes, 0))
    y = x.astype(wide(x.dtype))
    if kind == "layer":
        y = y - y.mean(along, keepdims=True)
    square = (y * y).sum(along, keepdims=True) if kind == "l2" else (y * y).mean(along, keepdims=True)
    return y * lax.rsqrt(square + eps)


def activate(kind: str, x: Float[Array, "... U"]) -> Float[Array, "... U"]:
    """silu, relu, gelu (exact) or gelu_tanh."""
    if kind == "silu":
        return jax.nn.silu(x)
    if kind == "relu":
        return jax.nn.relu(x)
    return jax.nn.gelu(x, approximate=kind == "gelu_tanh")
