"""`attn show CONFIG`: what a config computes, its parameters, what its cache keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from attn.config import Config

BYTES = {"float32": 4, "bfloat16": 2}
"""The dtypes whose cache sizes are shown."""


def run(
    config: Annotated[
        str, typer.Argument(help="A variant's name, a JSON file, a folder of ours or Hugging Face's, or a .bin file.")
    ],
) -> None:
    """Show a config: formula, parameters, shapes, count, cache."""
    from attn.commands.sources import read_source
    from attn.letters import LEGEND
    from attn.tables import explanation
    from attn.terminal import console
    from attn.weights import count

    cfg = read_source(config).cfg
    terminal = console()
    terminal.print(explanation(type(cfg)), end="\n\n", markup=False)
    terminal.print(", ".join(f"{letter}={size} ({LEGEND[letter]})" for letter, size in cfg.sizes().items()))
    terminal.print(_parameters(cfg))
    terminal.print(f"{count(cfg):,} parameters")
    terminal.print(_cache(cfg))


def _parameters(cfg: Config) -> Table:
    from attn.tables import parameters
    from attn.terminal import table

    header = ("parameter", "letters", "shape", "copies", "numbers")
    rows = ((p.name, p.letters, " x ".join(map(str, p.shape)), p.copies, f"{p.numbers:,}") for p in parameters(cfg))
    return table(header, rows, right=header[3:])


def _cache(cfg: Config) -> Table:
    """What a cache keeps of one token in one layer; layers that keep the same share a line."""
    from collections import Counter

    from attn.caching import numbers_per_token
    from attn.terminal import table

    rows = []
    for attention, layers in Counter(cfg.attentions).items():
        names = ", ".join(f"{name} [{axes}]" for name, axes in attention.kept.items())
        numbers = numbers_per_token(attention)
        rows.append((names, layers, numbers, *(numbers * size for size in BYTES.values())))
    header = ("cache per token and layer", "layers", "numbers", *(f"bytes in {name}" for name in BYTES))
    return table(header, rows, right=header[1:])
