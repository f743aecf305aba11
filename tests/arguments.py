"""The arguments that a case's call brings along, each drawn from a stream of its own."""

from collections.abc import Mapping
from zlib import crc32

import numpy as np


def lengths_of(case: Mapping[str, str]) -> tuple[int, int, int]:
    """B and T as `size` says them, and S; at 131 tokens the kernels cut blocks, and one sequence is enough."""
    B, T = map(int, case["size"].split(" x "))
    return B, T, {"longer": T + 2, "shorter": max(1, T - 4)}.get(case["context"], T)


def stream(name: str, seed: int) -> np.random.Generator:
    """Random numbers of an array's own, by its name."""
    return np.random.default_rng([seed, crc32(name.encode())])


def arguments_of(case: Mapping[str, str], heads: int, seed: int) -> dict[str, np.ndarray]:
    """What a call of the case brings along beside its sequences."""
    B, T, S = lengths_of(case)
    call = _padding(case, seed) | _segments(case, seed) | _positions(case, seed)
    sizes = {"B": B, "H": heads, "1": 1, "T": T, "S": S}
    if case["allowed"] != "none":
        shape = tuple(sizes[axis] for axis in case["allowed"].split())
        call["allowed"] = stream("allowed", seed).random(shape) < 0.7
        # One query that sees nothing.
        call["allowed"][(0,) * (len(shape) - 2) + (T // 3,)] = False
    if case["score_bias"] != "none":
        call["bias"] = stream("bias", seed).standard_normal([sizes[axis] for axis in case["score_bias"].split()])
    return call


def _padding(case: Mapping[str, str], seed: int) -> dict[str, np.ndarray]:
    B, T, S = lengths_of(case)
    # The first sequence is shorter than the others.
    real, call = np.arange(T) < np.array([[T - T // 3]] + [[T]] * (B - 1)), {}
    if case["padding"] == "holes":
        call["valid"] = stream("valid", seed).random((B, T)) < 0.7
    elif case["padding"] != "none":
        call["valid"] = real[:, ::-1] if case["padding"] == "left" else real
    if case["context_padding"] == "some":
        call["context_valid"] = stream("context_valid", seed).random((B, S)) < 0.7
    return call


def _segments(case: Mapping[str, str], seed: int) -> dict[str, np.ndarray]:
    if case["segments"] == "none":
        return {}
    B, T, S = lengths_of(case)
    sides = {"segments": T} if case["context"] == "none" else {"segments": T, "context_segments": S}
    begins = {name: stream(name, seed).random((B, size)) < 0.3 for name, size in sides.items()}
    return {name: (np.cumsum(new, axis=1) % 2).astype(np.int32) for name, new in begins.items()}


def _positions(case: Mapping[str, str], seed: int) -> dict[str, np.ndarray]:
    """Positions in disorder, far from 0 where no default ones must be met."""
    B, T, S = lengths_of(case)
    sides = {"given": {"positions": T}, "context": {"context_positions": S}, "default": {}}
    sides = sides.get(case["positions"], {"positions": T, "context_positions": S})
    first = 0 if case["context"] != "none" and len(sides) == 1 else 50
    call = {}
    for name, size in sides.items():
        places, rng = np.arange(first, first + 2 * max(T, S), dtype=np.int32), stream(name, seed)
        call[name] = np.stack([rng.permutation(places)[:size] for _ in range(B)])
    return call
