"""What attention is: configs, parameters and mathematics, without a framework. The twins are attn_jax and attn_torch.

A name is imported when it is first asked for, so that a command which needs only a few of them starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attn import hub, parity
    from attn.backends import BACKENDS, backend
    from attn.characters import CharTokenizer
    from attn.checkpoint import load, save
    from attn.letters import LEGEND
    from attn.loading import json_schema, load_config
    from attn.masks import AllOf, AnyOf, Causal, Chunked, Full, Prefix, SlidingWindow
    from attn.mathematics import reference
    from attn.models import MODELS, DecoderConfig
    from attn.models.mlp import MLPConfig
    from attn.models.norm import NormConfig
    from attn.positions import Alibi, Buckets
    from attn.rope import DynamicRope, LinearRope, Llama3Rope, LongRope, Rope, YarnRope
    from attn.training import TrainConfig
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
    from attn.variants.softmax.qk_norm import QKNorm
    from attn.weights import count, init_weights

# Where each name lives: the run-time half of the imports above.
_HOMES = {
    "attn.backends": ("BACKENDS", "backend"),
    "attn.characters": ("CharTokenizer",),
    "attn.checkpoint": ("load", "save"),
    "attn.letters": ("LEGEND",),
    "attn.loading": ("json_schema", "load_config"),
    "attn.masks": ("AllOf", "AnyOf", "Causal", "Chunked", "Full", "Prefix", "SlidingWindow"),
    "attn.mathematics": ("reference",),
    "attn.models": ("MODELS", "DecoderConfig"),
    "attn.models.mlp": ("MLPConfig",),
    "attn.models.norm": ("NormConfig",),
    "attn.positions": ("Alibi", "Buckets"),
    "attn.rope": ("DynamicRope", "LinearRope", "Llama3Rope", "LongRope", "Rope", "YarnRope"),
    "attn.training": ("TrainConfig",),
    "attn.variants": (
        "VARIANTS",
        "CausalAttentionConfig",
        "CrossAttentionConfig",
        "GroupedQueryAttentionConfig",
        "MultiHeadAttentionConfig",
        "MultiHeadLatentAttentionConfig",
        "MultiQueryAttentionConfig",
        "SelfAttentionConfig",
    ),
    "attn.variants.softmax.qk_norm": ("QKNorm",),
    "attn.weights": ("count", "init_weights"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("hub", "parity", "weights", "layout", "training")

__all__ = [
    "Alibi",
    "AllOf",
    "AnyOf",
    "BACKENDS",
    "Buckets",
    "Causal",
    "CausalAttentionConfig",
    "CharTokenizer",
    "Chunked",
    "CrossAttentionConfig",
    "DecoderConfig",
    "DynamicRope",
    "Full",
    "GroupedQueryAttentionConfig",
    "LEGEND",
    "LinearRope",
    "Llama3Rope",
    "LongRope",
    "MLPConfig",
    "MODELS",
    "MultiHeadAttentionConfig",
    "MultiHeadLatentAttentionConfig",
    "MultiQueryAttentionConfig",
    "NormConfig",
    "Prefix",
    "QKNorm",
    "Rope",
    "SelfAttentionConfig",
    "SlidingWindow",
    "TrainConfig",
    "VARIANTS",
    "YarnRope",
    "backend",
    "count",
    "hub",
    "init_weights",
    "json_schema",
    "load",
    "load_config",
    "parity",
    "reference",
    "save",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = import_module(f"attn.{name}")
    else:
        raise AttributeError(f"module 'attn' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
