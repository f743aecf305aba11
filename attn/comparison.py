"""The variants side by side, at the sizes of one of them: parameters, cache, operations."""

from typing import Any, NamedTuple

from attn.caching import numbers_per_token
from attn.config import Config
from attn.costs import attention_flops, projection_flops
from attn.variants import (
    GroupedQueryAttentionConfig,
    MultiHeadAttentionConfig,
    MultiHeadLatentAttentionConfig,
    MultiQueryAttentionConfig,
)
from attn.variants.base import AttentionConfig
from attn.weights import count


class Compared(NamedTuple):
    """One line of the comparison.

    Attributes:
        name: MHA, GQA, MQA or MLA, with the sizes that are its own.
        parameters: how many numbers are learned.
        cached: how many numbers a cache keeps of a token in a layer.
        expanded: the operations of one new token over a context, keys and values written out.
        absorbed: the same with queries moved into the latent space; None where there is no latent.
    """

    name: str
    parameters: int
    cached: int
    expanded: int
    absorbed: int | None


def compare(cfg: AttentionConfig, context: int) -> list[Compared]:
    """MHA, GQA, MQA and MLA at the model width, heads and head widths of a config, one new token over a context.

    What the config does not say follows from it: a quarter of the heads in GQA; in MLA, as in DeepSeek-V2, a latent
    four heads wide and half a head of rotated numbers.

    Raises:
        ValueError: the config has a single head; the context is empty.
    """
    if context < 1:
        raise ValueError(f"context must be at least 1; got {context}.")
    return [_compared(name, other, context) for name, other in siblings(cfg).items()]


def siblings(cfg: AttentionConfig) -> dict[str, AttentionConfig]:
    """The four variants by their short names."""
    heads = cfg.sizes()["H"]
    if heads == 1:
        raise ValueError(f"CONFIG must have several heads to be compared; got {cfg.variant!r}.")
    same = {"input_dim": cfg.input_dim, "heads": heads, "dim_k": cfg.dim_k, "dim_v": cfg.dim_v}
    groups = cfg.kv_heads if 1 < cfg.kv_heads < heads else _divisor(heads, heads // 4)
    latent = cfg if isinstance(cfg, MultiHeadLatentAttentionConfig) else _latent(same)
    return {
        "MHA": MultiHeadAttentionConfig(**same),
        f"GQA, {groups} key/value heads": GroupedQueryAttentionConfig(**same, kv_heads=groups),
        "MQA": MultiQueryAttentionConfig(**same),
        f"MLA, latent of {latent.kv_lora_rank} + {latent.rope_dim or 0}": latent,
    }


def _latent(same: dict[str, Any]) -> MultiHeadLatentAttentionConfig:
    width = same["dim_k"] // same["heads"]
    return MultiHeadLatentAttentionConfig(**same, kv_lora_rank=4 * width, rope_dim=max(2, width // 4 * 2))


def _divisor(number: int, limit: int) -> int:
    return next(divisor for divisor in range(max(1, limit), 0, -1) if number % divisor == 0)


def _compared(name: str, cfg: AttentionConfig, context: int) -> Compared:
    def flops(form: Any) -> int:
        return projection_flops(cfg, 1) + attention_flops(cfg, 1, context, form)

    absorbed = flops("absorbed") if isinstance(cfg, MultiHeadLatentAttentionConfig) else None
    return Compared(name, count(cfg), numbers_per_token(cfg), flops("expanded"), absorbed)


def attention_of(cfg: Config) -> AttentionConfig:
    """The attention of a config: its own, or that of a model's first layer."""
    return cfg if isinstance(cfg, AttentionConfig) else cfg.attentions[0]
