"""The tokenizer that lies beside a checkpoint: characters of ours, pieces of llama2.c, or bare numbers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attn.hub.llama2c_tokenizer import Llama2cTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from attn.characters import CharTokenizer

CHARACTERS = "characters.json"
"""The file that holds a `CharTokenizer`."""

PIECES = "tok*.bin"
"""The files that may hold a llama2.c tokenizer."""


class Tokenizer(Protocol):
    """What a command asks of a tokenizer."""

    def encode(self, text: str) -> Any: ...

    def decode(self, tokens: Any) -> str: ...


class Numbers:
    """No tokenizer: the prompt is numbers, and so is the answer."""

    def encode(self, text: str) -> list[int]:
        """The numbers in a text, set apart by spaces.

        Raises:
            ValueError: something else stands there.
        """
        words = text.split()
        for word in words:
            if not word.isdecimal():
                raise ValueError(
                    f"--prompt must be token numbers where no tokenizer lies beside the model; got {word!r}."
                )
        return [int(word) for word in words]

    def decode(self, tokens: Iterable[int]) -> str:
        """The numbers as a text."""
        return " ".join(str(int(token)) for token in tokens)


def find_tokenizer(path: Path, vocab_size: int) -> Tokenizer:
    """The tokenizer beside a checkpoint whose size is the model's; bare numbers if there is none."""
    folder = path if path.is_dir() else path.parent
    characters = _characters(folder)
    if characters is not None and characters.vocab_size <= vocab_size:
        return characters
    pieces = _pieces(folder, vocab_size)
    return Numbers() if pieces is None else Llama2cTokenizer.read(pieces)


def copy_tokenizer(source: Path, target: Path, vocab_size: int) -> None:
    """Take the tokenizer along to another folder."""
    from attn.checkpoint import write_text

    folder = source if source.is_dir() else source.parent
    characters, pieces = _characters(folder), _pieces(folder, vocab_size)
    if characters is not None:
        write_text(target / CHARACTERS, characters.to_json())
    elif pieces is not None:
        shutil.copyfile(pieces, target / pieces.name)


def _characters(folder: Path) -> CharTokenizer | None:
    """The tokenizer that a training keeps, or the one that was taken along from it."""
    from attn.characters import CharTokenizer
    from attn.training_checkpoint import TRAIN, load_history

    if (folder / TRAIN).is_file():
        return load_history(folder).tokenizer
    file = folder / CHARACTERS
    return CharTokenizer.model_validate_json(file.read_bytes()) if file.is_file() else None


def _pieces(folder: Path, vocab_size: int) -> Path | None:
    files = (file for file in sorted(folder.glob(PIECES)) if Llama2cTokenizer.read(file).vocab_size == vocab_size)
    return next(files, None)
