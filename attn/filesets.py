"""Several files of a folder that change together: whatever happens in between, a reader finds all old or all new."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PENDING = ".pending"
"""A folder inside the folder: files that are whole and decided upon, and not yet in their place."""

DRAFT = ".draft"
"""A folder inside the folder: files that are still being written."""


@contextmanager
def replacing_together(folder: str | Path) -> Iterator[Path]:
    """Give a folder to write new files into; at the end all of them take their places, or none if anything fails.

    Raises:
        OSError: if a file cannot be written.
    """
    folder = Path(folder)
    draft = folder / DRAFT
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
        _settle(folder)
        # The one moment that decides: before it a reader finds the old files, after it the new ones.
        os.rename(draft, folder / PENDING)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    _settle(folder)


def current(folder: str | Path, name: str) -> Path:
    """Where the valid file of that name lies, also after a crash between the decision and the last move."""
    pending = Path(folder) / PENDING / name
    return pending if pending.exists() else Path(folder) / name


def _settle(folder: Path) -> None:
    pending = folder / PENDING
    if pending.exists():
        for path in sorted(pending.iterdir()):
            os.replace(path, folder / path.name)
        pending.rmdir()
