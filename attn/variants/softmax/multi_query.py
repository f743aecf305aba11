"""Multi-query attention: H query heads over one shared key/value head."""

from typing import Literal

from pydantic import Field

from attn.config import Size
from attn.variants.softmax.base import MaskedSoftmaxConfig, like_input


class MultiQueryAttentionConfig(MaskedSoftmaxConfig):
    """All heads read the same keys and values (Shazeer 2019): the cache shrinks by the number of heads.

    y = concat_h( softmax(q_h k^T / sqrt(D)) v ) Wo        D = dim_k / heads, E = dim_v / heads
    """

    variant: Literal["multi_query"] = "multi_query"
    input_dim: Size
    heads: Size
    dim_k: Size = Field(default_factory=like_input)
    dim_v: Size = Field(default_factory=like_input)

    @property
    def kv_heads(self) -> int:
        return 1
