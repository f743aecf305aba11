"""`attn show CONFIG`: what a config computes, its parameters, what its cache keeps."""

from __future__ import annotations

from pathlib import Path
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
    ] = "grouped_query",
    compare: Annotated[
        bool, typer.Option("--compare", help="MHA, GQA, MQA and MLA side by side at its sizes.")
    ] = False,
    context: Annotated[int, typer.Option(help="With --compare: the tokens that a new one looks back at.")] = 4096,
    mask: Annotated[bool, typer.Option("--mask", help="Draw which position sees which.")] = False,
    length: Annotated[int, typer.Option(help="With --mask: how many positions.")] = 16,
    png: Annotated[Path | None, typer.Option(help="With --mask: draw the first layer's rule into this file.")] = None,
) -> None:
    """Show a config: formula, parameters, shapes, count, cache; or what it costs beside others, or its mask."""
    from attn.commands.sources import read_source

    cfg = read_source(config).cfg
    if compare:
        return _compare(cfg, context)
    if mask or png is not None:
        return _mask(cfg, length, png)
    return _describe(cfg)


def _describe(cfg: Config) -> None:
    from attn.letters import LEGEND
    from attn.tables import explanation
    from attn.terminal import console
    from attn.weights import count

    terminal = console()
    terminal.print(explanation(type(cfg)), end="\n\n", markup=False)
    terminal.print(", ".join(f"{letter}={size} ({LEGEND[letter]})" for letter, size in cfg.sizes().items()))
    terminal.print(_parameters(cfg))
    terminal.print(f"{count(cfg):,} parameters")
    terminal.print(_cache(cfg))


def _compare(cfg: Config, context: int) -> None:
    from attn.comparison import attention_of, compare
    from attn.terminal import console, table

    rows = []
    for line in compare(attention_of(cfg), context):
        sizes = (f"{line.cached * size:,}" for size in BYTES.values())
        absorbed = "" if line.absorbed is None else f"{line.absorbed:,}"
        rows.append((line.name, f"{line.parameters:,}", f"{line.cached:,}", *sizes, f"{line.expanded:,}", absorbed))
    header = ("one layer", "parameters", "cached numbers", *(f"bytes in {name}" for name in BYTES))
    header += ("FLOPs a token", "absorbed")
    console().print(table(header, rows, right=header[1:]))
    console().print(f"A token is cached once, and a new one looks back at {context:,}.")


def _mask(cfg: Config, length: int, png: Path | None) -> None:
    from collections import Counter

    from attn.terminal import console

    if length < 1:
        raise ValueError(f"--length must be at least 1; got {length}.")
    rules = Counter(attention.rule for attention in cfg.attentions)
    if png is not None:
        from attn.drawing import draw_rule

        return draw_rule(next(iter(rules)), length, png)
    for rule, layers in rules.items():
        console().print(f"{rule.model_dump_json()} in {layers} layer{'s' * (layers > 1)}", markup=False)
        console().print(rule.draw(length), markup=False)
    return None


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
