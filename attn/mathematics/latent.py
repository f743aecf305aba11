"""Multi-head latent attention, expanded: every head's keys and values are written out. Source: DeepSeek-V2, 2024."""

import numpy as np

from attn.call import check_call
from attn.mathematics.softmax import finish, project, scored, sides

ROUNDINGS = 7
"""As for softmax attention, and the latent."""


def latent_attention(cfg, weights, x, context=None, *, allowed=None, bias=None, **rows) -> np.ndarray:
    """y of multi-head latent attention; see `attn.reference` for the arguments."""
    check_call(cfg, x, context, allowed=allowed, bias=None if bias is None else bias.real, **rows)
    x, context, queries, keys = sides(x, context, rows)
    latent = project(weights, "kv_down", context)
    q, k, v = project(weights, "q", x), project(weights, "k_up", latent), project(weights, "v_up", latent)
    scale = 1 / np.sqrt(cfg.head_dim) if cfg.scale is None else cfg.scale
    attended = scored(cfg, weights, q, k, v, scale, queries, keys, allowed, bias)
    return finish(cfg, weights, x, attended, queries)
