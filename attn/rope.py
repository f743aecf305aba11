"""Rotary positions: how fast each pair of a head turns, for every public way of reaching longer contexts.

Every kind answers two questions, in float64 unless `float32` asks for less: `frequencies(width, length)`, the angle per
position of each pair, and `factor_at(length)`, what cosines and sines are multiplied by. `length` matters to the kinds
that depend on it.
"""

from math import ceil, floor, log, pi
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from attn.config import Frozen, Size, Tuple

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class Rotation(Frozen):
    """What all kinds share (Su et al. 2021): pair i of a head turns by position * theta ** (-2 i / width).

    `width` counts the leading numbers of a head that are rotated, all of them when it is None. The layout says which
    numbers form pair i: `half` takes (i, i + width/2), as Hugging Face's Llama files do; `interleaved` takes
    (2i, 2i + 1), as Meta's do. `float32` rounds frequencies, step by step, and angles to float32, as transformers does:
    its digits, wrong by 2e-4 of a turn at position 8000.
    """

    theta: float = Field(default=10000.0, ge=1)
    width: Size | None = None
    layout: Literal["half", "interleaved"] = "half"
    float32: bool = False

    def rotated(self, head_width: int) -> int:
        """How many numbers of a head are rotated."""
        return head_width if self.width is None else self.width

    @property
    def by_length(self) -> bool:
        """Whether frequencies depend on the length."""
        return False

    def check_width(self, width: int) -> None:
        """Refuse a rotary width that this rope cannot serve."""

    def per_radian(self, width: int, theta: float | None = None) -> np.ndarray:
        """How many positions it takes each pair to turn by one radian before any scaling, theta ** (2 i / width)."""
        dtype = np.float32 if self.float32 else np.float64
        exponents = np.arange(0, width, 2, dtype=dtype) / dtype(width)
        # A power in float32 would be another one on another processor.
        return ((self.theta if theta is None else theta) ** exponents.astype(np.float64)).astype(dtype)

    def base(self, width: int) -> np.ndarray:
        """The frequencies before any scaling, [width / 2]."""
        return 1 / self.per_radian(width)

    def frequencies(self, width: int, length: int | None = None) -> np.ndarray:
        """The angle per position of each of the width / 2 pairs."""
        raise NotImplementedError

    def factor_at(self, length: int | None = None) -> float:
        """What cosines and sines are multiplied by."""
        del length
        return 1.0


class Rope(Rotation):
    """The plain form."""

    kind: Literal["default"] = "default"

    def frequencies(self, width: int, length: int | None = None) -> np.ndarray:
        del length
        return self.base(width)


class LinearRope(Rotation):
    """Positions divided by `factor` (Chen et al. 2023)."""

    kind: Literal["linear"] = "linear"
    factor: Positive

    def frequencies(self, width: int, length: int | None = None) -> np.ndarray:
        del length
        return self.base(width) / self.factor


class DynamicRope(Rotation):
    """NTK-aware scaling that grows with the length.

    theta' = theta * (factor * length / original - (factor - 1)) ** (width / (width - 2)), where `length` is the largest
    position + 1, or with a cache its capacity; up to `original_length` nothing changes.
    """

    kind: Literal["dynamic"] = "dynamic"
    factor: Annotated[float, Field(ge=1)]
    original_length: Size

    @property
    def by_length(self) -> bool:
        return True

    def check_width(self, width: int) -> None:
        """Refuse a single pair, which the formula cannot stretch."""
        if width < 4:
            raise ValueError(f"width of a dynamic rope must be at least 4; got {width}.")

    def frequencies(self, width: int, length: int | None = None) -> np.ndarray:
        length = max(length or 0, self.original_length)
        stretch = self.factor * length / self.original_length - (self.factor - 1)
        return 1 / self.per_radian(width, self.theta * stretch ** (width / (width - 2)))


class Llama3Rope(Rotation):
    """Llama 3.1's: fast pairs stay, slow ones are divided by `factor`, those between are blended by wavelength."""

    kind: Literal["llama3"] = "llama3"
    factor: Positive
    low_freq_factor: Positive
    high_freq_factor: Positive
    original_length: Size

    def frequencies(self, width: int, length: int | None = None) -> np.ndarray:
        del length
        base = self.base(width)
        turns = self.original_length / (2 * pi / base)
        blend = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        blend = np.clip(blend, 0, 1)
        return (1 - blend) * base / self.factor + blend * base

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        _ordered(self, "low_freq_factor", "high_freq_factor")
        return self


class YarnRope(Rotation):
    """YaRN (Peng et al. 2023): slow pairs are stretched, fast ones stay, and cosines and sines grow.

    Pairs that turn more than beta_fast times over the original length stay, those that turn less than beta_slow times
    are divided by `factor`, linear between. The attention factor is `attention_factor` if given; else
    m(mscale) / m(mscale_all_dim) if both are; else m(1), with m(s) = 0.1 s ln(factor) + 1. `truncate` rounds the
    bounds of the blend to whole pairs.
    """

    kind: Literal["yarn"] = "yarn"
    factor: Positive
    original_length: Size
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0
    mscale: NotNegative | None = None
    mscale_all_dim: NotNegative | None = None
    attention_factor: Positive | None = None
    truncate: bool = True

    def frequencies(self, width: int, length: int | None = None) -> np.ndarray:
        del length
        low, high = self._bound(self.beta_fast, width), self._bound(self.beta_slow, width)
        if self.truncate:
            low, high = floor(low), ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        per_radian = self.per_radian(width)
        ramp = (np.arange(width // 2, dtype=per_radian.dtype) - low) / (high - low if high > low else 0.001)
        keep = 1 - np.clip(ramp, 0, 1)
        return 1 / (self.factor * per_radian) * (1 - keep) + 1 / per_radian * keep

    def _bound(self, turns: float, width: int) -> float:
        return width * log(self.original_length / (turns * 2 * pi)) / (2 * log(self.theta))

    def factor_at(self, length: int | None = None) -> float:
        del length
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return yarn_magnitude(self.factor, self.mscale) / yarn_magnitude(self.factor, self.mscale_all_dim)
        return yarn_magnitude(self.factor, 1.0)

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        _ordered(self, "beta_slow", "beta_fast")
        if self.theta <= 1:
            raise ValueError(f"theta of a yarn rope must be greater than 1; got {self.theta}.")
        return self


def yarn_magnitude(factor: float, mscale: float) -> float:
    """m(s) = 0.1 s ln(factor) + 1, and 1 where nothing is stretched."""
    return 1.0 if factor <= 1 else 0.1 * mscale * log(factor) + 1.0


class LongRope(Rotation):
    """LongRoPE (Ding et al. 2024): each pair is divided by a factor of its own.

    They come from `short_factor` up to a length of `original_length`, from `long_factor` beyond. Cosines and sines
    grow by `attention_factor` if given, else by sqrt(1 + ln(factor) / ln(original_length)).
    """

    kind: Literal["longrope"] = "longrope"
    factor: Positive
    original_length: Annotated[Size, Field(gt=1)]
    short_factor: Annotated[tuple[Positive, ...], Tuple]
    long_factor: Annotated[tuple[Positive, ...], Tuple]
    attention_factor: Positive | None = None

    @property
    def by_length(self) -> bool:
        return True

    def check_width(self, width: int) -> None:
        """Refuse lists of another length: "short_factor must have 4 entries, one a pair; got 3." """
        if len(self.short_factor) != width // 2:
            raise ValueError(f"short_factor must have {width // 2} entries, one a pair; got {len(self.short_factor)}.")

    def frequencies(self, width: int, length: int | None = None) -> np.ndarray:
        long = length is not None and length > self.original_length
        per_radian = self.per_radian(width)
        return 1 / (np.asarray(self.long_factor if long else self.short_factor, per_radian.dtype) * per_radian)

    def factor_at(self, length: int | None = None) -> float:
        del length
        if self.attention_factor is not None:
            return self.attention_factor
        return 1.0 if self.factor <= 1 else float(np.sqrt(1 + log(self.factor) / log(self.original_length)))

    @model_validator(mode="after")
    def _one_factor_a_pair(self) -> Self:
        if len(self.short_factor) != len(self.long_factor):
            received = f"{len(self.short_factor)} and {len(self.long_factor)}"
            raise ValueError(f"short_factor and long_factor must be equally long; got {received}.")
        return self


def _ordered(rope: Rotation, low: str, high: str) -> None:
    """Refuse bounds that do not ascend: "low_freq_factor must be less than high_freq_factor; got 4.0 and 1.0." """
    if getattr(rope, low) >= getattr(rope, high):
        raise ValueError(f"{low} must be less than {high}; got {getattr(rope, low)} and {getattr(rope, high)}.")


AnyRope = Annotated[
    Rope | LinearRope | DynamicRope | Llama3Rope | YarnRope | LongRope,
    Field(discriminator="kind"),
]
"""Any of them, told apart by `kind`."""
