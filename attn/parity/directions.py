"""Gradients of the reference, which has none: complex steps along a few directions (Squire and Trapp 1998).

f(t + i h d) = f(t) + i h <grad f, d> + O(h^2) for an analytic f, so Im f(t + i h d) / h is the derivative along d, and
no close numbers are subtracted: with h = 1e-30 nothing is left of the second order, and the first is exact to float64.
"""

from zlib import crc32

import numpy as np

from attn.config import Config
from attn.mathematics import reference
from attn.parity.inputs import Inputs
from attn.tolerance import relative, row_norms

STEP = 1e-30
DIRECTIONS = 8


def value(cfg: Config, inputs: Inputs) -> np.ndarray:
    """y of the reference."""
    return reference(cfg, inputs.weights, inputs.x, inputs.context, **inputs.call)


def directions(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Eight standard normal directions for the tensor of that name."""
    return np.random.default_rng([seed, crc32(f"{name}.direction".encode())]).standard_normal((DIRECTIONS, *shape))


def derivatives(cfg: Config, inputs: Inputs, name: str, along: np.ndarray) -> np.ndarray:
    """The derivative of sum(cotangent * y) along each direction of one tensor."""
    steps = (value(cfg, inputs.moved(name, 1j * STEP * direction)) for direction in along)
    return np.array([np.sum(inputs.cotangent * np.imag(y)) / STEP for y in steps])


def norm(derivatives: np.ndarray) -> float:
    """The estimated norm of a gradient: for a standard normal d the mean of <gradient, d>^2 is |gradient|^2."""
    return float(np.sqrt(np.mean(derivatives**2)))


def gradient_error(gradient: np.ndarray, along: np.ndarray, expected: np.ndarray, floor: float) -> float:
    """The estimated L2 error of a whole gradient relative to its norm, rows below `floor` counting as that much."""
    gradient = np.asarray(gradient, np.float64)
    if not np.isfinite(gradient).all():
        return float("inf")
    along = along.reshape(len(along), -1)
    error = norm(along @ gradient.reshape(-1) - expected)
    return relative(np.array([error]), np.array([np.linalg.norm(np.maximum(row_norms(gradient), floor))]))
