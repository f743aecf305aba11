"""What attention is: configs, parameters and mathematics, without a framework. The twins are attn_jax and attn_torch."""

from attn.backends import BACKENDS, backend
from attn.checkpoint import load, save
from attn.letters import LEGEND
from attn.loading import json_schema, load_config
from attn.masks import AllOf, AnyOf, Causal, Chunked, Full, Prefix, SlidingWindow
from attn.mathematics import reference
from attn.models import MODELS, DecoderConfig
from attn.models.mlp import MLPConfig
from attn.models.norm import NormConfig
from attn.positions import Rope
from attn.variants import (
    VARIANTS,
    CausalAttentionConfig,
    CrossAttentionConfig,
    GroupedQueryAttentionConfig,
    MultiHeadAttentionConfig,
    MultiHeadLatentAttentionConfig,
    MultiQueryAttentionConfig,
    SelfAttentionConfig,
)
from attn.weights import count, init_weights

__all__ = [
    "AllOf",
    "AnyOf",
    "BACKENDS",
    "Causal",
    "CausalAttentionConfig",
    "Chunked",
    "CrossAttentionConfig",
    "DecoderConfig",
    "Full",
    "GroupedQueryAttentionConfig",
    "LEGEND",
    "MLPConfig",
    "MODELS",
    "MultiHeadAttentionConfig",
    "MultiHeadLatentAttentionConfig",
    "MultiQueryAttentionConfig",
    "NormConfig",
    "Prefix",
    "Rope",
    "SelfAttentionConfig",
    "SlidingWindow",
    "VARIANTS",
    "backend",
    "count",
    "init_weights",
    "json_schema",
    "load",
    "load_config",
    "reference",
    "save",
]
