"""The results as one JSON file: the machine, and one record for each column of each table."""

import json
import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from operator import itemgetter
from pathlib import Path
from typing import Any

Record = dict[str, Any]

LIBRARIES = ("attn", "torch", "jax", "jaxlib", "flax", "equinox", "keras", "transformers", "x-transformers", "numpy")

_part = itemgetter("part", "framework")
_column = itemgetter("part", "framework", "group", "column")


def record(part: str, framework: str, group: str, column: str, rows: dict[str, Any], **more: Any) -> Record:
    """One column of a table.

    Args:
        part: the part of the benchmarks.
        framework: torch, jax, or both.
        group: the name of the table.
        column: the name of the column.
        rows: per candidate what was measured: seconds and ratios, bytes, operations, or why there is "no" number.
        more: `base`, the candidate that the others are compared with; `tokens`, what one call generates.
    """
    return {"part": part, "framework": framework, "group": group, "column": column, "rows": rows, **more}


def merge(path: Path, records: Iterable[Record], whole: bool = True) -> None:
    """Write records in the place of those that an earlier run left.

    Args:
        path: the file.
        records: what was measured.
        whole: they are all of their parts, and nothing else of these parts stays; otherwise only the same columns go.
    """
    fresh = list(records)
    known = read(path)["records"] if path.exists() else []
    measured = {_part(each) for each in fresh if whole}
    kept = [each for each in known if _part(each) not in measured]
    # A column that is known keeps its place.
    merged = {_column(each): each for each in (*kept, *fresh)}
    write(path, {"machine": machine(), "records": list(merged.values())})


def read(path: Path) -> dict[str, Any]:
    """All results."""
    return json.loads(path.read_text(encoding="utf-8"))


def write(path: Path, results: dict[str, Any]) -> None:
    """Write the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "processor": processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "libraries": {name: found for name in LIBRARIES if (found := _version(name))},
    }


def processor() -> str:
    """The name of the processor's model."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
