"""Arithmetic without parameters: the plain form of everything the twins compute."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float


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
    *,
    scale: float,
    allowed: Bool[Array, "B|1 H|1 T S"] | None = None,
    bias: Float[Array, "B|1 H|1 T S"] | None = None,
) -> Float[Array, "B T H E"]:
    """softmax(q k^T * scale + bias over the allowed keys) v; 0, with zero gradient, for a query that may see nothing.

    Query head h reads key/value head h // G. Scores and weights are at least float32.
    """
    B, T, H, _ = q.shape
    K, E = v.shape[2:]
    weights = attention_weights(q, k, scale=scale, allowed=allowed, bias=bias).astype(v.dtype)
    weights = weights.reshape(B, K, H // K, T, -1)
    attended = jnp.einsum("bkgts,bske->btkge", weights, v, preferred_element_type=wide(v.dtype))
    return attended.reshape(B, T, H, E).astype(v.dtype)


def attention_weights(
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    *,
    scale: float,
    allowed: Bool[Array, "B|1 H|1 T S"] | None = None,
    bias: Float[Array, "B|1 H|1 T S"] | None = None,
) -> Float[Array, "B H T S"]:
    """softmax(q k^T * scale + bias) over the allowed keys, in at least float32; a row that may see nothing is 0."""
    B, T, H, D = q.shape
    K = k.shape[2]
    q = q.reshape(B, T, K, H // K, D)
    scores = jnp.einsum("btkgd,bskd->bkgts", q, k, preferred_element_type=wide(q.dtype))
    scores = scores.reshape(B, H, T, -1) * scale
    if bias is not None:
        scores = scores + bias.astype(scores.dtype)
    return softmax(scores, allowed)


def softmax(scores: Float[Array, "B H T S"], allowed: Bool[Array, "B|1 H|1 T S"] | None) -> Float[Array, "B H T S"]:
    """exp(scores) over its sum, over the allowed keys; a row without any is 0."""
    if allowed is None:
        return jax.nn.softmax(scores, axis=-1)
    scores = jnp.where(allowed, scores, jnp.finfo(scores.dtype).min / 2)
    exponentials = jnp.exp(scores - lax.stop_gradient(scores.max(-1, keepdims=True)))
    exponentials = jnp.where(allowed, exponentials, 0)
    total = exponentials.sum(-1, keepdims=True)
    return exponentials / jnp.where(total == 0, 1, total)


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


def rms_norm(x: Float[Array, "... M"], scale: Float[Array, "M"], eps: float) -> Float[Array, "... M"]:
    """x / sqrt(mean(x^2) + eps) * scale, in at least float32, then rounded once."""
    y = x.astype(wide(x.dtype))
    y = y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + eps)
    return (y * scale).astype(x.dtype)


def layer_norm(
    x: Float[Array, "... M"], scale: Float[Array, "M"], bias: Float[Array, "M"], eps: float
) -> Float[Array, "... M"]:
    """(x - mean) / sqrt(var + eps) * scale + bias, in at least float32, then rounded once."""
    y = x.astype(wide(x.dtype))
    y = y - jnp.mean(y, -1, keepdims=True)
    y = y * lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + eps)
    return (y * scale + bias).astype(x.dtype)


def activate(kind: str, x: Float[Array, "... U"]) -> Float[Array, "... U"]:
    """silu, relu, gelu (exact) or gelu_tanh."""
    if kind == "silu":
        return jax.nn.silu(x)
    if kind == "relu":
        return jax.nn.relu(x)
    return jax.nn.gelu(x, approximate=kind == "gelu_tanh")
