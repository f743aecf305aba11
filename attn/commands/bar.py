"""A training as it goes: a bar with the loss and tokens per second; plain lines where there is no terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from attn.terminal import console

if TYPE_CHECKING:
    from attn.training_loop import Progress

LINES = 10
"""How often a training speaks up where no bar can be drawn."""


class TrainingBar:
    """A context; its `report` is called after each step."""

    def __init__(self, title: str, steps: int, done: int = 0):
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._console = console()
        self._title, self._validation = title, ""
        columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[said]}"))
        self._bar = Bar(*columns, TimeRemainingColumn(), console=self._console, disable=not self._console.is_terminal)
        self._task = self._bar.add_task(title, total=steps, completed=done, said="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def report(self, progress: Progress) -> None:
        """Show a step."""
        if progress.validation is not None:
            self._validation = f", validation {progress.validation:.3f}"
        said = f"loss {progress.loss:.3f}{self._validation}, {progress.tokens_per_second:,.0f} tokens/s"
        self._bar.update(self._task, completed=progress.step, said=said)
        if not self._console.is_terminal and progress.step % max(1, progress.steps // LINES) == 0:
            self._console.print(f"{self._title}: step {progress.step} of {progress.steps}, {said}")
