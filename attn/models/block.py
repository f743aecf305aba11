"""A block of a model: attention and MLP, each behind a norm, each added to the residual."""

from attn.config import Config
from attn.layout import Layout
from attn.models.mlp import MLPConfig
from attn.models.norm import NormConfig
from attn.variants import Attention


class BlockConfig(Config):
    """h = x + r attention(norm(x));  y = h + r mlp(norm(h))  with r = residual_scale (pre-norm, Xiong et al. 2020)."""

    attention: Attention
    mlp: MLPConfig
    norm: NormConfig
    residual_scale: float = 1.0

    def sizes(self) -> dict[str, int]:
        return {"M": self.attention.input_dim}

    def layout(self) -> Layout:
        return {"attention_norm": self.norm.part(), "mlp_norm": self.norm.part()}

    def children(self) -> dict[str, Config]:
        return {"attention": self.attention, "mlp": self.mlp}
