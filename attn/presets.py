"""Small configs to look at and to train: what a command uses when no sizes are given."""

from typing import Any

from attn.config import Config
from attn.masks import Causal
from attn.models import MODELS, DecoderConfig
from attn.models.mlp import MLPConfig
from attn.rope import Rope, YarnRope
from attn.training import TrainConfig
from attn.variants import VARIANTS, GroupedQueryAttentionConfig, MultiHeadLatentAttentionConfig
from attn.variants.latent.latent import LatentNorm

SIZES = {"input_dim": 64, "heads": 8, "kv_heads": 2, "kv_lora_rank": 16}
"""What `small` gives to each field of that name that a variant has."""

TRAINING = TrainConfig(steps=400, eval_every=100, save_every=100)
"""How `attn train` trains unless told otherwise."""

DEEPSEEK_V3 = MultiHeadLatentAttentionConfig(
    input_dim=7168,
    heads=128,
    dim_k=128 * 128,
    dim_v=128 * 128,
    kv_lora_rank=512,
    q_lora_rank=1536,
    rope_dim=64,
    rope=YarnRope(factor=40.0, original_length=4096, layout="interleaved", mscale=1.0, mscale_all_dim=1.0),
    latent_norm=LatentNorm(eps=1e-6),
    mask=Causal(),
)
"""The attention of one layer of DeepSeek-V3, as its config.json says."""

NAMES = (*VARIANTS, *MODELS)
"""Every name that `small` knows."""


def small(name: str) -> Config:
    """A small config of a variant or a model.

    Raises:
        ValueError: the name is unknown.
    """
    if name in MODELS:
        return decoder()
    if name not in VARIANTS:
        raise ValueError(f"name must be one of {', '.join(NAMES)}; got {name!r}.")
    page: Any = VARIANTS[name]
    return page(**{field: size for field, size in SIZES.items() if field in page.model_fields})


def decoder(
    vocab_size: int = 65, *, width: int = 96, layers: int = 3, heads: int = 6, kv_heads: int = 2, hidden: int = 256
) -> DecoderConfig:
    """A Llama in small: grouped queries under the causal rule, rotary positions, a gated MLP, a tied head.

    The default sizes learn Tiny Shakespeare, letter by letter, in a minute or two.
    """
    attention = GroupedQueryAttentionConfig(input_dim=width, heads=heads, kv_heads=kv_heads, mask=Causal(), rope=Rope())
    mlp = MLPConfig(input_dim=width, hidden_dim=hidden)
    return DecoderConfig(vocab_size=vocab_size, layers=layers, attention=attention, mlp=mlp)
