"""PyTorch's fused attention, in the three forms that its flash kernels know: all keys, causal by index, a mask."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attn.kernels import Facts
from attn.masks import Causal, Full, Rule
from attn_torch.functional import with_slopes
from attn_torch.scope import Scope
from attn_torch.scoring import Scoring


def full_refusal(facts: Facts) -> str | None:
    """Why this call needs a mask."""
    if not isinstance(facts.rule, Full):
        return f"the rule {facts.rule.kind!r} hides keys"
    return _masking(facts)


def causal_refusal(facts: Facts) -> str | None:
    """Why this call may not use `is_causal`, which compares indices from the top left corner."""
    if not isinstance(facts.rule, Causal):
        return f"the rule is {facts.rule.kind!r}, not causal"
    if not facts.by_index:
        return "positions may differ from indices"
    return _masking(facts)


def masked_refusal(facts: Facts) -> str | None:
    """Why this call cannot be written as a mask."""
    return _missing(facts)


def _masking(facts: Facts) -> str | None:
    needs = sorted(facts.given & {"valid", "segments", "allowed", "bias", "cache"} | facts.options & {"alibi"})
    return f"{' and '.join(needs)} must enter a mask" if needs else _missing(facts)


def _missing(facts: Facts) -> str | None:
    lacking = sorted(facts.options & {"softcap", "sinks"})
    return f"PyTorch's fused attention has no {' or '.join(lacking)}" if lacking else None


def full(rule: Rule, scope: Scope, scoring: Scoring, q: Float[Tensor, "B T H D"], k, v, bias) -> Tensor:
    """softmax(q k^T * scale) v over all keys."""
    del rule, scope, bias
    return _sdpa(q, k, v, scoring)


def causal(rule: Rule, scope: Scope, scoring: Scoring, q: Float[Tensor, "B T H D"], k, v, bias) -> Tensor:
    """softmax(q k^T * scale) v over the keys up to the query's own index."""
    del rule, scope, bias
    return _sdpa(q, k, v, scoring, is_causal=q.shape[1] > 1)


def masked(rule: Rule, scope: Scope, scoring: Scoring, q: Float[Tensor, "B T H D"], k, v, bias) -> Tensor:
    """softmax(q k^T * scale + bias) v over the keys that each query may see."""
    mask = scope.mask(rule)
    bias = with_slopes(bias, scoring.slopes, scope.queries.positions, scope.keys.positions, q.dtype)
    if bias is not None:
        mask = bias.to(q.dtype) if mask is None else torch.where(mask, bias.to(q.dtype), -torch.inf)
    return _sdpa(q, k, v, scoring, attn_mask=mask)


def _sdpa(q, k, v, scoring: Scoring, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    attended = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=attn_mask,
        dropout_p=scoring.dropout,
        is_causal=is_causal,
        scale=scoring.scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return attended.transpose(1, 2)
