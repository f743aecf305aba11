"""Positions as data: rotary frequencies and tables, computed once in float64 numpy.

A rotation by position p = 1024 a + b is a rotation by 1024 a followed by one by b. Two tables of 1024 rows, each exact
to float64, therefore serve every position below 2**20, and both twins read the same numbers.
"""

from functools import lru_cache
from typing import Literal

import numpy as np
from pydantic import Field

from attn.config import Frozen, Size

FINE = 1024
LONGEST = FINE * FINE
"""Positions run from 0 to LONGEST - 1; others are refused, and give NaN inside compiled code."""


class Rope(Frozen):
    """Rotary positions (Su et al. 2021): pair i of a head turns by position * theta ** (-2 i / width).

    `width` counts the leading numbers of a head that are rotated, all of them when it is None. The layout says which
    numbers form pair i: `half` takes (i, i + width/2), as Hugging Face's Llama files do; `interleaved` takes
    (2i, 2i + 1), as Meta's do.
    """

    kind: Literal["default"] = "default"
    theta: float = Field(default=10000.0, gt=0)
    width: Size | None = None
    layout: Literal["half", "interleaved"] = "half"

    def frequencies(self, width: int) -> np.ndarray:
        """Angle per position for each of the width / 2 pairs, float64."""
        return self.theta ** (-np.arange(0, width, 2, dtype=np.float64) / width)

    def rotated(self, head_width: int) -> int:
        """How many numbers of a head are rotated."""
        return head_width if self.width is None else self.width


@lru_cache(maxsize=64)
def rotary_tables(rope: Rope, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines, each [2, 1024, width / 2]: entry 0 for positions b, entry 1 for positions 1024 a."""
    steps = np.arange(FINE, dtype=np.float64)
    angles = np.stack([steps, steps * FINE])[:, :, None] * rope.frequencies(width)
    return np.cos(angles), np.sin(angles)
