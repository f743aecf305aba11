"""Arithmetic without parameters: the plain form of everything the twins compute."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of scores, statistics and angles: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def select(valid: Bool[Tensor, "B T"] | None, x: Float[Tensor, "B T ..."]) -> Float[Tensor, "B T ..."]:
    """x where a token is valid, exactly 0 elsewhere, whatever stood there."""
    if valid is None:
        return x
    return x.masked_fill(~valid.reshape(*valid.shape, *(1,) * (x.ndim - 2)), 0)


def attend(
    q: Float[Tensor, "B T H D"],
    k: Float[Tensor, "B S K D"],
    v: Float[Tensor, "B S K E"],
    *,
    scale: float,
    allowed: Bool[Tensor, "B|1 H|1 T S"] | None = None,
    bias: Float[Tensor, "B|1 H|1 T S"] | None = None,
) -> Float[Tensor, "B T H E"]:
    """softmax(q k^T * scale + bias over the allowed keys) v; 0, with zero gradient, for a query that may see nothing.

    Query head h reads key/value head h // G. Scores and weights are at least float32.
    """
    B, T, H, _ = q.shape
    K, E = v.shape[2:]
    weights = attention_weights(q, k, scale=scale, allowed=allowed, bias=bias).to(v.dtype)
    weights = weights.reshape(B, K, H // K, T, -1)
    attended = torch.einsum("bkgts,bske->btkge", weights.to(wide(v.dtype)), v.to(wide(v.dtype)))
    return attended.reshape(B, T, H, E).to(v.dtype)


def attention_weights(
    q: Float[Tensor, "B T H D"],
    k: Float[Tensor, "B S K D"],
    *,
    scale: float,
    allowed: Bool[Tensor, "B|1 H|1 T S"] | None = None,
    bias: Float[Tensor, "B|1 H|1 T S"] | None = None,
) -> Float[Tensor, "B H T S"]:
    """softmax(q k^T * scale + bias) over the allowed keys, in at least float32; a row that may see nothing is 0."""
    B, T, H, D = q.shape
    K = k.shape[2]
    q = q.reshape(B, T, K, H // K, D)
    scores = torch.einsum("btkgd,bskd->bkgts", q.to(wide(q.dtype)), k.to(wide(k.dtype)))
    scores = scores.reshape(B, H, T, -1) * scale
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    return softmax(scores, allowed)


def softmax(scores: Float[Tensor, "B H T S"], allowed: Bool[Tensor, "B|1 H|1 T S"] | None) -> Float[Tensor, "B H T S"]:
    """exp(scores) over its sum, over the allowed keys; a row without any is 0."""
    if allowed is None:
        return torch.softmax(scores, dim=-1)
    scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min / 2)
    exponentials = torch.exp(scores - scores.amax(-1, keepdim=True).detach())
    exponentials = exponentials.masked_fill(~allowed, 0)
    total = exponentials.sum(-1, keepdim=True)
    return exponentials / total.masked_fill(total == 0, 1)


def rotate(
    x: Float[Tensor, "B T H D"],
    cos: Float[Tensor, "B|1 T R/2"],
    sin: Float[Tensor, "B|1 T R/2"],
    layout: str,
) -> Float[Tensor, "B T H D"]:
    """x with the pairs of its first R numbers turned; `layout` is half or interleaved."""
    R = 2 * cos.shape[-1]
    turned, rest = x[..., :R].to(cos.dtype), x[..., R:]
    cos, sin = cos[:, :, None], sin[:, :, None]
    a, b = (
        (turned[..., : R // 2], turned[..., R // 2 :]) if layout == "half" else (turned[..., 0::2], turned[..., 1::2])
    )
    pair = (a * cos - b * sin, a * sin + b * cos)
    turned = torch.cat(pair, -1) if layout == "half" else torch.stack(pair, -1).reshape(turned.shape)
    return torch.cat([turned.to(x.dtype), rest], -1)


def rms_norm(x: Float[Tensor, "... M"], scale: Float[Tensor, "M"], eps: float) -> Float[Tensor, "... M"]:
    """x / sqrt(mean(x^2) + eps) * scale, in at least float32, then rounded once."""
    y = x.to(wide(x.dtype))
    return F.rms_norm(y, y.shape[-1:], scale.to(y.dtype), eps).to(x.dtype)


def layer_norm(
    x: Float[Tensor, "... M"], scale: Float[Tensor, "M"], bias: Float[Tensor, "M"], eps: float
) -> Float[Tensor, "... M"]:
    """(x - mean) / sqrt(var + eps) * scale + bias, in at least float32, then rounded once."""
    y = x.to(wide(x.dtype))
    return F.layer_norm(y, y.shape[-1:], scale.to(y.dtype), bias.to(y.dtype), eps).to(x.dtype)


def activate(kind: str, x: Float[Tensor, "... U"]) -> Float[Tensor, "... U"]:
    """silu, relu, gelu (exact) or gelu_tanh."""
    if kind == "silu":
        return F.silu(x)
    if kind == "relu":
        return F.relu(x)
    return F.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")
