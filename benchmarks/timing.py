"""Timing several candidates side by side: in turn, round by round, so that a busy machine is unfair to none."""

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy as np

LEAST, MOST = 3, 40
"""The rounds of a comparison."""

Clock = Callable[[], float]


def interleaved(
    functions: Mapping[str, Callable[[], Any]], rounds: int, clock: Clock = perf_counter
) -> dict[str, list[float]]:
    """The seconds of each call. In every round each candidate has one turn, in another order.

    A turn is two calls, of which the second counts: the first pays for what the candidate before it has left behind, a
    cache full of other arrays and a gigabyte of scores that is still being given back.
    """
    names = list(functions)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in (names[i] for i in order(number, len(names))):
            functions[name]()
            seconds[name].append(once(functions[name], clock)[0])
    return seconds


def order(number: int, count: int) -> list[int]:
    """Who follows whom in a round (Williams 1949), so that nobody always follows the one that leaves most behind.

    Over `count` rounds, or twice as many where `count` is odd, each candidate has each place and each predecessor
    equally often.
    """
    zigzag = [(step + 1) // 2 if step % 2 else -(step // 2) for step in range(count)]
    places = [(number + step) % count for step in zigzag]
    return places[::-1] if count % 2 and number // count % 2 else places


def once(function: Callable[[], Any], clock: Clock = perf_counter) -> tuple[float, Any]:
    """The seconds of one call, and what it returned."""
    start = clock()
    returned = function()
    return clock() - start, returned


def rounds_for(seconds: Mapping[str, float], budget: float, least: int = LEAST, most: int = MOST) -> int:
    """How many rounds of two calls each fit into a budget, given what one call of each candidate takes."""
    return max(least, min(most, int(budget / (2 * sum(seconds.values())))))


def compared(seconds: Mapping[str, list[float]], base: str) -> dict[str, dict[str, float]]:
    """Of each candidate the median, and how it stands to `base`: the quartiles of its ratios, round by round.

    A ratio of 2 means that `base` is twice as fast.
    """
    return {name: _row(np.array(times), np.array(seconds[base])) for name, times in seconds.items()}


def _row(times: np.ndarray, base: np.ndarray) -> dict[str, float]:
    low, ratio, high = np.quantile(times / base, (0.25, 0.5, 0.75))
    row = {"seconds": np.median(times), "ratio": ratio, "low": low, "high": high, "rounds": len(times)}
    return {key: float(f"{value:.4g}") for key, value in row.items()}
