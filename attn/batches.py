"""Which tokens a step sees: numpy, a function of seed and step alone, so that both twins and every resume agree."""

from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

import numpy as np
from jaxtyping import Bool, Int

from attn.call import check_range
from attn.training import TrainConfig

CHUNK = 2**22


class Batches:
    """Windows of a text: `at(step)` draws from its beginning, `validation()` walks through its end.

    Attributes:
        tokens: the whole text.
        train: what is trained on, all but the last `validation_fraction`.
        held_out: the rest.
    """

    def __init__(self, cfg: TrainConfig, tokens: Int[np.ndarray, "N"]):
        """Split a text, without copying it.

        Raises:
            ValueError: it is not one row of integers, or a part of it is shorter than a window and its next token.
        """
        tokens = np.asanyarray(tokens)
        if tokens.ndim != 1:
            raise ValueError(f"tokens must be one row of numbers; got shape {tokens.shape}.")
        if tokens.dtype.kind not in "iu":
            raise ValueError(f"tokens has dtype {tokens.dtype}; expected an integer type.")
        kept = len(tokens) - int(len(tokens) * cfg.validation_fraction)
        self.cfg, self.tokens, self.train, self.held_out = cfg, tokens, tokens[:kept], tokens[kept:]
        if len(self.train) <= cfg.context:
            self._refuse("train on", self.train)
        if cfg.validation_fraction and len(self.held_out) <= cfg.context:
            self._refuse("validate on", self.held_out)

    def at(self, step: int) -> Int[np.ndarray, "B T+1"]:
        """The windows of a step counted from 0, each starting anywhere in the text with the same chance."""
        rng = np.random.default_rng([self.cfg.seed, step])
        starts = rng.integers(0, len(self.train) - self.cfg.context, self.cfg.batch)
        return _windows(self.train, starts, self.cfg.context)

    def validation(self) -> Iterator[Int[np.ndarray, "B T+1"]]:
        """The held out text in windows that follow one another, always the same; missing tokens are -1.

        The windows overlap by one token, so that each token but the first is predicted once.
        """
        starts = np.arange(0, max(0, len(self.held_out) - 1), self.cfg.context)
        wanted = self.cfg.validation_windows
        if wanted is not None and wanted < len(starts):
            starts = starts[np.arange(wanted) * len(starts) // wanted]
        for i in range(0, len(starts), self.cfg.batch):
            windows = _windows(self.held_out, starts[i : i + self.cfg.batch], self.cfg.context)
            # One shape for all batches, so that compiled code is compiled once.
            yield np.pad(windows, ((0, self.cfg.batch - len(windows)), (0, 0)), constant_values=-1)

    def check(self, vocab_size: int) -> None:
        """Refuse tokens that a model has no row for."""
        check_range("tokens", int(self.tokens.min()), int(self.tokens.max()), vocab_size)

    def fingerprint(self) -> str:
        """What tells this text from another, whatever its dtype: "1115394 tokens, crc32 89abcdef"."""
        crc = 0
        for i in range(0, len(self.tokens), CHUNK):
            crc = crc32(self.tokens[i : i + CHUNK].astype("<i8").tobytes(), crc)
        return f"{len(self.tokens)} tokens, crc32 {crc:08x}"

    def _refuse(self, purpose: str, part: np.ndarray) -> None:
        raise ValueError(
            f"tokens must leave more than context={self.cfg.context} to {purpose}; "
            f"got {len(part)} of {len(self.tokens)}."
        )


class Examples(NamedTuple):
    """A batch as a model takes it. A target of -1 is ignored; `valid` is None where all inputs are tokens."""

    inputs: Int[np.ndarray, "B T"]
    targets: Int[np.ndarray, "B T"]
    valid: Bool[np.ndarray, "B T"] | None

    @property
    def count(self) -> int:
        """How many targets are predicted."""
        return int((self.targets >= 0).sum())


def examples(tokens: Int[np.ndarray, "B T+1"]) -> Examples:
    """Inputs and the token after each; a negative number is no token, neither read nor predicted nor predicted from.

    Raises:
        ValueError: tokens is not a batch of windows of at least two tokens.
    """
    tokens = np.asarray(tokens)
    if tokens.ndim != 2 or tokens.shape[1] < 2 or tokens.dtype.kind not in "iu":
        raise ValueError(
            f"tokens must be integers [B T+1] with T of at least 1; got {tokens.dtype} of shape {tokens.shape}."
        )
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    valid = inputs >= 0
    if valid.all():
        return Examples(inputs, np.maximum(targets, -1), None)
    return Examples(np.maximum(inputs, 0), np.where(valid, np.maximum(targets, -1), -1), valid)


def _windows(text: np.ndarray, starts: np.ndarray, context: int) -> np.ndarray:
    """[B T+1] from each start; -1 beyond the end."""
    places = starts[:, None] + np.arange(context + 1)
    return np.where(places < len(text), text[np.minimum(places, len(text) - 1)], -1).astype(np.int32)
