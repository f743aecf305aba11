"""Self-attention: one head, queries, keys and values from the same sequence."""

from typing import Literal

from pydantic import Field

from attn.config import Size
from attn.variants.softmax.base import MaskedSoftmaxConfig, like_input
from attn.variants.softmax.one_head import OneHead


class SelfAttentionConfig(OneHead, MaskedSoftmaxConfig):
    """One head, without an output projection (Vaswani et al. 2017, equation 1).

    y = softmax(q k^T / sqrt(D)) v        q = x Wq, k = x Wk, v = x Wv        x [B T M] -> y [B T E]
    """

    variant: Literal["self"] = "self"
    input_dim: Size
    dim_k: Size = Field(default_factory=like_input)
    dim_v: Size = Field(default_factory=like_input)
