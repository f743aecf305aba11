"""cuDNN's flash attention on CUDA, through `jax.nn.dot_product_attention`, for what it does without a doubt."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.kernels import HIDING, Facts
from attn.masks import Causal, Full, Rule, SlidingWindow
from attn_jax.scope import Scope
from attn_jax.scoring import Scoring

WIDEST, STEP = 128, 8
"""The widest head that every card takes, and what a width is a multiple of."""


def refusal(facts: Facts) -> str | None:
    """Why cuDNN cannot run this call.

    A mask would enter it as a bias, in which a query that sees nothing sees everything; the gradient of a bias is only
    right for a batch of 1.
    """
    if facts.empty:
        return facts.empty
    if facts.device not in ("cuda", "gpu"):
        return f"cuDNN needs a CUDA device; got {facts.device}"
    if facts.dtype not in ("float16", "bfloat16"):
        return f"cuDNN computes in float16 and bfloat16; got {facts.dtype}"
    if facts.options:
        return f"cuDNN has no {' or '.join(sorted(facts.options))}"
    if "bias" in facts.given:
        return "cuDNN's gradient of a bias is wrong for a batch"
    hiding = sorted(facts.given & HIDING)
    if hiding:
        return f"{' and '.join(hiding)} must enter a mask, which cuDNN takes for a bias"
    if _width(facts.dim_k, facts.dim_v) > WIDEST:
        return f"cuDNN takes heads of at most {WIDEST} numbers; got {max(facts.dim_k, facts.dim_v)}"
    return _rule_refusal(facts)


def _rule_refusal(facts: Facts) -> str | None:
    if isinstance(facts.rule, Full):
        return None
    if not isinstance(facts.rule, Causal | SlidingWindow) or not facts.rule.causal:
        symmetric = isinstance(facts.rule, SlidingWindow)
        return "cuDNN has no symmetric window" if symmetric else f"cuDNN has no rule {facts.rule.kind!r}"
    return None if facts.by_index else "positions may differ from indices"


def attend(
    rule: Rule,
    scope: Scope,
    scoring: Scoring,
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    v: Float[Array, "B S K E"],
    bias: Float[Array, "B|1 H|1 T S"] | None,
) -> Float[Array, "B T H E"]:
    """softmax(q k^T * scale) v over all keys, or those up to the query's own index, or the window's."""
    del scope, bias
    # A window is exact only together with `is_causal`: alone, cuDNN lets it see the future (jax-ml/jax#39576).
    window = (rule.width - 1, 0) if isinstance(rule, SlidingWindow) else None
    width = _width(q.shape[3], v.shape[3])
    attended = jax.nn.dot_product_attention(
        _widened(q, width),
        _widened(k, width),
        _widened(v, width),
        scale=scoring.scale,
        is_causal=not isinstance(rule, Full),
        local_window_size=window,
        implementation="cudnn",
    )
    return attended[..., : v.shape[3]]


def _width(dim_k: int, dim_v: int) -> int:
    """One width for all, as cuDNN wants it: zeros add nothing to a score, and nothing but zeros to a value."""
    return -(-max(dim_k, dim_v) // STEP) * STEP


def _widened(x: Array, width: int) -> Any:
    missing = width - x.shape[3]
    return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, missing))) if missing else x
