"""PyTorch's fused attention, in the three forms that its flash kernels know: all keys, causal by index, a mask."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attn.kernels import HIDING, Facts, Slower
from attn.masks import Causal, Full, Rule
from attn_torch.functional import positioned, wide
from attn_torch.scope import Scope
from attn_torch.scoring import Scoring

MANY = 2**19
"""So many scores a head are computed faster by the flash kernel, its zeros and its backward pass included."""

DROPPED = 2**20
"""So many scores a head, if some weights are dropped, a CPU writes out faster in blocks."""

FOLDED = 4
"""A single query reads the keys of a group once for each of its heads; for so many, faster once, as rows of one."""

LONG = 2048
"""From so many queries and keys on, a CPU is faster where those of one head stand behind one another in memory."""


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
    """Why this call cannot be written as a mask, or would lose digits by it."""
    rounded = facts.added and rounds(facts.device, facts.dtype)
    return _missing(facts) or (f"off CPUs fused attention rounds a bias to {facts.dtype}" if rounded else None)


def rounds(device: str, dtype: str) -> bool:
    """Whether fused attention takes a bias in the dtype of queries only, and that is less than a score has."""
    return device != "cpu" and dtype in ("bfloat16", "float16")


def _masking(facts: Facts) -> str | None:
    needs = sorted(facts.given & HIDING | facts.added)
    return f"{' and '.join(needs)} must enter a mask" if needs else _missing(facts) or _writing(facts)


def _missing(facts: Facts) -> str | None:
    lacking = sorted(facts.options & {"softcap", "sinks"})
    return f"PyTorch's fused attention has no {' or '.join(lacking)}" if lacking else None


def _writing(facts: Facts) -> str | None:
    many = facts.device == "cpu" and "dropout" in facts.options and facts.queries * facts.keys >= DROPPED
    return Slower("with dropout PyTorch writes out all scores on a CPU") if many else None


def full(rule: Rule, scope: Scope, scoring: Scoring, q: Float[Tensor, "B T H D"], k, v, bias) -> Tensor:
    """softmax(q k^T * scale) v over all keys."""
    del rule, scope, bias
    return fused(q, k, v, scoring)


def causal(rule: Rule, scope: Scope, scoring: Scoring, q: Float[Tensor, "B T H D"], k, v, bias) -> Tensor:
    """softmax(q k^T * scale) v over the keys up to the query's own index."""
    del rule, scope, bias
    return fused(q, k, v, scoring, is_causal=q.shape[1] > 1)


def masked(rule: Rule, scope: Scope, scoring: Scoring, q: Float[Tensor, "B T H D"], k, v, bias) -> Tensor:
    """softmax(q k^T * scale + bias) v over the keys that each query may see."""
    bias = positioned(bias, scoring, scope.queries.positions, scope.keys.positions, q.dtype)
    if bias is None:
        # As numbers, which PyTorch would make of it again in every layer.
        mask = scope.once((rule, q.dtype), lambda: hiding(scope.mask(rule), q.dtype))
        return fused(q, k, v, scoring, attn_mask=mask)
    mask, bias = scope.mask(rule), bias.to(wide(q.dtype))
    return fused(q, k, v, scoring, attn_mask=bias if mask is None else bias.masked_fill(~mask, -torch.inf))


def hiding(mask: Bool[Tensor, "B|1 H|1 T S"] | None, dtype: torch.dtype) -> Float[Tensor, "B|1 H|1 T S"] | None:
    """What is added to the scores: 0 where a query may see a key, -inf elsewhere."""
    return (
        None
        if mask is None
        else torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -torch.inf)
    )


def fused(
    q: Float[Tensor, "B T H D"],
    k: Float[Tensor, "B S K D"],
    v: Float[Tensor, "B S K E"],
    scoring: Scoring,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Float[Tensor, "B T H E"]:
    """One call of PyTorch's fused attention."""
    (B, T, H, D), K, E = q.shape, k.shape[2], v.shape[3]
    folds = T == 1 and H >= FOLDED * K and (attn_mask is None or attn_mask.shape[1] == 1)
    q = q.reshape(B, K, H // K, D) if folds else q.transpose(1, 2)
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    if D != E and _widening_pays(q, k, attn_mask, scoring):
        q, k, v = widened(q, k, v)
    if min(T, k.shape[2]) >= LONG and q.device.type == "cpu":
        # Each block of queries reads all keys again, and the backward pass once more: one copy costs less.
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    attended = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=attn_mask,
        dropout_p=scoring.dropout,
        is_causal=is_causal,
        scale=scoring.scale,
        enable_gqa=H != K and not folds,
    )
    attended = attended if D == E else attended[..., :E]
    return attended.reshape(B, 1, H, E) if folds else attended.transpose(1, 2)


def widened(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The narrower of keys and values filled up with zeros, so that a flash kernel takes them."""
    lacking = k.shape[-1] - v.shape[-1]
    if lacking > 0:
        return q, k, F.pad(v, (0, lacking))
    return (q, k, v) if lacking == 0 else (F.pad(q, (0, -lacking)), F.pad(k, (0, -lacking)), v)


def _widening_pays(q, k, attn_mask, scoring):
    # With dropout or a learned bias PyTorch writes out all scores in any case; few scores it is quicker to write out.
    learned = attn_mask is not None and attn_mask.requires_grad
    if q.device.type != "cpu" or scoring.dropout or learned:
        return False
    learns = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)
    return not learns or q.shape[2] * k.shape[2] >= MANY
