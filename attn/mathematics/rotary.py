"""Rotary positions from their definition: each pair of numbers is turned by its own angle."""

import numpy as np


def rotate(rope, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """x [B T H D] with the pairs of its first `rope.rotated(D)` numbers turned by position * frequency."""
    width = rope.rotated(x.shape[-1])
    out = x.copy()
    for i, frequency in enumerate(rope.frequencies(width)):
        first, second = (i, i + width // 2) if rope.layout == "half" else (2 * i, 2 * i + 1)
        angle = (positions * frequency)[:, :, None]
        a, b = x[..., first], x[..., second]
        out[..., first] = a * np.cos(angle) - b * np.sin(angle)
        out[..., second] = a * np.sin(angle) + b * np.cos(angle)
    return out
