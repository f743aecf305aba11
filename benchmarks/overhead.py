"""What a call costs beside its arithmetic: a layer so small that nearly nothing else is left."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from benchmarks.cases import draw, mode
from benchmarks.comparing import Budget, timed
from benchmarks.results import Record, record

T, DIM, HEADS = 16, 64, 4

CALLS = 50
"""The calls of one sample."""


def overhead(side: ModuleType, peers: ModuleType, budget: Budget) -> list[Record]:
    """One column for forward, one with gradients: the seconds of one call of a causal layer."""
    x = side.given(draw(1, T, DIM))
    records = []
    for gradients in (False, True):
        calls = {name: side.call(each, x, gradients) for name, each in peers.tiny(DIM, HEADS).items()}
        rows = timed({name: repeated(call) for name, call in calls.items()}, budget)
        for row in rows.values():
            row["seconds"] /= CALLS
        records.append(record("overhead", side.name, f"one call, T={T}, M={DIM}, H={HEADS}", mode(gradients), rows))
    return records


def repeated(call: Callable[[], Any]) -> Callable[[], None]:
    """Many calls as one."""

    def sample() -> None:
        for _ in range(CALLS):
            call()

    return sample
