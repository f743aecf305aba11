"""The two norms that models use, as data."""

from typing import Literal

from attn.config import Eps, Frozen
from attn.layout import Scale


class NormConfig(Frozen):
    """A norm over the model's width.

    `rms`: x / sqrt(mean(x^2) + eps) * scale (Zhang and Sennrich 2019).
    `layer`: (x - mean) / sqrt(var + eps) * scale + bias (Ba et al. 2016).

    With `offset` the multiplier is 1 + scale (Gemma); without `bias` a layer norm only scales (Cohere). Statistics
    are computed in at least float32.
    """

    kind: Literal["rms", "layer"] = "rms"
    eps: Eps = 1e-5
    offset: bool = False
    bias: bool = True

    def part(self) -> Scale:
        """The parameters of this norm over the model's width."""
        return Scale("M", self.kind, self.eps, offset=self.offset, shift=self.kind == "layer" and self.bias)
