"""The simplest tokenizer: one token per character of a sorted alphabet."""

from typing import Self

import numpy as np
from jaxtyping import Int
from pydantic import Field, field_validator

from attn.call import check_range
from attn.config import Frozen


class CharTokenizer(Frozen):
    """Token i is the i-th character of the alphabet, which is in the order of code points and has no repeats."""

    characters: str = Field(min_length=1)

    @classmethod
    def of(cls, text: str) -> Self:
        """The tokenizer whose alphabet is what occurs in a text."""
        return cls(characters="".join(sorted(set(text))))

    @property
    def vocab_size(self) -> int:
        """V, the number of tokens."""
        return len(self.characters)

    def encode(self, text: str) -> Int[np.ndarray, "T"]:
        """The token of each character, int32.

        Raises:
            ValueError: a character is not in the alphabet.
        """
        alphabet, points = _points(self.characters), _points(text)
        tokens = np.minimum(np.searchsorted(alphabet, points), len(alphabet) - 1)
        if (unknown := alphabet[tokens] != points).any():
            characters = "".join(sorted({chr(point) for point in points[unknown]}))
            raise ValueError(f"text must keep to the alphabet of {len(alphabet)} characters; got {characters!r}.")
        return tokens.astype(np.int32)

    def decode(self, tokens: Int[np.ndarray, "T"]) -> str:
        """The text of one row of tokens.

        Raises:
            ValueError: a token is not a number of a character.
        """
        tokens = np.asarray(tokens)
        if tokens.size:
            check_range("tokens", int(tokens.min()), int(tokens.max()), self.vocab_size)
        return "".join(self.characters[token] for token in tokens)

    @field_validator("characters")
    @classmethod
    def _are_sorted(cls, characters: str) -> str:
        if list(characters) != sorted(set(characters)):
            raise ValueError(f"characters must be sorted, each once; got {characters!r}.")
        return characters


def _points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
