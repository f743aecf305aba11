"""The feed-forward half of a block: two or three projections around an activation."""

from typing import Literal

from attn.config import Config, Size
from attn.layout import Layout, Projection

Activation = Literal["silu", "relu", "gelu", "gelu_tanh"]


class MLPConfig(Config):
    """`gated`: y = (act(x Wgate) * (x Wup)) Wdown (Shazeer 2020); otherwise y = act(x Wup) Wdown.

    Attributes:
        input_dim: M, the model's width.
        hidden_dim: U, the width between the projections.
        activation: silu, relu, gelu (the exact one, with erf) or gelu_tanh (GPT-2's approximation).
    """

    input_dim: Size
    hidden_dim: Size
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False

    def sizes(self) -> dict[str, int]:
        return {"M": self.input_dim, "U": self.hidden_dim}

    def layout(self) -> Layout:
        gate: Layout = {"gate": Projection("M -> U", bias=self.bias)} if self.gated else {}
        return gate | {"up": Projection("M -> U", bias=self.bias), "down": Projection("U -> M", bias=self.bias)}
