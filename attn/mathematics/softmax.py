"""Softmax attention as its formula says it, head by head. Source: Vaswani et al. 2017, Ainslie et al. 2023."""

import numpy as np

from attn.call import check_call
from attn.mathematics.rotary import rotate
from attn.mathematics.tokens import Row, per_head, visible

ROUNDINGS = 6
"""Tensors rounded to the storage dtype on the longest path: x, q or k or v, scores, weights, attended, y."""


def softmax_attention(cfg, weights, x, context=None, *, allowed=None, bias=None, **rows) -> np.ndarray:
    """y of the softmax family; see `attn.reference` for the arguments."""
    check_call(cfg, x, context, allowed=allowed, bias=bias, **rows)
    x, context, queries, keys = sides(x, context, rows)
    q, k, v = project(weights, "q", x), project(weights, "k", context), project(weights, "v", context)
    if cfg.rope is not None:
        q, k = rotate(cfg.rope, q, queries.positions), rotate(cfg.rope, k, keys.positions)
    scale = 1 / np.sqrt(cfg.head_dim) if cfg.scale is None else cfg.scale
    attended = attend(q, k, v, scale, visible(cfg.rule, queries, keys, allowed, cfg.heads), bias)
    return finish(weights, attended, queries)


def sides(x, context, rows) -> tuple[np.ndarray, np.ndarray, Row, Row]:
    """The two sequences with their invalid tokens replaced by zeros, and what is known of their tokens."""
    queries = Row(*x.shape[:2], rows.get("positions"), rows.get("valid"), rows.get("segments"))
    x = np.where(queries.valid[:, :, None], x, 0)
    if context is None:
        return x, x, queries, queries
    given = (rows.get("context_positions"), rows.get("context_valid"), rows.get("context_segments"))
    keys = Row(*context.shape[:2], *given)
    return x, np.where(keys.valid[:, :, None], context, 0), queries, keys


def project(weights, name: str, x: np.ndarray) -> np.ndarray:
    """x @ kernel + bias, over the last axis of x."""
    kernel = weights[f"{name}.kernel"]
    y = (x @ kernel.reshape(x.shape[-1], -1)).reshape(x.shape[:-1] + kernel.shape[1:])
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def attend(q, k, v, scale, seen, bias) -> np.ndarray:
    """softmax(q k^T scale + bias) v over the keys that are seen; 0 where none is. [B T H E]."""
    batch, length, heads, _ = q.shape
    group = heads // k.shape[2]
    bias = np.zeros(seen.shape) if bias is None else per_head(bias, seen.shape)
    out = np.zeros((batch, length, heads, v.shape[-1]), np.result_type(q, k, v))
    for b in range(batch):
        for h in range(heads):
            scores = q[b, :, h] @ k[b, :, h // group].T * scale + bias[b, h]
            for t in range(length):
                keys = np.flatnonzero(seen[b, h, t])
                if len(keys):
                    out[b, t, h] = softmax(scores[t, keys]) @ v[b, keys, h // group]
    return out


def softmax(scores: np.ndarray) -> np.ndarray:
    """exp(scores) over its sum; the largest real part is taken out first, which changes nothing but the range."""
    weights = np.exp(scores - scores.real.max())
    return weights / weights.sum()


def finish(weights, attended, queries: Row) -> np.ndarray:
    """The output projection where there is one, and exactly 0 at invalid tokens."""
    flat = attended.reshape(*attended.shape[:2], -1)
    if "out.kernel" in weights:
        kernel = weights["out.kernel"]
        flat = flat @ kernel.reshape(flat.shape[-1], kernel.shape[-1])
        flat = flat + weights["out.bias"] if "out.bias" in weights else flat
    return np.where(queries.valid[:, :, None], flat, 0)
