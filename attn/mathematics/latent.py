"""Multi-head latent attention, expanded: every head's keys and values are written out. Source: DeepSeek-V2, 2024."""

import numpy as np

from attn.call import check_call
from attn.mathematics.rotary import rotate
from attn.mathematics.softmax import finish, project, scored, sides

ROUNDINGS = 7
"""As for softmax attention, and the latent."""


def latent_attention(cfg, weights, x, context=None, *, allowed=None, bias=None, **rows) -> np.ndarray:
    """y of multi-head latent attention; see `attn.reference` for the arguments."""
    check_call(cfg, x, context, allowed=allowed, bias=None if bias is None else bias.real, **rows)
    x, context, queries, keys = sides(x, context, rows)
    latent = normed(cfg, weights, "kv_norm", project(weights, "kv_down", context))
    q = query_heads(cfg, weights, x)
    k, v = project(weights, "k_up", latent), project(weights, "v_up", latent)
    width = cfg.dim_k // cfg.heads
    if cfg.rope_dim is not None:
        shared = project(weights, "k_rope", context)[:, :, None, :]
        turned = q[..., width:]
        if cfg.rope is not None:
            shared = rotate(cfg.rope, shared, keys.positions, keys.lengths)
            turned = rotate(cfg.rope, turned, queries.positions, queries.lengths)
        q = np.concatenate([q[..., :width], turned], axis=-1)
        k = np.concatenate([k, np.repeat(shared, cfg.heads, axis=2)], axis=-1)
    attended = scored(cfg, weights, q, k, v, score_scale(cfg), queries, keys, allowed, bias)
    return finish(cfg, weights, x, attended, queries)


def query_heads(cfg, weights, x: np.ndarray) -> np.ndarray:
    """Queries [B T H D+R], directly or through their own latent."""
    if cfg.q_lora_rank is None:
        return project(weights, "q", x)
    return project(weights, "q_up", normed(cfg, weights, "q_norm", project(weights, "q_down", x)))


def normed(cfg, weights, name: str, latent: np.ndarray) -> np.ndarray:
    """The latent over its root mean square, where there is a norm."""
    if cfg.latent_norm is None:
        return latent
    square = (latent * latent).mean(axis=-1, keepdims=True)
    return latent / np.sqrt(square + cfg.latent_norm.eps) * weights[f"{name}.scale"]


def score_scale(cfg) -> float:
    """1/sqrt(D + R), times (0.1 mscale_all_dim ln(factor) + 1)^2 for a stretched YaRN rope."""
    if cfg.scale is not None:
        return cfg.scale
    scale = 1 / np.sqrt(cfg.dim_k // cfg.heads + (cfg.rope_dim or 0))
    if cfg.rope is not None and cfg.rope.kind == "yarn" and cfg.rope.mscale_all_dim and cfg.rope.factor > 1:
        scale *= (0.1 * cfg.rope.mscale_all_dim * np.log(cfg.rope.factor) + 1) ** 2
    return scale
