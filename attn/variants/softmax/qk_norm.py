"""A norm on queries and keys: it keeps the scores from growing with the weights."""

from typing import Literal, Self

from pydantic import model_validator

from attn.config import Eps, Frozen
from attn.layout import Scale


class QKNorm(Frozen):
    """The norm of each query and key (Henry et al. 2020; Dehghani et al. 2023).

    Attributes:
        kind: `rms`, `layer` (centred), or `l2` (each vector divided by its length).
        over: what is normalised together, and which scales there are: `head` takes each head, with one scale for all
            [D] (Qwen3); `heads` each head, with its own [H D] (Cohere); `full` all as one vector [H D] (OLMo 2).
        place: `before` the rotation (Qwen3) or `after` it (Llama 4).
        eps: added to the mean square, or to the sum of squares for `l2`.
        learned: whether there is a scale; Llama 4 has none.
        offset: the scale is 1 + w, with w learned (Gemma 3).
        shift: a learned bias is added too, as layer norms have it.
    """

    kind: Literal["rms", "layer", "l2"] = "rms"
    over: Literal["head", "heads", "full"] = "head"
    place: Literal["before", "after"] = "before"
    eps: Eps = 1e-6
    learned: bool = True
    offset: bool = False
    shift: bool = False

    @model_validator(mode="after")
    def _an_offset_is_of_a_scale(self) -> Self:
        if self.offset and not self.learned:
            raise ValueError("offset needs a learned scale; got learned=False.")
        return self

    def part(self, heads: str) -> Scale:
        """The parameters for queries (`heads` is "H") or keys ("K")."""
        axes = "D" if self.over == "head" else f"{heads} D"
        together = 2 if self.over == "full" else 1
        return Scale(
            axes, self.kind, self.eps, normalised=together, learned=self.learned, offset=self.offset, shift=self.shift
        )
