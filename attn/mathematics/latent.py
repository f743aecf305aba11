"""Multi-head latent attention, expanded: every head's keys and values are written out. Source: DeepSeek-V2, 2024."""

import numpy as np

from attn.call import check_call
from attn.mathematics.softmax import attend, finish, project, sides
from attn.mathematics.tokens import visible

ROUNDINGS = 7
"""As for softmax attention, and the latent."""


def latent_attention(cfg, weights, x, context=None, *, allowed=None, bias=None, **rows) -> np.ndarray:
    """y of multi-head latent attention; see `attn.reference` for the arguments."""
    check_call(cfg, x, context, allowed=allowed, bias=bias, **rows)
    x, context, queries, keys = sides(x, context, rows)
    latent = project(weights, "kv_down", context)
    q, k, v = project(weights, "q", x), project(weights, "k_up", latent), project(weights, "v_up", latent)
    scale = 1 / np.sqrt(cfg.head_dim) if cfg.scale is None else cfg.scale
    attended = attend(q, k, v, scale, visible(cfg.rule, queries, keys, allowed, cfg.heads), bias)
    return finish(weights, attended, queries)
