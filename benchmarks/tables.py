"""The results as Markdown: one table for each group, one column for each record."""

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from benchmarks.goals import GOALS, Goal
from benchmarks.results import Record

PARTS = {
    "layers": "Layers. Time, and how many times that of attn; in brackets the quartiles of the ratio.",
    "kernels": "Attention without projections. Time, and how many times that of attn.",
    "options": "Options. The time of attn with the kernel it chooses, and how many times longer its plain form takes.",
    "overhead": "Overhead. The time of one call of a tiny layer.",
    "memory": "Memory. The peak beside the inputs, and how many times that of attn.",
    "decode": "Decoding. The time of one token with a filled cache.",
    "operations": "Operations. Those of one decoded token, a multiplication and an addition counting as two.",
    "generation": "Generation. Tokens per second, and how many times the first of transformers' times.",
}
"""The parts in their order, and what their cells say."""

FRAMEWORKS = {"torch": "PyTorch", "jax": "JAX", "both": "both frameworks"}

LEVEL = (
    "`level`: missed in the median, but in each column that misses the bound, it lies between the quartiles. Layers",
    "that call the same fused attention of PyTorch spend most of a long sequence's time in it; the same function,",
    "measured again, differs from itself by as much.",
)


def render(results: dict[str, Any]) -> str:
    """The whole page."""
    records = results["records"]
    lines = ["# Benchmarks", "", *_machine(results["machine"]), ""]
    goals = [_goal(goal, records) for goal in GOALS if goal.value(records) is not None]
    if goals:
        lines += ["## Goals", "", *table("goal", ["wanted", "found", "met"], goals), ""]
        lines += [*LEVEL, ""] if any(row[-1] == "level" for row in goals) else []
    for part, text in PARTS.items():
        those = [record for record in records if record["part"] == part]
        if those:
            name, _, rest = text.partition(". ")
            lines += [f"## {name}", "", *([rest, ""] if rest else [])]
            lines += [line for group in groups(those) for line in _group(group)]
    return "\n".join(lines).rstrip() + "\n"


def groups(records: Iterable[Record]) -> list[list[Record]]:
    """The records of each table."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        found.setdefault((record["framework"], record["group"]), []).append(record)
    return [found[key] for key in sorted(found, key=itemgetter(0))]


def table(corner: str, header: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table."""
    lines = [[corner, *header], ["---"] + ["---:"] * len(header), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def cell(row: dict[str, Any] | None, record: Record) -> str:
    """What stands in a table for one candidate."""
    if row is None or "no" in row:
        return "–"
    if "growth" in row:
        return f"{row['growth']:.2f}x"
    if "bytes" in row:
        return f"{row['bytes'] / 2**20:.1f} MiB, {row['ratio']:.2f}x"
    if "operations" in row:
        return f"{row['operations'] / 1e6:,.0f} million, {row['ratio']:.1f}x"
    spread = f"{row['ratio']:.2f}x ({row['low']:.2f} to {row['high']:.2f})"
    if "tokens" in record:
        return f"{record['tokens'] / row['seconds']:,.0f}, {spread}"
    return f"{duration(row['seconds'])}, {spread}"


def duration(seconds: float) -> str:
    """1.23 ms, 45.6 µs, 1.23 s."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _group(records: list[Record]) -> list[str]:
    names = list(dict.fromkeys(name for record in records for name in record["rows"]))
    rows = [[name, *(cell(record["rows"].get(name), record) for record in records)] for name in names]
    reasons = dict.fromkeys(
        f"* {name}, {record['column']}: no, {row['no']}."
        for record in records
        for name, row in record["rows"].items()
        if "no" in row
    )
    title = f"### {FRAMEWORKS[records[0]['framework']]}: {records[0]['group']}"
    lines = [title, "", *table("", [record["column"] for record in records], rows), ""]
    return [*lines, *reasons, ""] if reasons else lines


def _goal(goal: Goal, records: list[Record]) -> list[str]:
    value = goal.value(records)
    return [goal.text, goal.wanted, goal.shown(value), goal.verdict(records)]


def _machine(machine: dict[str, Any]) -> list[str]:
    libraries = ", ".join(f"{name} {number}" for name, number in machine["libraries"].items())
    return [
        "Made by `make bench`. Candidates take turns in one process, two calls each, of which the second counts. Times",
        "are medians, ratios those of each round.",
        f"Batch 1, 8 heads of 64, float32, on {machine['cores']} cores ({machine['processor']}, {machine['system']}),",
        f"Python {machine['python']}, {libraries}.",
    ]
