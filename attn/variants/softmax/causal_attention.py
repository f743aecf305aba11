"""Causal attention: one head that sees itself and what came before."""

from typing import Literal

from pydantic import Field

from attn.config import Size
from attn.masks import Causal, Rule
from attn.variants.softmax.base import SoftmaxConfig, like_input
from attn.variants.softmax.one_head import OneHead

CAUSAL = Causal()


class CausalAttentionConfig(OneHead, SoftmaxConfig):
    """One head under the causal rule, without an output projection; its rule is fixed and it reads no context.

    y_t = softmax_{s <= t}(q_t . k_s / sqrt(D)) v_s        x [B T M] -> y [B T E]
    """

    variant: Literal["causal"] = "causal"
    input_dim: Size
    dim_k: Size = Field(default_factory=like_input)
    dim_v: Size = Field(default_factory=like_input)

    @property
    def rule(self) -> Rule:
        return CAUSAL
