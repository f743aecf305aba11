"""Attention of a few queries over many keys, as decoding through a cache asks for it on a CPU.

Keys and values stay as they lie, [B S K D], and all heads of a row share one matrix product: the plain form would turn
the whole cache round, and multiply each head on its own. Slots behind the last one in use are not read.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from attn.kernels import Facts, Slower
from attn.masks import Rule
from attn_jax.functional import capped, dropped, finite_bias, positioned, softmax, wide
from attn_jax.scope import Scope
from attn_jax.scoring import Scoring

HEADS = 32
"""Up to so many heads: each query is multiplied by the keys of all heads, whether they are its own or not."""

SHORT = 128
"""Over fewer keys the plain form is faster."""

PARTS = 4
"""In how many parts the keys are cut; those behind the last part in use are left out."""


def refusal(facts: Facts) -> str | None:
    """Why steps would not be the better form."""
    if facts.empty:
        return facts.empty
    if facts.device != "cpu":
        return Slower(f"steps are a CPU's form; got {facts.device}")
    if facts.dtype not in ("float32", "float64"):
        return Slower(f"the plain form is faster in half types; got {facts.dtype}")
    if facts.queries > 1:
        return Slower(f"other forms are faster for more than one query; got {facts.queries}")
    if facts.heads > HEADS:
        return Slower(f"the plain form is faster for more than {HEADS} heads; got {facts.heads}")
    if facts.keys < SHORT:
        return Slower(f"the plain form is faster below {SHORT} keys; got {facts.keys}")
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
    bias = positioned(bias, scoring, scope.queries.positions, scope.keys.positions, q.dtype)
    mask = scope.mask(rule)
    if mask is None:
        return _attend(scoring, q, k, v, None, bias)
    S = k.shape[1]
    ends = sorted({-(-S * part // PARTS) for part in range(1, PARTS + 1)})

    def upto(end: int) -> Any:
        pairs = tuple(None if x is None else x[..., :end] for x in (mask, bias))
        return lambda: _attend(scoring, q, k[:, :end], v[:, :end], *pairs)

    # A branch is also a fence: without one, XLA copies a cache that a loop carries before it multiplies by it.
    last = jnp.where(mask.any((0, 1, 2)), jnp.arange(S), 0).max()
    return lax.switch((last >= jnp.array(ends[:-1])).sum(), [upto(end) for end in ends])


def _attend(
    scoring: Scoring,
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    v: Float[Array, "B S K E"],
    mask: Bool[Array, "B|1 H|1 T S"] | None,
    bias: Float[Array, "B|1 H|1 T S"] | None,
) -> Float[Array, "B T H E"]:
    """In both products keys come first, so that neither they nor the values are turned round; the scores are."""
    B, T, H, _ = q.shape
    S, K, E = v.shape[1:]
    scores = _product(k.reshape(B, S, -1), _columns(q, K), 2, 1).reshape(B, S, T, H).transpose(0, 3, 2, 1)
    scores = capped(scores * scoring.scale, scoring.softcap)
    if bias is not None:
        mask, bias = finite_bias(mask, bias)
        scores = scores + bias.astype(scores.dtype)
    weights = dropped(softmax(scores, mask, scoring.sinks), scoring).astype(v.dtype)
    weights = weights.transpose(0, 3, 2, 1).reshape(B, S, T * H)
    mixed = _product(weights, v.reshape(B, S, -1), 1, 1).reshape(B, T, K, H // K, K, E)
    return jnp.einsum("btkgke->btkge", mixed).reshape(B, T, H, E).astype(v.dtype)


def _product(a: Array, b: Array, a_axis: int, b_axis: int) -> Array:
    """The product of two matrices for each row, summed over one axis of each in at least float32."""
    axes = (((a_axis,), (b_axis,)), ((0,), (0,)))
    return lax.dot_general(a, b, axes, preferred_element_type=wide(a.dtype))


def _columns(q: Float[Array, "B T H D"], kv_heads: int) -> Float[Array, "B K*D N"]:
    """Each query as a column: in its own key/value head's place, and 0 in the others'."""
    B, T, H, D = q.shape
    columns = q.reshape(B, T, kv_heads, -1, D).transpose(0, 4, 1, 2, 3)[:, None]
    own = jnp.eye(kv_heads, dtype=bool)[:, None, None, :, None]
    return jnp.where(own, columns, 0).reshape(B, kv_heads * D, T * H)
