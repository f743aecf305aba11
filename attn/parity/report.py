"""What a comparison found, as data, as JSON and as a table."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple


class Row(NamedTuple):
    """One quantity in two implementations: how far they are apart, and how far they may be."""

    quantity: str
    comparison: str
    error: float
    bound: float

    @property
    def ratio(self) -> float:
        """The error in units of the bound; above 1 the two compute different things."""
        return self.error / self.bound


@dataclass(frozen=True)
class Report:
    """The comparisons of one config in one call.

    Attributes:
        variant: the config's name.
        dtype: what everything was computed in.
        arguments: what the call brought along.
        batch: the number of sequences.
        queries: their length.
        keys: the length of the context, or of the sequence itself.
        rows: one for each quantity and each pair of implementations.
        notes: what could not be compared, and why.
    """

    variant: str
    dtype: str
    arguments: tuple[str, ...]
    batch: int
    queries: int
    keys: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every error is within its bound."""
        return all(row.error <= row.bound for row in self.rows)

    @property
    def worst(self) -> Row:
        """The row with the largest ratio."""
        return max(self.rows, key=lambda row: row.ratio)

    def to_json(self) -> str:
        """JSON; error and ratio are null where numbers met what is not one."""
        rows = []
        for row in self.rows:
            numbers = {"error": row.error, "bound": row.bound, "ratio": row.ratio}
            numbers = {name: number if isfinite(number) else None for name, number in numbers.items()}
            rows.append(row._asdict() | numbers | {"ok": row.error <= row.bound})
        fields = {"variant": self.variant, "dtype": self.dtype, "arguments": self.arguments, "batch": self.batch}
        fields |= {"queries": self.queries, "keys": self.keys, "ok": self.ok, "notes": self.notes, "rows": rows}
        return json.dumps(fields, indent=2) + "\n"

    def __rich__(self) -> Any:
        title = f"{self.variant}, {self.dtype}, {self.queries} queries, {self.keys} keys"
        table = _table(title if not self.arguments else f"{title}, {', '.join(self.arguments)}", *Row._fields[:2])
        for row in self.rows:
            table.add_row(row.quantity, row.comparison, *_numbers(row))
        table.caption = "\n".join(self.notes) or None
        return table


def summary(reports: Iterable[Report]) -> Any:
    """One table for many reports: the worst row of each."""
    table = _table(None, "variant", "dtype", "arguments", "T x S", "worst quantity", "comparison")
    notes: dict[str, None] = {}
    for report in reports:
        row, shape = report.worst, f"{report.queries} x {report.keys}"
        words = (report.variant, report.dtype, ", ".join(report.arguments), shape, row.quantity, row.comparison)
        table.add_row(*words, *_numbers(row))
        notes |= dict.fromkeys(report.notes)
    table.caption = "\n".join(notes) or None
    return table


def _table(title: str | None, *words: str) -> Any:
    # rich is imported when something is shown: `import attn` stays light.
    from rich.table import Table

    table = Table(title=title)
    for word in words:
        table.add_column(word)
    for number in ("error", "bound", "ratio"):
        table.add_column(number, justify="right", no_wrap=True)
    return table


def _numbers(row: Row) -> tuple[str, str, str]:
    color = "green" if row.error <= row.bound else "bold red"
    return f"{row.error:.1e}", f"{row.bound:.1e}", f"[{color}]{row.ratio:.2g}[/]"
