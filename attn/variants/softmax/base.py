"""What the softmax family shares: four projections, scores, a rule, a softmax.

    q = x Wq        [B T H D]        k = c Wk        [B S K D]        v = c Wv        [B S K E]
    scores[b,h,t,s] = q[b,t,h] . k[b,s,h//G] * scale
    y = concat_h( softmax_s(scores over the allowed s) @ v[b,:,h//G] ) Wo

where c is the context, or x itself, and scale = 1/sqrt(D) unless given (Vaswani et al. 2017).
"""

from typing import Annotated, Self

from pydantic import model_validator

from attn.config import Size, Tuple
from attn.layout import Layout, Projection
from attn.masks import Full, Mask, Rule
from attn.rope import AnyRope, Rotation
from attn.variants.base import biases_match, divides
from attn.variants.scored import ScoredConfig
from attn.variants.softmax.qk_norm import QKNorm

Bias = Annotated[bool | tuple[bool, ...], Tuple]


def like_input(fields: dict) -> int:
    """The default width of keys and values: the input's."""
    return fields["input_dim"]


class SoftmaxConfig(ScoredConfig):
    """The options of every softmax variant.

    Attributes:
        bias: all projections, none, or one answer for each of q, k, v, out.
        rope: rotary positions, turned into queries and keys after their projection.
        qk_norm: a norm on queries and keys, before or after they are turned.
    """

    bias: Bias = False
    rope: AnyRope | None = None
    qk_norm: QKNorm | None = None

    @property
    def kept(self) -> dict[str, str]:
        return {"k": "K D", "v": "K E"}

    @property
    def head_dim(self) -> int:
        """D, the width of a query/key head."""
        return self.dim_k // self.heads

    def layout(self) -> Layout:
        source = "M" if self.reads is None else "X"
        axes = {"q": "M -> H D", "k": f"{source} -> K D", "v": f"{source} -> K E", "out": "H E -> M"}
        biased = self.biased(self.projections)
        layout: Layout = {name: Projection(axes[name], bias=biased[name]) for name in self.projections}
        if self.qk_norm is not None:
            layout |= {"q_norm": self.qk_norm.part("H"), "k_norm": self.qk_norm.part("K")}
        return layout | self.options()

    @property
    def projections(self) -> tuple[str, ...]:
        """The names of the projections, in the order in which `bias` lists them."""
        return ("q", "k", "v", "out")

    @model_validator(mode="after")
    def _sizes_agree(self) -> Self:
        divides(self, "heads", "dim_k", "dim_v")
        divides(self, "kv_heads", "heads")
        biases_match(self, self.projections)
        if self.rope is not None:
            check_rotary(self.rope, self.head_dim)
        return self


class MaskedSoftmaxConfig(SoftmaxConfig):
    """A softmax variant whose rule is a choice and which may read a context.

    Attributes:
        mask: which key positions a query position may see; all of them by default.
        context_dim: the width of the context that keys and values are read from; None for self-attention.
    """

    mask: Mask = Full()
    context_dim: Size | None = None

    @property
    def rule(self) -> Rule:
        return self.mask


def check_rotary(rope: Rotation, head_width: int, letter: str = "D") -> None:
    """Refuse a rotary width that is odd or wider than the head.

    Raises:
        ValueError: "rope must rotate an even number of at most D=5 numbers a head; got 5."
    """
    width = rope.rotated(head_width)
    if width % 2 or width > head_width:
        raise ValueError(
            f"rope must rotate an even number of at most {letter}={head_width} numbers a head; got {width}."
        )
    rope.check_width(width)
