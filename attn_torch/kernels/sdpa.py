"""PyTorch's fused attention, in the three forms that its flash kernels know: all keys, causal by index, a mask."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attn.kernels import Facts
from attn.masks import Causal, Full
from attn.variants.base import AttentionConfig
from attn_torch.scope import Scope


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
    """Never: any rule can be written as a mask."""
    del facts
    return None


def _masking(facts: Facts) -> str | None:
    needs = sorted(facts.given & {"valid", "segments", "allowed", "bias", "cache"})
    return f"{' and '.join(needs)} must enter a mask" if needs else None


def full(cfg: AttentionConfig, scope: Scope, q: Float[Tensor, "B T H D"], k, v, *, scale: float) -> Tensor:
    """softmax(q k^T * scale) v over all keys."""
    del cfg, scope
    return _sdpa(q, k, v, scale)


def causal(cfg: AttentionConfig, scope: Scope, q: Float[Tensor, "B T H D"], k, v, *, scale: float) -> Tensor:
    """softmax(q k^T * scale) v over the keys up to the query's own index."""
    del cfg, scope
    return _sdpa(q, k, v, scale, is_causal=q.shape[1] > 1)


def masked(cfg: AttentionConfig, scope: Scope, q: Float[Tensor, "B T H D"], k, v, *, scale: float) -> Tensor:
    """softmax(q k^T * scale + bias) v over the keys that each query may see."""
    mask = scope.mask(cfg.rule)
    if scope.bias is not None:
        mask = scope.bias.to(q.dtype) if mask is None else torch.where(mask, scope.bias.to(q.dtype), -torch.inf)
    return _sdpa(q, k, v, scale, attn_mask=mask)


def _sdpa(q, k, v, scale: float, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    grouped = q.shape[1] != k.shape[1]
    attended = F.scaled_dot_product_attention(
        q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale, enable_gqa=grouped
    )
    return attended.transpose(1, 2)
