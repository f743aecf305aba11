"""Grouped-query attention: each key/value head serves a group of G query heads."""

from typing import Literal

from pydantic import Field

from attn.config import Size
from attn.variants.softmax.base import MaskedSoftmaxConfig, like_input


class GroupedQueryAttentionConfig(MaskedSoftmaxConfig):
    """Query head h reads key/value head h // G, G = heads / kv_heads (Ainslie et al. 2023).

    y = concat_h( softmax(q_h k_{h // G}^T / sqrt(D)) v_{h // G} ) Wo        D = dim_k / heads, E = dim_v / heads

    Multi-head is kv_heads = heads, multi-query is kv_heads = 1.
    """

    variant: Literal["grouped_query"] = "grouped_query"
    input_dim: Size
    heads: Size
    kv_heads: Size
    dim_k: Size = Field(default_factory=like_input)
    dim_v: Size = Field(default_factory=like_input)
