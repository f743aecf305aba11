"""Where the demo's data lies: beside the code in a clone, or where --data says."""

from pathlib import Path

STORIES = "stories260K"
SHAKESPEARE = "tinyshakespeare.txt"

CLONE = Path(__file__).parents[2] / "examples" / "data"
"""The folder in a clone of the repository."""


def data_folder(given: Path | None = None) -> Path:
    """The folder that holds the story's model and Shakespeare's text.

    Raises:
        ValueError: they are not there.
    """
    folder = CLONE if given is None else given
    for name in (STORIES, SHAKESPEARE):
        if not (folder / name).exists():
            raise ValueError(f"--data must name a folder with {name}, as a clone's examples/data; got {str(folder)!r}.")
    return folder


def shakespeare() -> Path:
    """The text in a clone.

    Raises:
        ValueError: this is not a clone.
    """
    path = CLONE / SHAKESPEARE
    if not path.exists():
        raise ValueError(f"--data must name a text file outside a clone, which has its own; got no {str(path)!r}.")
    return path
