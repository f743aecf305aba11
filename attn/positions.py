"""Positions as data: rotary tables, ALiBi's slopes, T5's buckets, computed once in float64 numpy.

A rotation by position p = 1024 a + b is a rotation by 1024 a followed by one by b. Two tables of 1024 rows, each exact
to float64, therefore serve every position below 2**20, and both twins read the same numbers.
"""

from functools import lru_cache
from math import log
from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from attn.config import Frozen, Size
from attn.rope import Rotation

FINE = 1024
LONGEST = FINE * FINE
"""Positions run from 0 to LONGEST - 1; others are refused, and where compiled code turns by them, they give NaN."""


@lru_cache(maxsize=64)
def rotary_tables(rope: Rotation, width: int, length: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines, each [2, 1024, width / 2]: entry 0 for positions b, entry 1 for positions 1024 a.

    The rope's attention factor is in entry 0, so that the product of both rotations carries it once.
    """
    steps = np.arange(FINE, dtype=np.float64)
    angles = np.stack([steps, steps * FINE])[:, :, None] * rope.frequencies(width, length)
    factor = np.array([rope.factor_at(length), 1.0])[:, None, None]
    return np.cos(angles) * factor, np.sin(angles) * factor


class Alibi(Frozen):
    """Attention with linear biases (Press et al. 2022): -slope_h * |q - k| is added to the scores.

    Slopes fall geometrically, slope_h = 2 ** (-8 (h + 1) / H) for a power of two; for another number of heads the
    largest power below it comes first, then every second slope of twice as many.
    """

    kind: Literal["alibi"] = "alibi"

    def slopes(self, heads: int) -> np.ndarray:
        """The slope of each head, [H]."""
        power = 2 ** int(np.log2(heads))
        slopes = 2.0 ** (-8 * np.arange(1, power + 1) / power)
        more = 2.0 ** (-8 * np.arange(1, 2 * power + 1, 2) / (2 * power))
        return np.concatenate([slopes, more[: heads - power]])


class Buckets(Frozen):
    """T5's relative positions (Raffel et al. 2020): a learned number per head for each bucket of distances k - q.

    Half of the buckets hold one distance each, the others grow logarithmically up to `max_distance`.
    `bidirectional` gives the keys that come after the query buckets of their own; otherwise they share bucket 0.
    """

    kind: Literal["t5"] = "t5"
    buckets: Size = 32
    max_distance: int = Field(default=128, gt=0, le=LONGEST)
    bidirectional: bool = False

    @property
    def _a_side(self) -> int:
        """The buckets of the keys on one side of the query."""
        return self.buckets // 2 if self.bidirectional else self.buckets

    @model_validator(mode="after")
    def _both_halves_hold_something(self) -> Self:
        exact, least = self._a_side // 2, 4 if self.bidirectional else 2
        if exact == 0:
            raise ValueError(f"buckets must be at least {least}; got {self.buckets}.")
        if self.max_distance <= exact:
            text = f"max_distance must be greater than {exact}, the distances with a bucket of their own"
            raise ValueError(f"{text}; got {self.max_distance}.")
        return self

    def table(self) -> np.ndarray:
        """The bucket of each distance k - q from -max_distance to max_distance, [2 * max_distance + 1]."""
        distances = np.arange(-self.max_distance, self.max_distance + 1)
        count = self._a_side
        offset = np.where(distances > 0, count, 0) if self.bidirectional else 0
        behind = np.abs(distances) if self.bidirectional else np.maximum(-distances, 0)
        exact = count // 2
        growth = np.log(np.maximum(behind, 1) / exact) / log(self.max_distance / exact) * (count - exact)
        far = np.minimum(exact + growth.astype(int), count - 1)
        return offset + np.where(behind < exact, behind, far)
