"""The terminal: a console for what was asked for, and one sentence in red for what is refused."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails
    from rich.console import Console
    from rich.table import Table

T = TypeVar("T")

WIDE = 160
"""The width of tables that go into a file or a pipe, which has no width of its own."""

CONSEQUENCES = {"default_factory_not_called"}
"""What pydantic finds only because it found something else first."""


def console(*, stderr: bool = False) -> "Console":
    """Where a command prints: in colour on a terminal, plain elsewhere."""
    from rich.console import Console

    terminal = Console(highlight=False, stderr=stderr)
    return terminal if terminal.is_terminal else Console(highlight=False, stderr=stderr, width=WIDE)


def table(header: Iterable[str], rows: Iterable[Iterable[object]], right: tuple[str, ...] = ()) -> "Table":
    """A table of plain text, in which brackets are brackets; the columns named in `right` hold numbers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE, pad_edge=False)
    for name in header:
        made.add_column(Text(name), justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(str(cell)) for cell in row))
    return made


def counted(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """The items as they come, with a bar on a terminal that says how many have come."""
    from rich.progress import track

    terminal = console(stderr=True)
    yield from track(items, what, total, console=terminal, transient=True, disable=not terminal.is_terminal)


def sentence(error: Exception) -> str:
    """What a person reads of an error: one sentence."""
    from pydantic import ValidationError

    if isinstance(error, FileNotFoundError):
        return f"{error.filename} does not exist."
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be used: {error.strerror}."
    text = str(error)
    if isinstance(error, ValidationError):
        text = "; ".join(_problem(problem) for problem in error.errors() if problem["type"] not in CONSEQUENCES)
    return " ".join(text.split()).rstrip(".") + "."


def _problem(problem: "ErrorDetails") -> str:
    """One of pydantic's findings; what our own rules refuse is a sentence already."""
    text = problem["msg"].removeprefix("Value error, ").rstrip(".")
    if problem["type"] == "value_error":
        return text
    place = ".".join(str(word) for word in problem["loc"]) or "config"
    return f"{place}: {text[:1].lower()}{text[1:]}; got {problem['input']!r}"
