"""The feed-forward half of a block."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attn.models.mlp import MLPConfig
from attn_torch.functional import activate
from attn_torch.parts import declare, flattened


class MLP(nn.Module):
    """Gated: (act(x Wgate) * (x Wup)) Wdown; otherwise act(x Wup) Wdown."""

    def __init__(self, cfg: MLPConfig, dtype: torch.dtype | None = None):
        super().__init__()
        self.cfg = cfg
        declare(self, cfg, dtype)

    def forward(self, x: Float[Tensor, "B T M"]) -> Float[Tensor, "B T M"]:
        flat = flattened(x)
        up = self.up(*flat)
        hidden = (
            activate(self.cfg.activation, self.gate(*flat)) * up
            if self.cfg.gated
            else activate(self.cfg.activation, up)
        )
        return self.down(hidden)
