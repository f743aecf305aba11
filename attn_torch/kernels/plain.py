"""The plain form: every score at once. It can do everything, in memory that grows with T x S."""

from jaxtyping import Float
from torch import Tensor

from attn.kernels import Facts
from attn.variants.base import AttentionConfig
from attn_torch import functional
from attn_torch.scope import Scope


def refusal(facts: Facts) -> str | None:
    """Never: the plain form can run every call."""
    del facts
    return None


def attend(
    cfg: AttentionConfig,
    scope: Scope,
    q: Float[Tensor, "B T H D"],
    k: Float[Tensor, "B S K D"],
    v: Float[Tensor, "B S K E"],
    *,
    scale: float,
) -> Float[Tensor, "B T H E"]:
    """softmax(q k^T * scale + bias) v over the keys that each query may see."""
    return functional.attend(q, k, v, scale=scale, allowed=scope.mask(cfg.rule), bias=scope.bias)
