"""Padded rows without their padding: valid tokens moved together, attended like any others, and moved back.

Padding between two tokens adds to their distance in memory, so that blocks of a window would have to reach over all of
it. Moved together, the tokens of a row stand where their positions say, and under a causal rule none of them sees what
is behind the last: neither a mask nor a longer reach is needed.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attn.masks import Rule
from attn_torch.scope import Scope
from attn_torch.tokens import Tokens


def unpadded(rule: Rule, given: frozenset[str]) -> frozenset[str]:
    """What a call brings along once its padding is out of the way, where that is possible."""
    return given - {"valid"} if rule.causal and given <= {"valid", "segments"} else given


def without_padding(
    attend: Callable[..., Tensor],
    scope: Scope,
    valid: Bool[Tensor, "B T"],
    q: Float[Tensor, "B T H D"],
    k: Float[Tensor, "B T K D"],
    v: Float[Tensor, "B T K D"],
) -> Float[Tensor, "B T H D"]:
    """`attend(scope, q, k, v)` of the valid tokens; what an invalid query gets, nobody reads."""
    (B, T), (positions, _, segments) = valid.shape, scope.queries
    order = torch.argsort(~valid, dim=1, stable=True)
    there = (order + T * torch.arange(B, device=order.device)[:, None]).flatten()
    q, k, v = (_moved(x, there) for x in (q, k, v))
    if segments is None:
        tokens = Tokens(torch.arange(T, device=order.device)[None], None, None)
    else:
        # Positions start again in each segment; padding comes after all of them.
        positions = torch.where(valid, positions, T).gather(1, order)
        tokens = Tokens(positions, None, segments.expand(B, T).gather(1, order))
    y = attend(Scope(tokens, tokens, given=scope.given - {"valid"}, length=T, below=T), q, k, v)
    return _moved(y, torch.argsort(there))


def _moved(x: Float[Tensor, "B T H D"], places: Tensor) -> Float[Tensor, "B T H D"]:
    return x.flatten(0, 1).index_select(0, places).view(x.shape)
