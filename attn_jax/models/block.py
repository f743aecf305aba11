"""A block: attention and MLP, each behind a norm, each added to the residual."""

from typing import Any

import flax.linen as nn
from jaxtyping import Array, Float

from attn.models.block import BlockConfig
from attn_jax.functional import scaled
from attn_jax.models.mlp import MLP
from attn_jax.parts import declare
from attn_jax.scope import Scope


class Block(nn.Module):
    """h = x + r attention(norm(x));  y = h + r mlp(norm(h)), with r = residual_scale."""

    cfg: BlockConfig
    attention: nn.Module
    dtype: Any = None

    def setup(self):
        declare(self, self.cfg, self.dtype)
        self.mlp = MLP(self.cfg.mlp, self.dtype)

    def __call__(
        self, scope: Scope, x: Float[Array, "B T M"], store: Any = None, deterministic: bool = True
    ) -> tuple[Array, Any]:
        """(y, store) in a scope that is already surveyed."""
        attended, store = self.attention.within(scope, self.attention_norm(x), None, store, deterministic)
        x = x + scaled(attended, self.cfg.residual_scale)
        return x + scaled(self.mlp(self.mlp_norm(x)), self.cfg.residual_scale), store
