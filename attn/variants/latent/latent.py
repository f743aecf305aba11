"""Multi-head latent attention: keys and values of all heads are read from one small latent per token."""

from typing import Literal, Self

from pydantic import Field, model_validator

from attn.config import Size
from attn.layout import Layout, Projection
from attn.masks import Full, Mask, Rule
from attn.variants.base import biases_match, divides
from attn.variants.scored import ScoredConfig
from attn.variants.softmax.base import Bias, like_input


class MultiHeadLatentAttentionConfig(ScoredConfig):
    """A latent of C = kv_lora_rank numbers stands for the keys and values of every head (DeepSeek-V2, section 2.1).

    l = c Wdown        [B S C]        k_h = l Wk_h        [B S D]        v_h = l Wv_h        [B S E]
    y = concat_h( softmax(q_h k_h^T / sqrt(D)) v_h ) Wo

    Attributes:
        kv_lora_rank: C, the width of the latent: what a cache keeps per token.
        bias: all projections, none, or one answer for each of q, kv_down, k_up, v_up, out.
    """

    variant: Literal["latent"] = "latent"
    input_dim: Size
    heads: Size
    kv_lora_rank: Size
    dim_k: Size = Field(default_factory=like_input)
    dim_v: Size = Field(default_factory=like_input)
    bias: Bias = False
    mask: Mask = Full()
    context_dim: Size | None = None

    @property
    def kv_heads(self) -> int:
        return self.heads

    @property
    def kept(self) -> dict[str, str]:
        return {"latent": "C"}

    @property
    def head_dim(self) -> int:
        """D, the width of a query/key head."""
        return self.dim_k // self.heads

    @property
    def rule(self) -> Rule:
        return self.mask

    @property
    def projections(self) -> tuple[str, ...]:
        """The names of the projections, in the order in which `bias` lists them."""
        return ("q", "kv_down", "k_up", "v_up", "out")

    def sizes(self) -> dict[str, int]:
        return super().sizes() | {"C": self.kv_lora_rank}

    def layout(self) -> Layout:
        source = "M" if self.reads is None else "X"
        axes = {"q": "M -> H D", "kv_down": f"{source} -> C", "k_up": "C -> H D", "v_up": "C -> H E", "out": "H E -> M"}
        biased = self.biased(self.projections)
        layout: Layout = {name: Projection(axes[name], bias=biased[name]) for name in self.projections}
        return layout | self.options()

    @model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        divides(self, "heads", "dim_k", "dim_v")
        biases_match(self, self.projections)
        return self
