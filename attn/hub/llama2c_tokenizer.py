"""The tokenizer of llama2.c: pieces with scores, merged by the highest score, with single bytes to fall back on.

Source: `tokenizer.py` (the file) and `run.c` (encoding and decoding) of github.com/karpathy/llama2.c.
"""

import struct
from collections.abc import Iterable
from pathlib import Path

UNKNOWN, START, END = 0, 1, 2
"""The numbers of the three pieces that are not text."""

_BYTES = 3
"""The number of the piece <0x00>; those of the other bytes follow."""


class Llama2cTokenizer:
    """Pieces of text by number, and the score of each: of two possible merges the higher score goes first."""

    def __init__(self, pieces: Iterable[bytes], scores: Iterable[float]):
        self.pieces = tuple(pieces)
        self.scores = tuple(scores)
        self._numbers = {piece: number for number, piece in reversed(list(enumerate(self.pieces)))}

    @classmethod
    def read(cls, path: str | Path) -> "Llama2cTokenizer":
        """Read a `tokenizer.bin`: an int32, then float32 score, int32 length and that many bytes for each piece.

        Raises:
            ValueError: the file ends inside a piece, or lacks the pieces that stand for single bytes.
        """
        contents, place, pieces, scores = Path(path).read_bytes(), 4, [], []
        while place < len(contents):
            if place + 8 > len(contents):
                raise ValueError(f"{path} must hold whole pieces; got {len(contents)} bytes, the last piece cut.")
            score, length = struct.unpack_from("<fi", contents, place)
            piece = contents[place + 8 : place + 8 + length]
            if length < 0 or len(piece) != length:
                raise ValueError(f"{path} must hold whole pieces; got {len(contents)} bytes, the last piece cut.")
            pieces.append(piece)
            scores.append(score)
            place += 8 + length
        if len(pieces) < _BYTES + 256:
            raise ValueError(f"{path} must hold 3 + 256 pieces at least; got {len(pieces)}.")
        return cls(pieces, scores)

    @property
    def vocab_size(self) -> int:
        """V, the number of pieces."""
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """The start token, then the numbers of a text, which counts as if a space stood before it."""
        numbers = [START]
        for character in f" {text}" if text else "":
            piece = character.encode()
            known = self._numbers.get(piece)
            numbers += [known] if known is not None else [byte + _BYTES for byte in piece]
        while (best := self._best_merge(numbers)) is not None:
            place, merged = best
            numbers[place : place + 2] = [merged]
        return numbers

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of some tokens; the space that encoding put after the start token is taken away again.

        Raises:
            ValueError: a token is not the number of a piece.
        """
        text, before = b"", None
        for number in map(int, tokens):
            if not 0 <= number < self.vocab_size:
                raise ValueError(f"a token must lie between 0 and {self.vocab_size - 1}; got {number}.")
            piece = self._text(number)
            text += piece.removeprefix(b" ") if before == START else piece
            before = number
        return text.decode(errors="replace")

    def _best_merge(self, numbers: list[int]) -> tuple[int, int] | None:
        """The first place of the neighbours whose union has the highest score, and the number of that union."""
        best, highest = None, float("-inf")
        # The start token is no text, so it takes no part.
        for place in range(1, len(numbers) - 1):
            merged = self._numbers.get(self.pieces[numbers[place]] + self.pieces[numbers[place + 1]])
            if merged is not None and self.scores[merged] > highest:
                best, highest = (place, merged), self.scores[merged]
        return best

    def _text(self, number: int) -> bytes:
        if _BYTES <= number < _BYTES + 256:
            return bytes([number - _BYTES])
        return b"" if number in (START, END) else self.pieces[number]
