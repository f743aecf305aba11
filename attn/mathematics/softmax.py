"""Softmax attention as its formula says it, head by head. Source: Vaswani et al. 2017, Ainslie et al. 2023."""

import numpy as np

from attn.call import check_call
from attn.mathematics.rotary import rotate
from attn.mathematics.tokens import Row, per_head, visible

ROUNDINGS = 6
"""Tensors rounded to the storage dtype on the longest path: x, q or k or v, scores, weights, attended, y."""


def softmax_attention(cfg, weights, x, context=None, *, allowed=None, bias=None, **rows) -> np.ndarray:
    """y of the softmax family; see `attn.reference` for the arguments."""
    check_call(cfg, x, context, allowed=allowed, bias=None if bias is None else bias.real, **rows)
    x, context, queries, keys = sides(x, context, rows)
    q, k, v = project(weights, "q", x), project(weights, "k", context), project(weights, "v", context)
    if cfg.qk_norm is not None and cfg.qk_norm.place == "before":
        q, k = qk_norm(cfg.qk_norm, weights, "q_norm", q), qk_norm(cfg.qk_norm, weights, "k_norm", k)
    if cfg.rope is not None:
        q = rotate(cfg.rope, q, queries.positions, queries.lengths)
        k = rotate(cfg.rope, k, keys.positions, keys.lengths)
    if cfg.qk_norm is not None and cfg.qk_norm.place == "after":
        q, k = qk_norm(cfg.qk_norm, weights, "q_norm", q), qk_norm(cfg.qk_norm, weights, "k_norm", k)
    scale = 1 / np.sqrt(cfg.head_dim) if cfg.scale is None else cfg.scale
    attended = scored(cfg, weights, q, k, v, scale, queries, keys, allowed, bias)
    return finish(cfg, weights, x, attended, queries)


def qk_norm(norm, weights, name: str, heads: np.ndarray) -> np.ndarray:
    """Each head's vector, or all heads' as one, over its root mean square, its deviation, or its length."""
    axes = (-2, -1) if norm.over == "full" else (-1,)
    if norm.kind == "layer":
        heads = heads - heads.mean(axes, keepdims=True)
    total = (heads * heads).sum(axes, keepdims=True)
    count = 1 if norm.kind == "l2" else int(np.prod([heads.shape[axis] for axis in axes]))
    heads = heads / np.sqrt(total / count + norm.eps)
    if norm.learned:
        heads = heads * (weights[f"{name}.scale"] + (1 if norm.offset else 0))
    return heads + weights[f"{name}.bias"] if norm.shift else heads


def scored(cfg, weights, q, k, v, scale, queries: Row, keys: Row, allowed, bias) -> np.ndarray:
    """The attended value, with the family's options between the scores and the softmax."""
    seen = visible(cfg.rule, queries, keys, allowed, cfg.heads)
    total = np.zeros(seen.shape) if bias is None else per_head(bias, seen.shape)
    if cfg.position_bias is not None:
        total = total + position_bias(cfg, weights, queries, keys)
    sinks = weights["sinks"] if cfg.sinks else None
    # A bias of -inf hides a key, as `allowed` does.
    return attend(q, k, v, scale, seen & (total.real != -np.inf), total, cfg.softcap, sinks)


def position_bias(cfg, weights, queries: Row, keys: Row) -> np.ndarray:
    """What is added to each score for the distance between its query and its key, [B H T S]."""
    distance = keys.positions[:, None, :] - queries.positions[:, :, None]
    if cfg.position_bias.kind == "alibi":
        return -cfg.position_bias.slopes(cfg.heads)[None, :, None, None] * np.abs(distance)[:, None]
    far = cfg.position_bias.max_distance
    bucket = cfg.position_bias.table()[np.clip(distance, -far, far) + far]
    return np.moveaxis(weights["position_bias.embedding"][bucket], -1, 1)


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
    y = (x @ kernel.reshape(len(kernel), -1)).reshape(x.shape[:-1] + kernel.shape[1:])
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def attend(q, k, v, scale, seen, bias, softcap=None, sinks=None) -> np.ndarray:
    """softmax(cap(q k^T scale) + bias) v over the keys that are seen; 0 where none is. [B T H E]."""
    batch, length, heads, _ = q.shape
    group = heads // k.shape[2]
    out = np.zeros(
        (batch, length, heads, v.shape[-1]), np.result_type(q, k, v, bias, *([] if sinks is None else [sinks]))
    )
    for b in range(batch):
        for h in range(heads):
            scores = q[b, :, h] @ k[b, :, h // group].T * scale
            scores = (scores if softcap is None else softcap * np.tanh(scores / softcap)) + bias[b, h]
            for t in range(length):
                keys = np.flatnonzero(seen[b, h, t])
                if len(keys):
                    weights = softmax(scores[t, keys], None if sinks is None else sinks[h])
                    out[b, t, h] = weights @ v[b, keys, h // group]
    return out


def softmax(scores: np.ndarray, sink=None) -> np.ndarray:
    """exp(scores) over its sum, to which a sink adds one more; the largest real part is taken out first."""
    peak = scores.real.max() if sink is None else max(scores.real.max(), np.real(sink))
    weights = np.exp(scores - peak)
    return weights / (weights.sum() + (0 if sink is None else np.exp(sink - peak)))


def finish(cfg, weights, x, attended, queries: Row) -> np.ndarray:
    """The gate, the output projection where there is one, and exactly 0 at invalid tokens."""
    if cfg.output_gate is not None:
        gate = 1 / (1 + np.exp(-project(weights, "gate", x)))
        attended = attended * (gate if cfg.output_gate == "elementwise" else gate[..., None])
    flat = attended.reshape(*attended.shape[:2], attended.shape[2] * attended.shape[3])
    if "out.kernel" in weights:
        kernel = weights["out.kernel"]
        flat = flat @ kernel.reshape(flat.shape[-1], kernel.shape[-1])
        flat = flat + weights["out.bias"] if "out.bias" in weights else flat
    return np.where(queries.valid[:, :, None], flat, 0)
