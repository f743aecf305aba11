"""The feed-forward half of a block."""

from typing import Any

import flax.linen as nn
from jaxtyping import Array, Float

from attn.models.mlp import MLPConfig
from attn_jax.functional import activate
from attn_jax.parts import declare


class MLP(nn.Module):
    """Gated: (act(x Wgate) * (x Wup)) Wdown; otherwise act(x Wup) Wdown."""

    cfg: MLPConfig
    dtype: Any = None

    def setup(self):
        declare(self, self.cfg, self.dtype)

    def __call__(self, x: Float[Array, "B T M"]) -> Float[Array, "B T M"]:
        up = self.up(x)
        hidden = (
            activate(self.cfg.activation, self.gate(x)) * up if self.cfg.gated else activate(self.cfg.activation, up)
        )
        return self.down(hidden)
