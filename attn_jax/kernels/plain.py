"""The plain form: every score at once. It can do everything, in memory that grows with T x S."""

from jaxtyping import Array, Float

from attn.kernels import Facts
from attn.masks import Rule
from attn_jax import functional
from attn_jax.scope import Scope
from attn_jax.scoring import Scoring


def refusal(facts: Facts) -> str | None:
    """Never: the plain form can run every call."""
    del facts
    return None


def attend(
    rule: Rule,
    scope: Scope,
    scoring: Scoring,
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    v: Float[Array, "B S K E"],
    bias: Float[Array, "B|1 H|1 T S"] | None,
) -> Float[Array, "B T H E"]:
    """softmax(cap(q k^T * scale) + bias) v over the keys that each query may see."""
    bias = functional.positioned(bias, scoring, scope.queries.positions, scope.keys.positions, q.dtype)
    return functional.attend(q, k, v, scoring, allowed=scope.mask(rule), bias=bias)
