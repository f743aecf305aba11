"""`attn demo`: what this library is for, in one run."""

from pathlib import Path
from typing import Annotated

import typer


def run(
    out: Annotated[Path, typer.Option(help="The folder of pictures and checkpoint.")] = Path("runs/demo"),
    data: Annotated[Path | None, typer.Option(help="The folder of the data; a clone's own if not given.")] = None,
) -> None:
    """Tell a story in both twins, compare them, train across both frameworks, draw what came of it."""
    from attn.demo.data import data_folder
    from attn.demo.running import check_ready, demonstrate
    from attn.terminal import console

    folder = data_folder(data)
    check_ready(out)
    if not demonstrate(folder, out, console()):
        raise typer.Exit(1)
