"""`python -m benchmarks PART`: a process for each framework, one for both, one to report.

`--layer TABLE --length T --rounds N` measures one table of layers again, or one column of it, when more rounds are to
tell who is ahead.
"""

import argparse
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from benchmarks.cases import cases
from benchmarks.comparing import Budget
from benchmarks.results import Record, merge, read
from benchmarks.timing import LEAST

RESULTS = Path(__file__).parent / "results"

PARTS = ("torch", "jax", "generation", "report")


def main() -> None:
    """Measure one part and merge it into the results, or write the page and the pictures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--quick", action="store_true", help="few and short cases")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder of the results")
    parser.add_argument("--layer", metavar="TABLE", help="only this table of layers, such as 'full, forward'")
    parser.add_argument("--length", type=int, metavar="T", help="only this column of that table")
    parser.add_argument("--rounds", type=int, default=LEAST, help="the least rounds of each column of layers")
    given = parser.parse_args()
    tables = sorted({case.group for case in cases(given.quick)})
    lengths = [case.T for case in cases(given.quick) if case.group == given.layer]
    if given.layer and given.part not in ("torch", "jax"):
        parser.error(f"--layer is of torch or jax, not of {given.part}")
    if given.layer and given.layer not in tables:
        parser.error(f"--layer must be one of {tables}; got {given.layer!r}")
    if given.length and not given.layer:
        parser.error("--length is of one table, named by --layer; got none")
    if given.length and given.length not in lengths:
        parser.error(f"--length must be one of {lengths}; got {given.length}")
    path = given.out / "results.json"
    if given.part == "report":
        report(path)
        return
    # Keras reads its backend when it is imported, and peers warn of what they are about to change.
    os.environ["KERAS_BACKEND"] = "torch" if given.part == "torch" else "jax"
    warnings.simplefilter("ignore")
    if given.layer:
        merge(path, one_table(given.part, given.layer, given.length, given.rounds, given.quick), whole=False)
        return
    both = given.part == "generation"
    parts = generation(given.quick) if both else framework(given.part, given.rounds, given.quick)
    for records in parts:
        # What has been measured stays, whatever comes after it.
        merge(path, records)


def framework(name: str, rounds: int, quick: bool) -> Iterator[list[Record]]:
    """All that one framework measures, part by part."""
    from benchmarks import decode, layers, memory
    from benchmarks.options import options
    from benchmarks.overhead import overhead

    side, peers = sides(name)
    short, long = map(Budget, (0.2, 0.5) if quick else (1.0, 6.0))
    yield layers.kernels(side, peers, long, quick)
    yield decode.decode(name, long, quick)
    if name == "torch":
        yield overhead(side, peers, Budget(long.seconds, 10, 100))
    yield memory.in_torch(quick) if name == "torch" else memory.in_jax(quick)
    yield options(side, peers, short, quick)
    yield layers.layers(side, peers, column(rounds, quick), quick)


def one_table(name: str, group: str, length: int | None, rounds: int, quick: bool) -> list[Record]:
    """One table of the layers of one framework, or its column of one length."""
    from benchmarks import layers

    return layers.layers(*sides(name), column(rounds, quick), quick, group, length)


def column(least: int, quick: bool) -> Budget:
    """What a column of layers may take; where all call the same kernel, only many rounds can tell who is ahead."""
    return Budget(0.5 if quick else 20.0, least)


def sides(name: str) -> tuple[ModuleType, ModuleType]:
    """How a framework's candidates are called, and who they are."""
    if name == "torch":
        from benchmarks import peers_torch as peers
        from benchmarks import side_torch as side
    else:
        from benchmarks import peers_jax as peers
        from benchmarks import side_jax as side
    return side, peers


def generation(quick: bool) -> Iterator[list[Record]]:
    """What both frameworks measure in one process, and what is only counted."""
    from benchmarks import decode
    from benchmarks.generation import generation as measured

    yield decode.operations(quick)
    yield measured(Budget(0.5 if quick else 45.0), quick)


def report(path: Path) -> None:
    """The page and the pictures beside the results."""
    from benchmarks.plots import draw
    from benchmarks.tables import render

    results = read(path)
    page = path.with_name("README.md")
    page.write_text(render(results), encoding="utf-8")
    for written in (page, *draw(results, path.parent)):
        print(written)


if __name__ == "__main__":
    main()
