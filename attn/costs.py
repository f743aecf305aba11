"""What attention costs: numbers in a cache, and floating-point operations, two for each multiplication."""

from math import prod
from typing import Literal

from attn.layout import Projection
from attn.letters import shape_of
from attn.variants.base import AttentionConfig
from attn.variants.latent.latent import MultiHeadLatentAttentionConfig

Form = Literal["expanded", "absorbed"]

WRITTEN_OUT = ("k_up", "v_up")
"""The projections that latent attention applies to what is cached, not to what comes in."""


def projection_flops(cfg: AttentionConfig, tokens: int) -> int:
    """The projections of new tokens: 2 T sum_p |kernel_p|; for a latent without k_up and v_up, which meet the cache."""
    sizes = cfg.sizes()
    parts = {name: part for name, part in cfg.layout().items() if isinstance(part, Projection)}
    return sum(
        2 * tokens * prod(shape_of(part.inputs, sizes)) * prod(shape_of(part.outputs, sizes))
        for name, part in parts.items()
        if name not in WRITTEN_OUT or not isinstance(cfg, MultiHeadLatentAttentionConfig)
    )


def attention_flops(cfg: AttentionConfig, queries: int, keys: int, form: Form = "expanded") -> int:
    """Scores and weighted values of T queries over S cached keys, every one of them seen.

    2 T S H (D + E); for a latent of C numbers, whose heads have R more,

        expanded  2 S H C (D + E)  +  2 T S H (D + R + E)
        absorbed  2 T H C (D + E)  +  2 T S H (2 C + R)

    Raises:
        ValueError: "form must be expanded where nothing can be absorbed; got 'absorbed'."
    """
    sizes = cfg.sizes()
    H, D, E = sizes["H"], sizes["D"], sizes["E"]
    if not isinstance(cfg, MultiHeadLatentAttentionConfig):
        if form != "expanded":
            raise ValueError(f"form must be expanded where nothing can be absorbed; got {form!r}.")
        return 2 * queries * keys * H * (D + E)
    C, R = sizes["C"], sizes.get("R", 0)
    if form == "expanded":
        return 2 * keys * H * C * (D + E) + 2 * queries * keys * H * (D + R + E)
    return 2 * queries * H * C * (D + E) + 2 * queries * keys * H * (2 * C + R)


def expanded_numbers(cfg: MultiHeadLatentAttentionConfig) -> int:
    """What a cache of written-out keys and values would keep of a token: H (D + R + E) numbers."""
    sizes = cfg.sizes()
    return sizes["H"] * (sizes["D"] + sizes.get("R", 0) + sizes["E"])
