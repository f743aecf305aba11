"""A decoder from its formula: blocks of attention and MLP around a residual."""

from math import erf

import numpy as np

from attn.call import check_range, check_tokens
from attn.mathematics.latent import latent_attention
from attn.mathematics.softmax import project, softmax_attention
from attn.mathematics.tokens import Row
from attn.variants.latent.latent import MultiHeadLatentAttentionConfig

ROUNDINGS = 16
"""A block's: attention's, two norms, two residuals, and the MLP's projections and product."""


def decoder(cfg, weights, tokens, *, positions=None, valid=None, segments=None) -> np.ndarray:
    """Logits [B T V]; see `attn.reference`."""
    check_tokens(cfg, tokens, positions=positions, valid=valid, segments=segments)
    row = Row(*tokens.shape, positions, valid, segments)
    tokens, places = np.where(row.valid, tokens, 0), np.where(row.valid, row.positions, 0)
    check_range("tokens", int(tokens.min()), int(tokens.max()), cfg.vocab_size)
    x = weights["embed.embedding"][tokens] * cfg.embed_scale
    if cfg.learned_positions is not None:
        check_range("positions", int(places.min()), int(places.max()), cfg.learned_positions)
        x = x + weights["positions.embedding"][places]
    x = np.where(row.valid[:, :, None], x, 0)
    rows = {"positions": row.positions, "valid": row.valid, "segments": row.runs}
    for i, block in enumerate(cfg.blocks):
        x = _block(block, _below(weights, f"layers.{i}"), x, rows)
    x = norm(cfg.norm, weights, "norm", x)
    logits = x @ weights["embed.embedding"].T if cfg.tied else project(weights, "head", x)
    logits = logits * cfg.logit_scale
    if cfg.logit_softcap is not None:
        logits = cfg.logit_softcap * np.tanh(logits / cfg.logit_softcap)
    return np.where(row.valid[:, :, None], logits, 0)


def _block(cfg, weights, x, rows) -> np.ndarray:
    attention = latent_attention if isinstance(cfg.attention, MultiHeadLatentAttentionConfig) else softmax_attention
    attended = attention(
        cfg.attention, _below(weights, "attention"), norm(cfg.norm, weights, "attention_norm", x), **rows
    )
    x = x + cfg.residual_scale * attended
    return x + cfg.residual_scale * mlp(cfg.mlp, _below(weights, "mlp"), norm(cfg.norm, weights, "mlp_norm", x))


def _below(weights, prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(f"{prefix}."): w for name, w in weights.items() if name.startswith(f"{prefix}.")}


def norm(cfg, weights, name: str, x: np.ndarray) -> np.ndarray:
    """RMS or layer norm over the last axis."""
    if cfg.kind == "layer":
        x = x - x.mean(-1, keepdims=True)
    normalised = x / np.sqrt((x * x).mean(-1, keepdims=True) + cfg.eps)
    y = normalised * (weights[f"{name}.scale"] + (1 if cfg.offset else 0))
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def mlp(cfg, weights, x: np.ndarray) -> np.ndarray:
    """Gated or plain."""
    up = project(weights, "up", x)
    hidden = activate(cfg.activation, project(weights, "gate", x)) * up if cfg.gated else activate(cfg.activation, up)
    return project(weights, "down", hidden)


def activate(kind: str, x: np.ndarray) -> np.ndarray:
    """The activations, each analytic but relu, whose kink is taken at the real part."""
    if kind == "silu":
        return x / (1 + np.exp(-x))
    if kind == "relu":
        return np.where(x.real > 0, x, 0)
    if kind == "gelu_tanh":
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x / 2 * (1 + _erf(x / np.sqrt(2)))


def _erf(x: np.ndarray) -> np.ndarray:
    # A complex step is infinitely small: erf(a + ib) = erf(a) + ib erf'(a), exact to b**2.
    real = np.vectorize(erf)(x.real)
    return real + 1j * x.imag * 2 / np.sqrt(np.pi) * np.exp(-(x.real**2)) if np.iscomplexobj(x) else real
