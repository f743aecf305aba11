"""FlexAttention on CUDA: rules, soft-caps and biases are functions of one score, which its compiler fuses."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from attn.kernels import MOVED, Facts, Slower
from attn.masks import Full, Rule
from attn_torch.functional import capped, wide
from attn_torch.scope import Scope
from attn_torch.scoring import Scoring

BLOCK = 128
"""The side of the blocks that FlexAttention skips; fewer queries do not fill one."""


def refusal(facts: Facts) -> str | None:
    """Why FlexAttention cannot run this call, or is not worth compiling."""
    if facts.empty:
        return facts.empty
    if facts.device != "cuda":
        return f"FlexAttention has no backward pass off CUDA; got {facts.device}"
    if facts.dtype == "float64":
        return "FlexAttention has no float64"
    if "dropout" in facts.options:
        return "FlexAttention has no dropout"
    if facts.learned:
        return "FlexAttention adds up the gradient of a bias in no fixed order"
    return Slower(f"{facts.queries} queries do not fill a block of {BLOCK}") if facts.queries < BLOCK else None


def attend(
    rule: Rule,
    scope: Scope,
    scoring: Scoring,
    q: Float[Tensor, "B T H D"],
    k: Float[Tensor, "B S K D"],
    v: Float[Tensor, "B S K E"],
    bias: Float[Tensor, "B|1 H|1 T S"] | None,
) -> Float[Tensor, "B T H E"]:
    """softmax(cap(q k^T * scale) + bias) v over the keys that each query may see, sinks by way of the log-sum-exp."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    (B, H, T, _), (K, S) = q.shape, k.shape[1:3]
    y, extra = _compiled(flex_attention, q)(
        q,
        k,
        v,
        score_mod=_score(scope, scoring, bias, q),
        block_mask=_mask(rule, scope, (B, H, T, S), q),
        scale=scoring.scale,
        enable_gqa=H != K,
        return_aux=AuxRequest(lse=True),
    )
    if scoring.sinks is not None:
        beside = torch.sigmoid(extra.lse - scoring.sinks.to(extra.lse.dtype)[:, None])
        y = (y * beside[..., None]).to(y.dtype)
    return y.transpose(1, 2)


def _compiled(function: Callable[..., Any], q: Tensor) -> Callable[..., Any]:
    # Inside compiled code it is compiled with the rest; on a CPU it is only ever compared with other kernels.
    return function if torch.compiler.is_compiling() or not q.is_cuda else _compile(function)


@lru_cache
def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function)


def _score(scope: Scope, scoring: Scoring, bias: Tensor | None, q: Tensor) -> Callable[..., Tensor] | None:
    relative = scoring.relative
    if scoring.softcap is scoring.slopes is relative is bias is None:
        return None
    B, H = q.shape[:2]
    slopes = None if scoring.slopes is None else torch.tensor(scoring.slopes, dtype=wide(q.dtype), device=q.device)
    q_positions, k_positions = (tokens.positions.expand(B, -1) for tokens in (scope.queries, scope.keys))
    bias = None if bias is None else bias.expand(B, H, -1, -1)
    far = 0 if relative is None else relative.shape[1] // 2

    def score(value, b, h, t, s):
        value = capped(value, scoring.softcap)
        if slopes is not None:
            value = value - slopes[h] * torch.abs(q_positions[b, t] - k_positions[b, s])
        if relative is not None:
            value = value + relative[h, torch.clamp(k_positions[b, s] - q_positions[b, t], -far, far) + far]
        return value if bias is None else value + bias[b, h, t, s]

    return score


def _mask(rule: Rule, scope: Scope, sizes: tuple[int, int, int, int], q: Tensor) -> BlockMask | None:
    (B, H, T, S), queries, keys, allowed = sizes, scope.queries, scope.keys, scope.allowed
    by_index = not scope.given & (MOVED | {"valid", "segments"}) and T == S
    apart = queries.segments is not None and keys.segments is not None
    if isinstance(rule, Full) and keys.valid is None and not apart and allowed is None:
        return None
    q_positions, k_positions = (tokens.positions.expand(B, -1) for tokens in (queries, keys))
    whole = None if allowed is None else allowed.expand(B, H, -1, -1)

    def mask(b, h, t, s):
        seen = rule.allows(t, s) if by_index else rule.allows(q_positions[b, t], k_positions[b, s])
        seen = seen if keys.valid is None else seen & keys.valid[b, s]
        seen = seen & (queries.segments[b, t] == keys.segments[b, s]) if apart else seen
        return seen if whole is None else seen & whole[b, h, t, s]

    alike = by_index and allowed is None
    heads = None if allowed is None or allowed.shape[1] == 1 else H
    return _compiled(create_block_mask, q)(mask, None if alike else B, heads, T, S, device=q.device)
