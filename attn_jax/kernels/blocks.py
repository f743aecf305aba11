"""Attention by blocks: an online softmax that never holds the T x S scores, with a backward pass of its own.

Memory grows with T + S. Blocks of keys that a block of queries cannot see are never touched, so that a window or a
chunk costs what it sees, and only blocks on the border of what may be seen are masked.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn.kernels import MOVED, Facts, Slower, span
from attn.masks import Full, Rule
from attn_jax.kernels.blocks_backward import backward
from attn_jax.kernels.blocks_bias import Bias, by_distance
from attn_jax.kernels.blocks_bounds import AREA, Given, Plan, block_sizes, divisor
from attn_jax.kernels.blocks_forward import forward
from attn_jax.scope import Scope
from attn_jax.scoring import Scoring

FEW = 2**21
"""Up to so many scores the plain form is faster: they stay near the cores."""

SKIPPED = 2**16
"""Below so many scores a head it is faster even where blocks would leave out half of them."""


def refusal(facts: Facts) -> str | None:
    """Why blocks would not be the better form."""
    if facts.empty:
        return facts.empty
    of_head = facts.queries * facts.keys
    if 2 * sum(span(facts.rule)) < facts.keys:
        few = of_head < SKIPPED
        return Slower(f"the plain form is faster below {SKIPPED} scores a head; got {of_head}") if few else None
    scores = facts.batch * facts.heads * of_head
    return Slower(f"the plain form is faster up to {FEW} scores; got {scores}") if scores <= FEW else None


def attend(
    rule: Rule,
    scope: Scope,
    scoring: Scoring,
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    v: Float[Array, "B S K E"],
    bias: Float[Array, "B|1 H|1 T S"] | None,
) -> Float[Array, "B T H E"]:
    """softmax(cap(q k^T * scale) + bias) v over the keys that each query may see, block by block.

    What an invalid query gets depends on the blocks: nobody reads it. Gradients go through once, not twice.
    """
    plan = _plan(rule, scope, scoring, q, k)
    queries, keys = scope.queries, scope.keys
    apart = queries.segments is not None and keys.segments is not None
    given = Given(
        None if plan.by_index else queries.positions,
        None if plan.by_index else keys.positions,
        queries.valid,
        keys.valid,
        queries.segments if apart else None,
        keys.segments if apart else None,
        scope.allowed,
        scoring.rng if scoring.dropout else None,
    )
    return _attend(plan, q, k, v, Bias(bias, scoring.relative), scoring.sinks, given)


def _plan(rule: Rule, scope: Scope, scoring: Scoring, q: Array, k: Array) -> Plan:
    (B, T, H, _), (S, K) = q.shape, k.shape[1:3]
    moved = scope.given & (MOVED | {"valid", "segments"})
    by_index = (not moved and T == S) or (isinstance(rule, Full) and scoring.slopes is scoring.relative is None)
    block_q, block_k, single = block_sizes(rule, T, S, H // K, by_index and T == S)
    rows, heads = B, K
    if jax.default_backend() == "cpu":
        # One core computes one thing after another, and fastest what its cache holds; other devices want all at once.
        room = AREA // (H // K * block_q * block_k)
        heads = divisor(K, room)
        rows = divisor(B, room // heads)
    dropout, slopes = scoring.dropout, scoring.slopes
    sizes = S, by_index, H // K, block_q, block_k, rows, heads
    return Plan(rule, scoring.scale, scoring.softcap, slopes, dropout, *sizes, single)


@partial(jax.jit, static_argnums=0)
def _attend(plan: Plan, q: Array, k: Array, v: Array, bias: Bias, sinks: Array | None, given: Given) -> Array:
    """Heads in groups, sizes filled up to whole blocks, and back."""
    (B, T, H, D), K, G = q.shape, k.shape[2], plan.group
    q, k, v = _filled(q.reshape(B, T, K, G, D), plan, "bTkgd"), _filled(k, plan, "bSkd"), _filled(v, plan, "bSkd")
    pairs = None if bias.pairs is None else _filled(_grouped(bias.pairs, K), plan, "bkgTS")
    relative = None if bias.relative is None else by_distance(plan, bias.relative)
    allowed = None if given.allowed is None else _filled(_grouped(given.allowed, K), plan, "bkgTS")
    rows = (_filled(row, plan, spelling) for row, spelling in zip(given[:6], ("bT", "bS") * 3, strict=True))
    sinks = None if sinks is None else sinks.reshape(K, G)
    attended = _core(plan, q, k, v, Bias(pairs, relative), sinks, Given(*rows, allowed, given.rng))
    return attended[:, :T].reshape(B, T, H, -1)


def _grouped(pairs: Array, kv_heads: int) -> Array:
    """[B|1 K|1 G|1 T S] from [B|1 H|1 T S]."""
    B, H, *rest = pairs.shape
    return pairs.reshape(B, *((1, 1) if H == 1 else (kv_heads, H // kv_heads)), *rest)


def _filled(array: Any, plan: Plan, axes: str) -> Any:
    """The array with zeros up to whole blocks along T and S."""
    if array is None:
        return None
    blocks = {"T": plan.block_q, "S": 1 if plan.single else plan.block_k}
    widths = [(0, -size % blocks.get(axis, 1)) for axis, size in zip(axes, array.shape, strict=True)]
    return jnp.pad(array, widths) if any(after for _, after in widths) else array


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _core(plan, q, k, v, bias, sinks, given):
    return forward(plan, q, k, v, bias, sinks, given)[0]


def _core_forward(plan, q, k, v, bias, sinks, given):
    attended, lse = forward(plan, q, k, v, bias, sinks, given)
    return attended, (q, k, v, bias, sinks, given, attended, lse)


def _core_backward(plan, kept, dy):
    return *backward(plan, *kept, dy), None


_core.defvjp(_core_forward, _core_backward)
