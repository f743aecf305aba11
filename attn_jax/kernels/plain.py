"""The plain form: every score at once. It can do everything, in memory that grows with T x S."""

from jaxtyping import Array, Float

from attn.kernels import Facts
from attn.variants.base import AttentionConfig
from attn_jax import functional
from attn_jax.scope import Scope


def refusal(facts: Facts) -> str | None:
    """Never: the plain form can run every call."""
    del facts
    return None


def attend(
    cfg: AttentionConfig,
    scope: Scope,
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    v: Float[Array, "B S K E"],
    *,
    scale: float,
) -> Float[Array, "B T H E"]:
    """softmax(q k^T * scale + bias) v over the keys that each query may see."""
    return functional.attend(q, k, v, scale=scale, allowed=scope.mask(cfg.rule), bias=scope.bias)
