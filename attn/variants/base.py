"""What every attention variant answers, whatever its mechanism."""

from math import sqrt
from typing import Any

from attn.config import Config
from attn.masks import Rule


class AttentionConfig(Config):
    """An attention variant: parameters, sizes, and the facts that a call needs."""

    variant: str
    input_dim: int

    @property
    def rule(self) -> Rule:
        """Which key positions a query position may see."""
        raise NotImplementedError

    @property
    def attentions(self) -> tuple["AttentionConfig", ...]:
        """The attention of each layer, as a model has them: this one."""
        return (self,)

    @property
    def kept(self) -> dict[str, str]:
        """What a cache keeps of each token: name to axes, `{"k": "K D", "v": "K E"}`."""
        raise NotImplementedError

    @property
    def score_scale(self) -> float:
        """The multiplier of the scores: `scale`, or 1/sqrt(D)."""
        scale = getattr(self, "scale", None)
        return 1 / sqrt(self.sizes()["D"]) if scale is None else scale

    def score_widths(self, queries: int, keys: int) -> tuple[int, int]:
        """The widths of keys and values, as T queries over S keys of a cache or a context compute with them."""
        del queries, keys
        return self.sizes()["D"], self.sizes()["E"]

    @property
    def reads(self) -> int | None:
        """The width of the context that keys and values come from; None where they come from x itself."""
        return getattr(self, "context_dim", None)

    @property
    def output(self) -> str:
        """The axes of y: [B T M] where there is an output projection, the value's own width where there is none."""
        return "B T M" if "out" in self.layout() else "B T E"

    def biased(self, names: tuple[str, ...]) -> dict[str, bool]:
        """Which projections carry a bias: all, none, or one answer for each name in order."""
        bias: Any = getattr(self, "bias", False)
        return dict(zip(names, bias if isinstance(bias, tuple) else (bias,) * len(names), strict=True))


def divides(cfg: Config, divisor: str, *fields: str) -> None:
    """Refuse a config whose `divisor` leaves a rest in one of `fields`.

    Raises:
        ValueError: "heads must divide dim_k; got heads=3 and dim_k=64."
    """
    for field in fields:
        if getattr(cfg, field) % getattr(cfg, divisor):
            received = f"{divisor}={getattr(cfg, divisor)} and {field}={getattr(cfg, field)}"
            raise ValueError(f"{divisor} must divide {field}; got {received}.")


def biases_match(cfg: AttentionConfig, names: tuple[str, ...]) -> None:
    """Refuse a tuple of biases that does not have one entry for each projection.

    Raises:
        ValueError: "bias must have one entry for each of q, k, v; got (True, False)."
    """
    bias = getattr(cfg, "bias", False)
    if isinstance(bias, tuple) and len(bias) != len(names):
        raise ValueError(f"bias must have one entry for each of {', '.join(names)}; got {bias}.")
