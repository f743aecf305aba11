"""`attn parity [CONFIG]`: do the implementations compute the same?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from attn.parity import Report


def run(
    config: Annotated[
        str | None, typer.Argument(help="What to compare, as in `attn show`; every variant if not given.")
    ] = None,
    variant: Annotated[str | None, typer.Option(help="Only this variant.")] = None,
    dtype: Annotated[str, typer.Option(help="What everything is computed in: float64, float32, ...")] = "float32",
) -> None:
    """Compare both twins and the reference: outputs and all gradients, each error beside its bound."""
    from attn import parity
    from attn.terminal import console, counted

    if config is not None and variant is not None:
        raise ValueError(f"--variant is not read where a CONFIG is given; got {variant!r}.")
    total, reports = _asked_for(config, variant, dtype)
    found = list(counted(reports, total, "comparing"))
    if config is not None:
        console().print(found[0])
    console().print(parity.summary(found))
    if not all(report.ok for report in found):
        raise typer.Exit(1)


def _asked_for(config: str | None, variant: str | None, dtype: str) -> tuple[int, Iterable[Report]]:
    from attn import parity
    from attn.commands.sources import read_source
    from attn.parity.founding import cases_of

    if config is None:
        return len(parity.cases(variant)), parity.check_all(dtype, variant=variant)
    cfg: Any = read_source(config).cfg
    chosen = cases_of(cfg)

    def reports() -> Iterator[Report]:
        for case in chosen:
            yield parity.check(case.cfg, dtype, arguments=case.arguments)

    return len(chosen), reports()
