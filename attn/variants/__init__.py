"""Every attention variant, by its name."""

from typing import Annotated

from pydantic import Field

from attn.variants.base import AttentionConfig
from attn.variants.latent.latent import MultiHeadLatentAttentionConfig
from attn.variants.softmax.causal_attention import CausalAttentionConfig
from attn.variants.softmax.cross_attention import CrossAttentionConfig
from attn.variants.softmax.grouped_query import GroupedQueryAttentionConfig
from attn.variants.softmax.multi_head import MultiHeadAttentionConfig
from attn.variants.softmax.multi_query import MultiQueryAttentionConfig
from attn.variants.softmax.self_attention import SelfAttentionConfig

VARIANTS: dict[str, type[AttentionConfig]] = {
    "self": SelfAttentionConfig,
    "cross": CrossAttentionConfig,
    "causal": CausalAttentionConfig,
    "multi_head": MultiHeadAttentionConfig,
    "multi_query": MultiQueryAttentionConfig,
    "grouped_query": GroupedQueryAttentionConfig,
    "latent": MultiHeadLatentAttentionConfig,
}

Attention = Annotated[
    SelfAttentionConfig
    | CrossAttentionConfig
    | CausalAttentionConfig
    | MultiHeadAttentionConfig
    | MultiQueryAttentionConfig
    | GroupedQueryAttentionConfig
    | MultiHeadLatentAttentionConfig,
    Field(discriminator="variant"),
]
"""Any of them, told apart by `variant`."""

__all__ = [
    "Attention",
    "AttentionConfig",
    "CausalAttentionConfig",
    "CrossAttentionConfig",
    "GroupedQueryAttentionConfig",
    "MultiHeadAttentionConfig",
    "MultiHeadLatentAttentionConfig",
    "MultiQueryAttentionConfig",
    "SelfAttentionConfig",
    "VARIANTS",
]
