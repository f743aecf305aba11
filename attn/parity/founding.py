"""The configs and calls that `attn parity` runs when it is given none."""

from collections.abc import Iterator
from typing import NamedTuple

from attn.masks import Causal, SlidingWindow
from attn.models import DecoderConfig
from attn.models.mlp import MLPConfig
from attn.parity.checking import check
from attn.parity.report import Report
from attn.rope import Rope
from attn.variants import (
    AttentionConfig,
    CausalAttentionConfig,
    CrossAttentionConfig,
    GroupedQueryAttentionConfig,
    MultiHeadAttentionConfig,
    MultiHeadLatentAttentionConfig,
    MultiQueryAttentionConfig,
    SelfAttentionConfig,
)

# No two axes have the same size, or a mistaken transpose could pass for the right one.
M, X, D, E, C = 29, 31, 14, 13, 17
WINDOW = SlidingWindow(width=5)
HEADS = {"input_dim": M, "heads": 3, "dim_k": 3 * D, "dim_v": 3 * E, "bias": True}
GROUPED = {"input_dim": M, "heads": 12, "kv_heads": 3, "dim_k": 12 * D, "dim_v": 12 * E, "bias": True}

FOUNDING: tuple[AttentionConfig | DecoderConfig, ...] = (
    SelfAttentionConfig(input_dim=M, dim_k=D, dim_v=E, bias=True, mask=SlidingWindow(width=5, symmetric=True)),
    CrossAttentionConfig(input_dim=M, context_dim=X, dim_k=D, dim_v=E, bias=True),
    CausalAttentionConfig(input_dim=M, dim_k=D, dim_v=E, bias=True),
    MultiHeadAttentionConfig(**HEADS),
    MultiQueryAttentionConfig(**HEADS, mask=Causal(), rope=Rope(layout="interleaved", width=10)),
    GroupedQueryAttentionConfig(**GROUPED, mask=WINDOW, rope=Rope()),
    MultiHeadLatentAttentionConfig(**HEADS, kv_lora_rank=C, mask=Causal()),
    DecoderConfig(
        vocab_size=23,
        layers=2,
        attention=(
            GroupedQueryAttentionConfig(
                input_dim=M, heads=6, kv_heads=3, dim_k=6 * D, dim_v=6 * E, mask=Causal(), rope=Rope()
            ),
            MultiHeadLatentAttentionConfig(**HEADS, kv_lora_rank=C, mask=WINDOW),
        ),
        mlp=MLPConfig(input_dim=M, hidden_dim=37),
    ),
)


class Case(NamedTuple):
    """A config, and what its call brings along."""

    cfg: AttentionConfig | DecoderConfig
    arguments: tuple[str, ...]


def cases(variant: str | None = None) -> tuple[Case, ...]:
    """Every founding variant and a small decoder: plain, padded, packed, and with a padded context of another length.

    Raises:
        ValueError: there is no such variant.
    """
    known = {cfg.variant: cfg for cfg in FOUNDING}
    if variant is not None and variant not in known:
        raise ValueError(f"variant must be one of {', '.join(known)}; got {variant!r}.")
    chosen = known.values() if variant is None else (known[variant],)
    return tuple(case for cfg in chosen for case in cases_of(cfg))


def cases_of(cfg: AttentionConfig | DecoderConfig) -> tuple[Case, ...]:
    """The calls in which one config is compared."""
    calls = tuple(Case(cfg, arguments) for arguments in ((), ("valid",), ("segments",)))
    if isinstance(cfg, AttentionConfig) and "context_dim" in type(cfg).model_fields and cfg.reads is None:
        calls += (Case(cfg.replace(context_dim=X), ("valid",)),)
    return calls


def check_all(dtype: str = "float32", *, variant: str | None = None) -> Iterator[Report]:
    """The report of each case, as it is made."""
    for case in cases(variant):
        yield check(case.cfg, dtype, arguments=case.arguments)
