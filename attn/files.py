"""Files that are written whole or not at all, and JSON that says each thing once."""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

FilePath = str | os.PathLike[str]


@contextmanager
def replacing(path: FilePath) -> Iterator[BinaryIO]:
    """Write a new file that takes the place of `path` at the end, or leaves no trace if anything fails.

    Raises:
        OSError: if the file cannot be written.
    """
    path = Path(path)
    # In the same folder, because a rename is only atomic within one file system.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            # The new name must not reach the disk before the bytes do.
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def load_json(text: bytes) -> Any:
    """Parse JSON, refusing an object that has the same key twice.

    Raises:
        ValueError: if the text is not JSON in UTF-8, or repeats a key.
    """
    try:
        return json.loads(text.decode(), object_pairs_hook=_without_repeats)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"its JSON cannot be parsed; received {text[:16]!r}.") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"its JSON has the same key twice; received {key!r}.")
        found[key] = value
    return found
