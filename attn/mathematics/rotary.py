"""Rotary positions from their definition: each pair of numbers is turned by its own angle."""

import numpy as np


def rotate(rope, x: np.ndarray, positions: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """x [B T H D] with the pairs of its first `rope.rotated(D)` numbers turned by position * frequency.

    `lengths` [B T] is the largest position + 1 of each token's own sequence, for ropes that depend on it.
    """
    out = x.copy()
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            out[b, t] = _turn(rope, x[b, t], positions[b, t], int(lengths[b, t]))
    return out


def _turn(rope, heads: np.ndarray, position: int, length: int) -> np.ndarray:
    """One token's heads [H D]."""
    width = rope.rotated(heads.shape[-1])
    factor = rope.factor_at(length)
    out = heads.copy()
    for i, frequency in enumerate(rope.frequencies(width, length)):
        first, second = (i, i + width // 2) if rope.layout == "half" else (2 * i, 2 * i + 1)
        angle = float(np.float32(position) * np.float32(frequency)) if rope.float32 else position * frequency
        cos, sin = factor * np.cos(angle), factor * np.sin(angle)
        out[:, first] = heads[:, first] * cos - heads[:, second] * sin
        out[:, second] = heads[:, first] * sin + heads[:, second] * cos
    return out
