"""Multi-head attention: H heads side by side, each with keys and values of its own."""

from typing import Literal

from pydantic import Field

from attn.config import Size
from attn.variants.softmax.base import MaskedSoftmaxConfig, like_input


class MultiHeadAttentionConfig(MaskedSoftmaxConfig):
    """H independent heads, concatenated and mixed by `out` (Vaswani et al. 2017, section 3.2.2).

    y = concat_h( softmax(q_h k_h^T / sqrt(D)) v_h ) Wo        D = dim_k / heads, E = dim_v / heads
    """

    variant: Literal["multi_head"] = "multi_head"
    input_dim: Size
    heads: Size
    dim_k: Size = Field(default_factory=like_input)
    dim_v: Size = Field(default_factory=like_input)

    @property
    def kv_heads(self) -> int:
        return self.heads
