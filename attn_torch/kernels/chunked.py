"""The scores written out for one block of queries at a time: what no fused kernel can do, without T x S in memory."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attn.call import dtype_name
from attn.kernels import Facts, Slower
from attn.masks import Rule
from attn_torch.kernels import plain, sdpa
from attn_torch.kernels.cuts import cuts, within
from attn_torch.scope import Scope
from attn_torch.scoring import Scoring

SIZE = 128
"""The queries of a block."""

FEW = 2**19
"""So few scores a head cost less when they are all written out at once."""

MANY = 2**24
"""A bias that learns has as many numbers as there are scores. Up to so many a head, time counts more than memory."""


def refusal(facts: Facts) -> str | None:
    """Why writing out all scores at once, or none at all, is faster."""
    if facts.empty:
        return facts.empty
    written = facts.options & {"softcap", "sinks", "dropout"}
    if not (written or facts.learned):
        return Slower("fused attention need not write out the scores")
    least = MANY if "bias" in facts.given and not written else FEW
    if facts.queries * facts.keys < least:
        return Slower(f"fewer than {least} scores a head are written out faster at once")
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
    """softmax(cap(q k^T * scale) + bias) v over the keys that each query may see.

    The backward pass computes each block again rather than keep its scores, with the same dropped weights; only
    `torch.func`, which has no checkpoints, keeps them.
    """
    # Positions are made now: within a checkpoint that is compiled, nothing outside of it may change.
    scope = Scope(scope.queries, scope.keys, scope.allowed, given=scope.given)
    biased = bias is not None or scoring.slopes is not None or scoring.relative is not None
    rounded = biased and sdpa.rounds(q.device.type, dtype_name(q))
    kernel = plain.attend if scoring.options & {"softcap", "sinks"} or rounded else sdpa.masked

    def attended(block, q, k, v, bias):
        return kernel(rule, within(scope, block), scoring, q, k, v, bias)

    blocks, found = cuts(rule, scope.given, q.shape[1], k.shape[1], SIZE), []
    bounds = [block.i for block in blocks[1:]]
    # Split at once, queries and bias get their gradients by one concatenation.
    biases = [None] * len(blocks) if bias is None else bias.tensor_split(bounds, dim=2)
    for block, queries, extra in zip(blocks, q.tensor_split(bounds, dim=1), biases, strict=True):
        extra = None if extra is None else extra[..., block.keys]
        inputs = block, queries, k[:, block.keys], v[:, block.keys], extra
        again = torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()
        found.append(checkpoint(attended, *inputs, use_reentrant=False) if again else attended(*inputs))
    return torch.cat(found, dim=1)
