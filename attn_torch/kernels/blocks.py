"""Attention in blocks of queries, each with only the keys it can see, on the flash kernel that also knows sinks."""

from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attn.kernels import HIDING, MOVED, Facts, Slower, span
from attn.masks import Causal, Chunked, Full, Rule, SlidingWindow
from attn_torch.kernels.cuts import Cut, cuts, share, within
from attn_torch.kernels.flash import attended
from attn_torch.kernels.runs import runs
from attn_torch.kernels.sdpa import widened
from attn_torch.kernels.unpadding import unpadded, without_padding
from attn_torch.scope import Scope
from attn_torch.scoring import Scoring

NARROW, WIDE = 128, 256
"""The queries of a block where a query sees few keys, and where it sees many."""

FEW = 512
"""Below so many keys one masked call is as fast."""

TINY = 256
"""Below so many scores a head the plain form is as fast."""


def refusal(facts: Facts) -> str | None:
    """Why the flash kernel cannot run this call, or why another is faster."""
    if facts.empty:
        return facts.empty
    if facts.device != "cpu":
        return f"the flash kernel that returns a log-sum-exp is the CPU's; got {facts.device}"
    lacking = sorted(facts.options & {"softcap", "dropout"})
    if lacking:
        return f"PyTorch's flash kernel has no {' or '.join(lacking)}"
    if facts.learned:
        return "PyTorch's flash kernel has no gradient of a bias"
    if "sinks" in facts.options:
        few = facts.queries * facts.keys < TINY
        return Slower(f"fewer than {TINY} scores a head are written out faster") if few else None
    if facts.keys < FEW:
        return Slower(f"one masked call is as fast below {FEW} keys")
    by_distance = facts.options & {"alibi", "t5"}
    return None if by_distance or _skips(facts) else Slower("no block of queries would see fewer keys")


def _skips(facts: Facts) -> bool:
    blocks = cuts(facts.rule, unpadded(facts.rule, facts.given), facts.queries, facts.keys, size(facts.rule))
    return share(blocks, facts.queries, facts.keys) < 0.75


def attend(
    rule: Rule,
    scope: Scope,
    scoring: Scoring,
    q: Float[Tensor, "B T H D"],
    k: Float[Tensor, "B S K D"],
    v: Float[Tensor, "B S K E"],
    bias: Float[Tensor, "B|1 H|1 T S"] | None,
) -> Float[Tensor, "B T H E"]:
    """softmax(q k^T * scale + bias) v over the keys that each query may see, with the sinks in the denominator."""
    if bias is None and scope.valid is not None and unpadded(rule, scope.given) != scope.given:

        def run(scope, q, k, v):
            return attend(rule, scope, scoring, q, k, v, None)

        return without_padding(run, scope, scope.valid, q, k, v)
    B, T, S, E = *q.shape[:2], k.shape[1], v.shape[3]
    by_distance = scoring.slopes is not None or scoring.relative is not None
    blocks = None if bias is not None or by_distance else unmasked(rule, scope.given, T, S)
    seen, causal, alike = None, isinstance(rule, Causal | Chunked), True
    if blocks is None:
        blocks, causal, alike = cuts(rule, scope.given, T, S, size(rule)), False, shifted(rule, scope.given)
    # A run is a batch of its own for each row, and each of its blocks would have distances and biases of its own.
    apart = bias is not None or (by_distance and not alike)
    parts = runs(blocks, len(blocks) if apart else B, alike)
    if not causal:
        seen = masks(rule, scope, [block for run in parts for block in run.masked])
    q, k, v = widened(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    edges = [number for run in parts for number in run]
    added = bias, scoring.relative, list(scoring.slopes or ())
    positions = (scope.queries.positions, scope.keys.positions) if by_distance else (None, None)
    y, _ = attended(q, k, v, scoring.sinks, seen, *added, *positions, edges, causal, scoring.scale)
    return y[..., :E].transpose(1, 2)


def shifted(rule: Rule, given: frozenset[str]) -> bool:
    """Whether blocks of one shape have one mask."""
    return isinstance(rule, SlidingWindow) and not given & (HIDING | MOVED)


def size(rule: Rule) -> int:
    """The number of queries in a block."""
    return NARROW if sum(span(rule)) <= 4 * NARROW else WIDE


def unmasked(rule: Rule, given: frozenset[str], queries: int, keys: int) -> list[Cut] | None:
    """Blocks of which each is full, or square and causal by index; None where there are no such blocks."""
    if given & HIDING:
        return None
    if isinstance(rule, Full):
        return [Cut(0, queries, 0, keys)]
    if given & MOVED or queries != keys:
        return None
    if isinstance(rule, Causal):
        return [Cut(0, queries, 0, keys)]
    if isinstance(rule, Chunked) and rule.width >= NARROW:
        ends = (*range(0, queries, rule.width), queries)
        return [Cut(i, j, i, j) for i, j in pairwise(ends)]
    return None


def masks(rule: Rule, scope: Scope, blocks: list[Cut]) -> Bool[Tensor, "B|1 H|1 N"] | None:
    """Which query of a block may see which of its keys, the blocks behind one another."""
    parts = [within(scope, block).mask(rule) for block in blocks]
    if parts[0] is None:
        return None
    sizes = [(block.j - block.i, block.high - block.low) for block in blocks]
    flat = [part.expand(-1, -1, *size).flatten(2) for part, size in zip(parts, sizes, strict=True)]
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=-1)
