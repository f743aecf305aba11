"""Invertible steps between arrays: a transpose, a reshape, a new order of rows, a cut, a join.

A step takes a list of arrays, one a lane, to another list. None computes and none changes a dtype, so that a chain of
them and its inverse undo each other to the bit. Steps are values: a chain is shortened before it runs.
"""

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

import numpy as np

Shape = tuple[int, ...]
Lanes = list[np.ndarray]


class Step(Protocol):
    """One of the steps below."""

    def run(self, lanes: Lanes) -> Lanes:
        """The arrays after the step."""
        ...

    def inverse(self) -> "Step":
        """The step that undoes this one."""
        ...


@dataclass(frozen=True)
class Transpose:
    """The axes of every lane in reverse order."""

    def run(self, lanes: Lanes) -> Lanes:
        return [lane.T for lane in lanes]

    def inverse(self) -> "Transpose":
        return self


@dataclass(frozen=True)
class Reshape:
    """Every lane from one shape to another."""

    before: tuple[Shape, ...]
    after: tuple[Shape, ...]

    def run(self, lanes: Lanes) -> Lanes:
        return [lane.reshape(shape) for lane, shape in zip(lanes, self.after, strict=True)]

    def inverse(self) -> "Reshape":
        return Reshape(self.after, self.before)


@dataclass(frozen=True)
class Pairing:
    """The rows of the only lane from one rotary layout to the other, head by head.

    Of the `width` rows of each of `heads` heads, `rotated` form pairs, row `start` being the first: (i, i + rotated/2)
    where the layout is half, (2i, 2i + 1) where it is interleaved.
    """

    heads: int
    width: int
    rotated: int
    interleave: bool
    start: int = 0

    def run(self, lanes: Lanes) -> Lanes:
        pairs = np.arange(self.rotated)
        pairs = pairs.reshape(2, -1).T if self.interleave else pairs.reshape(-1, 2).T
        before, after = np.arange(self.start), np.arange(self.start + self.rotated, self.width)
        head = np.concatenate([before, self.start + pairs.reshape(-1), after])
        rows = np.arange(self.heads)[:, None] * self.width + head
        return [lanes[0][rows.reshape(-1)]]

    def inverse(self) -> "Pairing":
        return replace(self, interleave=not self.interleave)


@dataclass(frozen=True)
class Cut:
    """One lane into several along an axis."""

    axis: int
    sizes: tuple[int, ...]

    def run(self, lanes: Lanes) -> Lanes:
        return np.split(lanes[0], list(accumulate(self.sizes))[:-1], self.axis)

    def inverse(self) -> "Join":
        return Join(self.axis, self.sizes)


@dataclass(frozen=True)
class Join:
    """Several lanes into one along an axis."""

    axis: int
    sizes: tuple[int, ...]

    def run(self, lanes: Lanes) -> Lanes:
        return [np.concatenate(lanes, self.axis)]

    def inverse(self) -> Cut:
        return Cut(self.axis, self.sizes)


def simplify(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The same chain without what cancels: a step beside its inverse, and reshapes in a row."""
    kept: list[Step] = []
    for step in steps:
        last = kept[-1] if kept else None
        if last is not None and step == last.inverse():
            kept.pop()
            continue
        if isinstance(step, Reshape):
            if isinstance(last, Reshape):
                step = Reshape(last.before, step.after)
                kept.pop()
            if step.before == step.after:
                continue
        kept.append(step)
    return tuple(kept)


def inverse(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The chain that undoes a chain."""
    return tuple(step.inverse() for step in reversed(steps))
