"""Multi-head latent attention: keys and values of all heads are read from one small latent per token."""

from typing import Literal, Self

from pydantic import Field, model_validator

from attn.config import Eps, Frozen, Size
from attn.layout import Layout, Projection, Scale
from attn.masks import Full, Mask, Rule
from attn.rope import AnyRope, YarnRope, yarn_magnitude
from attn.variants.base import biases_match, divides
from attn.variants.scored import ScoredConfig
from attn.variants.softmax.base import Bias, check_rotary, like_input


class LatentNorm(Frozen):
    """An RMS norm on each latent: x / sqrt(mean(x^2) + eps) * scale."""

    eps: Eps = 1e-6


class MultiHeadLatentAttentionConfig(ScoredConfig):
    """A latent of C = kv_lora_rank numbers stands for the keys and values of every head (DeepSeek-V2, section 2.1).

    l = c Wdown        [B S C]        k_h = l Wk_h        [B S D]        v_h = l Wv_h        [B S E]
    y = concat_h( softmax(q_h k_h^T * scale) v_h ) Wo

    DeepSeek's form adds, each by its own field: a latent for the queries too, q_h = (x Wq_down) Wq_up_h; a norm on both
    latents; and R rotated numbers behind the D of each head, where all heads share one key, k_rope = rotate(c Wk_rope):

    scores = (q_h[:D] . k_h + rotate(q_h[D:]) . k_rope) * scale        scale = 1/sqrt(D + R) * m^2

    with m the magnitude of a YaRN rope's `mscale_all_dim`, 1 for others. Two ways to compute it: expanded, as written;
    absorbed, where queries move into the latent space, (Wk_h q_h) . l, and keys and values are never written out.

    Attributes:
        kv_lora_rank: C, the width of the latent; a cache keeps the normed latent and the rotated key, C + R numbers.
        q_lora_rank: Q, the width of the queries' latent; None projects them directly.
        latent_norm: the norm on both latents.
        rope: how the R numbers turn; None leaves them as they are.
        rope_dim: R, the rotated numbers of each head; None has none.
        bias: all projections, none, or one answer for each of q (or q_down, q_up), kv_down, k_rope, k_up, v_up, out.
    """

    variant: Literal["latent"] = "latent"
    input_dim: Size
    heads: Size
    kv_lora_rank: Size
    q_lora_rank: Size | None = None
    dim_k: Size = Field(default_factory=like_input)
    dim_v: Size = Field(default_factory=like_input)
    rope_dim: Size | None = None
    rope: AnyRope | None = None
    latent_norm: LatentNorm | None = None
    bias: Bias = False
    mask: Mask = Full()
    context_dim: Size | None = None

    @property
    def kv_heads(self) -> int:
        return self.heads

    @property
    def head_dim(self) -> int:
        """D, the width of a head's key before the rotated numbers."""
        return self.dim_k // self.heads

    @property
    def kept(self) -> dict[str, str]:
        return {"latent": "C"} if self.rope_dim is None else {"latent": "C", "k_rope": "R"}

    @property
    def rule(self) -> Rule:
        return self.mask

    @property
    def score_scale(self) -> float:
        """The multiplier of the scores: `scale`, or m^2 / sqrt(D + R)."""
        if self.scale is not None:
            return self.scale
        magnitude = 1.0
        if isinstance(self.rope, YarnRope) and self.rope.mscale_all_dim:
            magnitude = yarn_magnitude(self.rope.factor, self.rope.mscale_all_dim)
        return magnitude**2 / (self.dim_k // self.heads + (self.rope_dim or 0)) ** 0.5

    @property
    def projections(self) -> tuple[str, ...]:
        """The names of the projections, in the order in which `bias` lists them."""
        queries = ("q",) if self.q_lora_rank is None else ("q_down", "q_up")
        shared = () if self.rope_dim is None else ("k_rope",)
        return (*queries, "kv_down", *shared, "k_up", "v_up", "out")

    def sizes(self) -> dict[str, int]:
        sizes = super().sizes() | {"C": self.kv_lora_rank}
        sizes |= {} if self.rope_dim is None else {"R": self.rope_dim}
        return sizes if self.q_lora_rank is None else sizes | {"Q": self.q_lora_rank}

    def layout(self) -> Layout:
        source = "M" if self.reads is None else "X"
        head = "D" if self.rope_dim is None else "D+R"
        axes = {"q": f"M -> H {head}", "q_down": "M -> Q", "q_up": f"Q -> H {head}"}
        axes |= {"kv_down": f"{source} -> C", "k_rope": f"{source} -> R"}
        axes |= {"k_up": "C -> H D", "v_up": "C -> H E", "out": "H E -> M"}
        biased = self.biased(self.projections)
        layout: Layout = {name: Projection(axes[name], bias=biased[name]) for name in self.projections}
        if self.latent_norm is not None:
            layout |= {} if self.q_lora_rank is None else {"q_norm": Scale("Q", eps=self.latent_norm.eps)}
            layout["kv_norm"] = Scale("C", eps=self.latent_norm.eps)
        return layout | self.options()

    def absorbs(self, queries: int, keys: int) -> bool:
        """Whether the absorbed form needs fewer multiplications, for T queries over S keys of a cache or a context.

        Expanded, every key and value is written out, S H C (D + E), before T S H (D + R + E) products; absorbed,
        T H C (D + E) go into and out of the latent space, around T S H (2 C + R) products.
        """
        C, R = self.kv_lora_rank, self.rope_dim or 0
        D, E = self.dim_k // self.heads, self.dim_v // self.heads
        expanded = keys * C * (D + E) + queries * keys * (D + R + E)
        absorbed = queries * C * (D + E) + queries * keys * (2 * C + R)
        return absorbed < expanded

    def score_widths(self, queries: int, keys: int) -> tuple[int, int]:
        """D + R and E; absorbed, C + R and C, and one number more for the bias of k_up and v_up."""
        D, E, C, R = self.head_dim, self.dim_v // self.heads, self.kv_lora_rank, self.rope_dim or 0
        biased = self.biased(self.projections)
        return (C + R + biased["k_up"], C + biased["v_up"]) if self.absorbs(queries, keys) else (D + R, E)

    @model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        divides(self, "heads", "dim_k", "dim_v")
        biases_match(self, self.projections)
        if self.rope is not None and self.rope_dim is None:
            raise ValueError(f"rope needs rope_dim, the numbers of each head that it turns; got {self.rope.kind!r}.")
        if self.rope is not None:
            check_rotary(self.rope, self.rope_dim, "R")
        return self
