"""Arithmetic without parameters: the plain form of everything the twins compute."""

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attn_torch.scoring import Scoring

SUMMED = 32
"""A number's gradient is the sum of very many: over so many queries at once, and then of these sums. It rounds less."""


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of scores, statistics and angles: at least float32."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def select(valid: Bool[Tensor, "B T"] | None, x: Float[Tensor, "B T ..."]) -> Float[Tensor, "B T ..."]:
    """x where a token is valid, exactly 0 elsewhere, whatever stood there."""
    if valid is None:
        return x
    return x.masked_fill(~valid.reshape(*valid.shape, *(1,) * (x.ndim - 2)), 0)


def attend(
    q: Float[Tensor, "B T H D"],
    k: Float[Tensor, "B S K D"],
    v: Float[Tensor, "B S K E"],
    scoring: Scoring,
    *,
    allowed: Bool[Tensor, "B|1 H|1 T S"] | None = None,
    bias: Float[Tensor, "B|1 H|1 T S"] | None = None,
) -> Float[Tensor, "B T H E"]:
    """softmax(cap(q k^T * scale) + bias over the allowed keys) v; 0, with zero gradient, where nothing may be seen.

    Query head h reads key/value head h // G. Scores and weights are at least float32; dropout acts on the weights.
    """
    B, T, H, _ = q.shape
    S, K, E = v.shape[1:]
    weights = dropped(attention_weights(q, k, scoring, allowed=allowed, bias=bias), scoring).to(v.dtype)
    weights = weights.reshape(B, K, H // K, T, S)
    attended = torch.einsum("bkgts,bske->btkge", weights.to(wide(v.dtype)), v.to(wide(v.dtype)))
    return attended.reshape(B, T, H, E).to(v.dtype)


def attention_weights(
    q: Float[Tensor, "B T H D"],
    k: Float[Tensor, "B S K D"],
    scoring: Scoring,
    *,
    allowed: Bool[Tensor, "B|1 H|1 T S"] | None = None,
    bias: Float[Tensor, "B|1 H|1 T S"] | None = None,
) -> Float[Tensor, "B H T S"]:
    """softmax(cap(q k^T * scale) + bias) over the allowed keys, in at least float32; 0 where nothing may be seen."""
    B, T, H, D = q.shape
    S, K = k.shape[1:3]
    q = q.reshape(B, T, K, H // K, D)
    scores = torch.einsum("btkgd,bskd->bkgts", q.to(wide(q.dtype)), k.to(wide(k.dtype)))
    scores = capped(scores.reshape(B, H, T, S) * scoring.scale, scoring.softcap)
    if bias is not None:
        allowed, bias = finite_bias(allowed, bias)
        scores = scores + bias.to(scores.dtype)
    return softmax(scores, allowed, scoring.sinks)


def finite_bias(
    allowed: Bool[Tensor, "B|1 H|1 T S"] | None, bias: Float[Tensor, "B|1 H|1 T S"]
) -> tuple[Bool[Tensor, "B|1 H|1 T S"], Float[Tensor, "B|1 H|1 T S"]]:
    """What a bias hides by -inf, taken out of it and told as `allowed` tells it."""
    seen = bias != -torch.inf
    return seen if allowed is None else allowed & seen, bias.masked_fill(~seen, 0)


def scaled(x: Float[Tensor, "..."], factor: float) -> Float[Tensor, "..."]:
    """x times a plain number; untouched where it is 1."""
    return x if factor == 1 else x * factor


def capped(scores: Float[Tensor, "..."], softcap: float | None) -> Float[Tensor, "..."]:
    """c * tanh(scores / c)."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def softmax(
    scores: Float[Tensor, "B H T S"],
    allowed: Bool[Tensor, "B|1 H|1 T S"] | None,
    sinks: Float[Tensor, "H"] | None = None,
) -> Float[Tensor, "B H T S"]:
    """exp(scores) over its sum, to which a head's sink adds one more, over the allowed keys; a row without any is 0."""
    hidden = None if allowed is None else ~allowed
    if hidden is not None:
        # Where all are hidden, a softmax of -inf alone would be NaN; those weights are taken out below.
        scores = scores.masked_fill(hidden & ~hidden.all(-1, keepdim=True), -torch.inf)
    if sinks is not None:
        beside = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, beside], dim=-1)
    weights = torch.softmax(scores, dim=-1)
    weights = weights if sinks is None else weights[..., :-1]
    return weights if hidden is None else weights.masked_fill(hidden, 0)


def dropped(weights: Float[Tensor, "B H T S"], scoring: Scoring) -> Float[Tensor, "B H T S"]:
    """Each weight 0 with the probability of dropout, else divided by what is left."""
    return weights if scoring.dropout == 0 else F.dropout(weights, scoring.dropout)


def sigmoid(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """1 / (1 + exp(-x)), in at least float32, rounded once."""
    return torch.sigmoid(x.to(wide(x.dtype))).to(x.dtype)


def positioned(
    bias: Float[Tensor, "B|1 H|1 T S"] | None,
    scoring: Scoring,
    q: Int[Tensor, "B|1 T"],
    k: Int[Tensor, "B|1 S"],
    dtype: Any,
) -> Float[Tensor, "B|1 H|1 T S"] | None:
    """The bias of the scores with ALiBi's or T5's added, where there is any."""
    if scoring.slopes is not None:
        distances = distance_bias(scoring.slopes, q, k, wide(dtype))
    elif scoring.relative is not None:
        distances = relative_bias(scoring.relative, q, k)
    else:
        return bias
    return distances if bias is None else distances + bias.to(distances.dtype)


def distance_bias(
    slopes: tuple[float, ...], q: Int[Tensor, "B T"], k: Int[Tensor, "B S"], dtype: Any
) -> Float[Tensor, "B H T S"]:
    """ALiBi: -slope_h * |q - k| for positions q and k."""
    distance = torch.abs(q[:, None, :, None] - k[:, None, None, :]).to(dtype)
    return -torch.tensor(slopes, dtype=dtype, device=q.device)[:, None, None] * distance


def relative_bias(
    relative: Float[Tensor, "H 2F+1"], q: Int[Tensor, "B|1 T"], k: Int[Tensor, "B|1 S"]
) -> Float[Tensor, "B|1 H T S"]:
    """T5's: the number of the distance k - q for positions q and k, those beyond F taken for F."""
    T, N = q.shape[1], relative.shape[1]
    distance = (k[:, None, :] - q[:, :, None]).clamp(-(N // 2), N // 2) + N // 2
    copy = torch.arange(T, device=q.device) // SUMMED
    copies = relative.repeat(1, -(-T // SUMMED))
    # The gradient of `index_select` is several times faster than that of an index.
    bias = copies.index_select(1, (distance + N * copy[:, None]).flatten())
    return bias.unflatten(1, distance.shape).movedim(0, 1)


def rotate(
    x: Float[Tensor, "B T H D"],
    cos: Float[Tensor, "B|1 T 1 R"],
    sin: Float[Tensor, "B|1 T 1 R"],
    layout: str,
) -> Float[Tensor, "B T H D"]:
    """x with the pairs of its first R numbers turned by the angles of `turns`; `layout` is half or interleaved."""
    R = cos.shape[-1]
    turned = (x if x.shape[-1] == R else x[..., :R]).to(cos.dtype)
    # a cos - b sin and b cos + a sin: [a b] cos + [b a] [-sin sin].
    swapped = turned.roll(R // 2, -1) if layout == "half" else turned.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    turned = torch.addcmul(turned * cos, swapped, sin).to(x.dtype)
    return turned if x.shape[-1] == R else torch.cat([turned, x[..., R:]], -1)


def normalised(kind: str, x: Float[Tensor, "... M"], axes: int, eps: float) -> Float[Tensor, "... M"]:
    """x over its statistic on the last `axes` axes, in at least float32.

    rms: sqrt(mean(x^2) + eps); layer: the same after the mean is taken out; l2: sqrt(sum(x^2) + eps).
    """
    y = x.to(wide(x.dtype))
    if kind == "layer":
        return F.layer_norm(y, y.shape[-axes:], eps=eps)
    along, count = tuple(range(-axes, 0)), prod(y.shape[-axes:])
    # eps is shared among the squares that are added: one operation for the three of them, where mean alone takes two.
    share = torch.full((), eps / count, dtype=y.dtype, device=y.device)
    squares = torch.addcmul(share, y, y, value=1 / count if kind == "rms" else 1)
    return y * torch.rsqrt(squares.sum(along, keepdim=True))


def activate(kind: str, x: Float[Tensor, "... U"]) -> Float[Tensor, "... U"]:
    """silu, relu, gelu (exact) or gelu_tanh."""
    if kind == "silu":
        return F.silu(x)
    if kind == "relu":
        return F.relu(x)
    return F.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")
