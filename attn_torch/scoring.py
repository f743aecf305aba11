"""How scores become weights: what a call does between q k^T and the softmax, and after it."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Scoring(NamedTuple):
    """Scores are scaled, capped, biased, and masked; a sink joins the softmax; dropout acts on the weights.

    Attributes:
        scale: the multiplier of the scores.
        softcap: c in c * tanh(scores / c).
        slopes: ALiBi's, one a head, as plain numbers: a kernel makes the bias from positions.
        relative: T5's number for each distance k - q from -F to F, one row a head, at least float32: likewise.
        sinks: one more logit per head in the denominator.
        dropout: the probability with which a weight is dropped; 0 outside training.
    """

    scale: float
    softcap: float | None = None
    slopes: tuple[float, ...] | None = None
    relative: Float[Tensor, "H 2F+1"] | None = None
    sinks: Float[Tensor, "H"] | None = None
    dropout: float = 0.0

    @property
    def options(self) -> frozenset[str]:
        """The options that are in use, for the choice of a kernel."""
        if self.softcap is self.slopes is self.relative is self.sinks is None and not self.dropout:
            return frozenset()
        used = {"softcap": self.softcap, "alibi": self.slopes, "t5": self.relative, "sinks": self.sinks}
        used |= {"dropout": self.dropout or None}
        return frozenset([name for name, value in used.items() if value is not None])
