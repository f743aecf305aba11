"""What a config says about itself, as rows: its formula, its parameters, what its cache keeps."""

from collections.abc import Iterable
from inspect import cleandoc
from math import prod
from re import split
from typing import NamedTuple

from attn.caching import numbers_per_token
from attn.comparison import compare
from attn.config import Config
from attn.layout import Leaf, Projection, leaves
from attn.models import MODELS
from attn.presets import DEEPSEEK_V3, SIZES, small
from attn.variants import VARIANTS
from attn.weights import count


class Parameter(NamedTuple):
    """One line of a table of parameters: equal layers of a model share it, and `copies` counts them."""

    name: str
    letters: str
    shape: tuple[int, ...]
    copies: int

    @property
    def numbers(self) -> int:
        """How many numbers it holds, in all copies."""
        return prod(self.shape) * self.copies


def pages() -> dict[str, type[Config]]:
    """Every page of the library: the variants, then the models."""
    return {**VARIANTS, **MODELS}


def explanation(page: type[Config]) -> str:
    """The docstring of a page up to its attributes: what it is, and its mathematics."""
    return cleandoc(page.__doc__ or "").split("\n\nAttributes:")[0]


def formula(page: type[Config]) -> str:
    """What a page computes, in one line: the definitions that its docstring puts before the value, then the value."""
    terms: list[str] = []
    for line in explanation(page).splitlines():
        found = [term for term in split(r"\s{3,}", line) if " = " in term and not term.startswith("[")]
        if found and found[0].split(" = ")[0].split("_")[0] in ("y", "logits"):
            return ", ".join([*terms, found[0].rstrip(" .")])
        terms = terms + found if found else []
    return ""


def parameters(cfg: Config) -> list[Parameter]:
    """The parameters of a config, those of equal layers folded into one line: `layers.*.attention.q.kernel`."""
    folded: dict[tuple[str, str, tuple[int, ...]], int] = {}
    for leaf in leaves(cfg):
        name = ".".join("*" if word.isdigit() else word for word in leaf.name.split("."))
        key = (name, letters(leaf), leaf.shape)
        folded[key] = folded.get(key, 0) + 1
    return [Parameter(*key, copies) for key, copies in folded.items()]


def letters(leaf: Leaf) -> str:
    """The axes of an array in letters: `M H D`."""
    part = leaf.part
    if isinstance(part, Projection):
        return f"{part.inputs} {part.outputs}" if leaf.matrix else part.outputs
    return part.axes


def markdown(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown."""
    header = list(header)
    lines = [header, ["---"] * len(header), *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def variants() -> str:
    """The README's table: each variant at one set of sizes."""
    rows = []
    for name, page in VARIANTS.items():
        cfg = small(name)
        given = ", ".join(f"{field}={size}" for field, size in SIZES.items() if field in page.model_fields)
        rows.append(
            (
                f"`{name}`",
                f"`{page.__name__}({given})`",
                f"{count(cfg):,}",
                numbers_per_token(*cfg.attentions),
                f"`{formula(page)}`",
            )
        )
    return markdown(("variant", "config", "parameters", "cache", "formula"), rows)


def costs() -> str:
    """The README's table: one layer at the sizes of DeepSeek-V3, a new token looking back at 4096."""
    rows = [
        (
            line.name,
            f"{line.parameters / 1e6:,.0f} M",
            f"{line.cached:,}",
            f"{line.expanded / 1e9:,.2f} G",
            "" if line.absorbed is None else f"{line.absorbed / 1e9:,.2f} G",
        )
        for line in compare(DEEPSEEK_V3, 4096)
    ]
    return markdown(("one layer", "parameters", "cached numbers a token", "FLOPs a token", "absorbed"), rows)


TABLES = {"variants": variants, "costs": costs}
"""The tables that stand in the README, by the name in their markers."""


def refreshed(text: str) -> str:
    """A text whose tables, between `<!-- table: NAME -->` and `<!-- end -->`, are made anew.

    Raises:
        ValueError: a marker names no table, or has no end.
    """
    first, *rest = text.split("<!-- table: ")
    for part in rest:
        name, opened, body = part.partition(" -->\n")
        _, closed, after = body.partition("<!-- end -->")
        if not opened or not closed or name not in TABLES:
            raise ValueError(
                f"a table must be one of {', '.join(TABLES)} and closed by <!-- end -->; got {name[:40]!r}."
            )
        first += f"<!-- table: {name} -->\n{TABLES[name]()}\n<!-- end -->{after}"
    return first
