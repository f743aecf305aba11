"""A block: attention and MLP, each behind a norm, each added to the residual."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attn.models.block import BlockConfig
from attn_torch.functional import scaled
from attn_torch.models.mlp import MLP
from attn_torch.parts import declare
from attn_torch.scope import Scope


class Block(nn.Module):
    """h = x + r attention(norm(x));  y = h + r mlp(norm(h)), with r = residual_scale."""

    def __init__(self, cfg: BlockConfig, attention: nn.Module, dtype: torch.dtype | None = None):
        super().__init__()
        self.cfg = cfg
        declare(self, cfg, dtype)
        self.attention = attention
        self.mlp = MLP(cfg.mlp, dtype)

    def forward(self, scope: Scope, x: Float[Tensor, "B T M"], store: Any = None) -> tuple[Tensor, Any]:
        """(y, store) in a scope that is already surveyed."""
        attended, store = self.attention.within(scope, self.attention_norm(x), store=store)
        x = x + scaled(attended, self.cfg.residual_scale)
        return x + scaled(self.mlp(self.mlp_norm(x)), self.cfg.residual_scale), store
