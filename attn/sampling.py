"""Choosing the next token: the rules and the random numbers, the same for both twins."""

import numpy as np
from pydantic import Field

from attn.config import Frozen, Size


class Sampling(Frozen):
    """How a token is drawn from logits.

    Attributes:
        temperature: what logits are divided by; 0 takes the highest, equal ones by the lowest index.
        top_k: only the k highest take part.
        top_p: of those, only the smallest set of the highest that has at least this probability.
        seed: with the row and the step, the only thing that a draw depends on.
        stop: the token after which a row is finished; it is repeated to the end.
    """

    temperature: float = Field(default=0.0, ge=0)
    top_k: Size | None = None
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int = Field(default=0, ge=0)
    stop: int | None = None

    def uniforms(self, batch: int, steps: int) -> np.ndarray:
        """One number in [0, 1) for each row and step, [B steps] float64; a row's own stream, whatever the batch."""
        return np.stack([np.random.default_rng([self.seed, row]).random(steps) for row in range(batch)])


def check_generation(cfg, length: int, steps: int, sampling: Sampling, beams: int = 1) -> None:
    """Refuse a generation that cannot be finished.

    Raises:
        ValueError: no steps; beams that draw, or more of them than tokens; more tokens than the model has positions; a
            stop token that is not in the vocabulary.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1; got {steps}.")
    if not 1 <= beams <= cfg.vocab_size:
        raise ValueError(f"beams must lie between 1 and {cfg.vocab_size}; got {beams}.")
    if beams > 1 and sampling.temperature:
        raise ValueError(f"temperature must be 0 for a beam search, which draws nothing; got {sampling.temperature}.")
    if length < 1:
        raise ValueError(f"tokens must hold at least one position; got {length}.")
    if cfg.learned_positions is not None and length + steps > cfg.learned_positions:
        raise ValueError(
            f"tokens and steps must fit the model's {cfg.learned_positions} positions; got {length} + {steps}."
        )
    if sampling.stop is not None and not 0 <= sampling.stop < cfg.vocab_size:
        raise ValueError(f"stop must lie between 0 and {cfg.vocab_size - 1}; got {sampling.stop}.")
