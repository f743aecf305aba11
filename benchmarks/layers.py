"""Whole layers, and kernels on their own, against the peers of one framework."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from attn.terminal import counted
from benchmarks.cases import HEADS, WINDOW, Case, cases, config, heads, inputs
from benchmarks.comparing import Budget, Comparison
from benchmarks.results import Record, record


def layers(
    side: ModuleType,
    peers: ModuleType,
    budget: Budget,
    quick: bool,
    group: str | None = None,
    length: int | None = None,
) -> list[Record]:
    """One column for each layer and length, or those of one table, or of one length."""
    table = [case for case in cases(quick) if group in (None, case.group) and length in (None, case.T)]
    return _measured("layers", side, peers.layers, lambda case: inputs(case.T), table, budget)


def kernels(side: ModuleType, peers: ModuleType, budget: Budget, quick: bool) -> list[Record]:
    """One column for each length of attention without projections: causal, and a window beside our own causal."""
    lengths = {"causal": (1024,), "window": (2048,)} if quick else {"causal": (1024, 4096), "window": (8192,)}
    names = {"causal": "causal", "window": f"window of {WINDOW}"}
    table = [
        Case(names[rule], rule, HEADS, T, gradients)
        for rule, those in lengths.items()
        for gradients in (False, True)
        for T in those
    ]
    return _measured("kernels", side, peers.kernel, heads, table, budget)


def _measured(
    part: str, side: Any, peers: Callable[..., Any], x: Callable[..., Any], table: list[Case], budget: Budget
) -> list[Record]:
    comparisons: dict[str, Comparison] = {}
    records = []
    for case in counted(table, len(table), f"{part}, {side.name}"):
        comparison = comparisons.setdefault(case.group, Comparison(side, budget))
        rows = comparison.rows(peers(case), side.given(x(case)), case.gradients, config(case), case.T)
        records.append(record(part, side.name, case.group, f"T={case.T}", rows))
    return records
