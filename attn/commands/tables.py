"""`attn tables`: the tables of the README, made from the code."""

from pathlib import Path
from typing import Annotated

import typer


def run(
    readme: Annotated[Path, typer.Argument(help="The text whose tables are made anew.")] = Path("README.md"),
    write: Annotated[bool, typer.Option("--write", help="Write the file; otherwise print it.")] = False,
) -> None:
    """Make the tables of the README anew, between their markers."""
    from attn.checkpoint import write_text
    from attn.tables import refreshed

    text = refreshed(readme.read_text(encoding="utf-8"))
    if write:
        write_text(readme, text)
    else:
        typer.echo(text, nl=False)
