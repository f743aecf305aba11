"""Cross-attention: one head, queries from x, keys and values from a context."""

from typing import Literal

from pydantic import Field

from attn.config import Size
from attn.variants.softmax.base import MaskedSoftmaxConfig, like_input
from attn.variants.softmax.one_head import OneHead


class CrossAttentionConfig(OneHead, MaskedSoftmaxConfig):
    """One head that reads another sequence, without an output projection (Bahdanau et al. 2014; Vaswani et al. 2017).

    y = softmax(q k^T / sqrt(D)) v        q = x Wq, k = c Wk, v = c Wv        x [B T M], c [B S X] -> y [B T E]
    """

    variant: Literal["cross"] = "cross"
    input_dim: Size
    context_dim: Size = Field(default_factory=like_input)
    dim_k: Size = Field(default_factory=like_input)
    dim_v: Size = Field(default_factory=like_input)
