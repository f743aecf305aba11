"""What every variant that scores keys with a softmax may choose: the options between the scores and the output."""

from typing import Annotated, Literal

from pydantic import Field

from attn.layout import Layout, Projection, Table, Vector
from attn.positions import Alibi, Buckets
from attn.variants.base import AttentionConfig

PositionBias = Annotated[Alibi | Buckets, Field(discriminator="kind")]


class ScoredConfig(AttentionConfig):
    """Options in the order in which they act: scores, scale, soft-cap, bias, mask, softmax, dropout, gate.

    Attributes:
        scale: the multiplier of the scores; 1/sqrt(D) when None.
        softcap: c in c * tanh(scores / c) (Gemma 2); None leaves the scores alone.
        position_bias: added to the scores: ALiBi's slopes, or T5's learned buckets.
        sinks: one learned logit a head joins the denominator and nothing the numerator (gpt-oss).
        dropout: the probability with which a weight is dropped, per element, in training only.
        output_gate: the attended value times sigmoid(x Wgate), per element (Qwen3-Next) or one number a head.
    """

    scale: Annotated[float, Field(gt=0)] | None = None
    softcap: Annotated[float, Field(gt=0)] | None = None
    position_bias: PositionBias | None = None
    sinks: bool = False
    dropout: float = Field(default=0.0, ge=0, lt=1)
    output_gate: Literal["elementwise", "headwise"] | None = None

    def sizes(self) -> dict[str, int]:
        """The size of each letter."""
        sizes = {"M": self.input_dim, "H": self.heads, "K": self.kv_heads}
        sizes |= {"D": self.dim_k // self.heads, "E": self.dim_v // self.heads}
        if isinstance(self.position_bias, Buckets):
            sizes["P"] = self.position_bias.buckets
        return sizes if self.reads is None else sizes | {"X": self.reads}

    def options(self) -> Layout:
        """The parts that the options bring along."""
        parts: Layout = {}
        if self.output_gate is not None:
            parts["gate"] = Projection("M -> H E" if self.output_gate == "elementwise" else "M -> H")
        if self.sinks:
            parts["sinks"] = Vector("H")
        if isinstance(self.position_bias, Buckets):
            parts["position_bias"] = Table("P H")
        return parts
