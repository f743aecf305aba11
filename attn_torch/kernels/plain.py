"""The plain form: every score at once. It can do everything, in memory that grows with T x S."""

from jaxtyping import Float
from torch import Tensor

from attn.kernels import Facts
from attn.masks import Rule
from attn_torch import functional
from attn_torch.scope import Scope
from attn_torch.scoring import Scoring


def refusal(facts: Facts) -> str | None:
    """Never: the plain form can run every call."""
    del facts
    return None


def attend(
    rule: Rule,
    scope: Scope,
    scoring: Scoring,
    q: Float[Tensor, "B T H D"],
    k: Float[Tensor, "B S K D"],
    v: Float[Tensor, "B S K E"],
    bias: Float[Tensor, "B|1 H|1 T S"] | None,
) -> Float[Tensor, "B T H E"]:
    """softmax(cap(q k^T * scale) + bias) v over the keys that each query may see."""
    bias = functional.positioned(bias, scoring, scope.queries.positions, scope.keys.positions, q.dtype)
    return functional.attend(q, k, v, scoring, allowed=scope.mask(rule), bias=bias)
