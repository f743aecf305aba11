"""Time and memory of a causal layer against T, both on logarithmic scales."""

from pathlib import Path
from typing import Any

from benchmarks.results import Record

LABELS = {"seconds": "seconds a call", "bytes": "bytes beside the inputs"}


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """One picture for each framework and quantity that was measured."""
    import matplotlib

    matplotlib.use("agg")
    made = []
    for framework in ("torch", "jax"):
        for part, key in (("layers", "seconds"), ("memory", "bytes")):
            tables: dict[str, list[Record]] = {}
            for each in results["records"]:
                if (each["part"], each["framework"]) == (part, framework) and each["group"].startswith("causal, "):
                    tables.setdefault(each["group"], []).append(each)
            if tables:
                path = folder / f"{'time' if key == 'seconds' else 'memory'}_{framework}.png"
                _picture(tables, key, path)
                made.append(path)
    return made


def _picture(tables: dict[str, list[Record]], key: str, path: Path) -> None:
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(tables), figsize=(6.5 * len(tables), 5), squeeze=False, layout="tight")
    for panel, (title, records) in zip(panels[0], tables.items(), strict=True):
        for name, points in lines(records, key).items():
            ours = name.startswith("attn")
            panel.plot(*zip(*points, strict=True), marker="o", label=name, linewidth=2.5 if ours else 1.2)
        panel.set(xscale="log", yscale="log", xlabel="T", ylabel=LABELS[key], title=title)
        ticks = sorted({length for points in lines(records, key).values() for length, _ in points})
        panel.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def lines(records: list[Record], key: str) -> dict[str, list[tuple[int, float]]]:
    """Per candidate its points (T, number)."""
    found: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        for name, row in record["rows"].items():
            if key in row and not name.endswith("again"):
                found.setdefault(name, []).append((int(record["column"].removeprefix("T=")), row[key]))
    return found
