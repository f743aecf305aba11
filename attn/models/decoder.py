"""A decoder: tokens in, logits of the next token out. Llama and GPT-2 are configs of it."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from attn.config import Config, Size, Tuple
from attn.layout import Layout, Projection, Table
from attn.models.block import BlockConfig
from attn.models.mlp import MLPConfig
from attn.models.norm import NormConfig
from attn.variants import Attention

Factor = Annotated[float, Field(gt=0)]


class DecoderConfig(Config):
    """logits = norm(block_L(... block_1(embed[tokens] + positions[p]))) Whead.

    Attributes:
        vocab_size: V.
        layers: L.
        attention: one config for all layers, or a tuple with one for each.
        mlp: the MLP of every block.
        norm: the norm before each half of a block, and before the head.
        tied: the head is the embedding, transposed, and is stored once.
        learned_positions: rows of a learned table of positions; None where the attention is rotary.
        embed_scale: what embeddings are multiplied by (Gemma, MiniCPM, Granite).
        residual_scale: what each half of a block is multiplied by before it is added (MiniCPM, Granite).
        logit_scale: what logits are multiplied by (MiniCPM, Granite, Cohere).
        logit_softcap: c in c * tanh(logits / c), after the scale (Gemma 2).
    """

    variant: Literal["decoder"] = "decoder"
    vocab_size: Size
    layers: Size
    attention: Annotated[Attention | tuple[Attention, ...], Tuple]
    mlp: MLPConfig
    norm: NormConfig = NormConfig()
    tied: bool = True
    learned_positions: Size | None = None
    embed_scale: Factor = 1.0
    residual_scale: Factor = 1.0
    logit_scale: Factor = 1.0
    logit_softcap: Factor | None = None

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The attention of each layer."""
        return self.attention if isinstance(self.attention, tuple) else (self.attention,) * self.layers

    @property
    def blocks(self) -> tuple[BlockConfig, ...]:
        """The block of each layer."""
        shared = {"mlp": self.mlp, "norm": self.norm, "residual_scale": self.residual_scale}
        return tuple(BlockConfig(attention=attention, **shared) for attention in self.attentions)

    def sizes(self) -> dict[str, int]:
        sizes = {"V": self.vocab_size, "M": self.mlp.input_dim, "L": self.layers}
        return sizes if self.learned_positions is None else sizes | {"P": self.learned_positions}

    def layout(self) -> Layout:
        layout: Layout = {"embed": Table("V M")}
        if self.learned_positions is not None:
            layout["positions"] = Table("P M")
        layout["norm"] = self.norm.part()
        if not self.tied:
            layout["head"] = Projection("M -> V")
        return layout

    def children(self) -> dict[str, Config]:
        return {f"layers.{i}": block for i, block in enumerate(self.blocks)}

    @model_validator(mode="after")
    def _layers_fit(self) -> Self:
        if len(self.attentions) != self.layers:
            raise ValueError(
                f"attention must have one config for each of {self.layers} layers; got {len(self.attentions)}."
            )
        for i, attention in enumerate(self.attentions):
            width = attention.input_dim if attention.output == "B T M" else attention.sizes()["E"]
            if attention.input_dim != self.mlp.input_dim or width != self.mlp.input_dim:
                received = f"{attention.input_dim} -> {width} in layer {i}"
                raise ValueError(
                    f"attention must map the MLP's input_dim={self.mlp.input_dim} to itself; got {received}."
                )
            if attention.reads is not None:
                raise ValueError(
                    f"attention of a decoder reads no context; got context_dim={attention.reads} in layer {i}."
                )
            if not attention.rule.causal:
                raise ValueError(
                    f"attention of a decoder must be causal; got mask {attention.rule.kind!r} in layer {i}."
                )
        return self
