"""How a model is trained, said once: steps, batches, AdamW, schedule and clipping, read by both twins."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from attn.call import check_dtype
from attn.config import Config, Frozen, Size
from attn.layout import Leaf, Projection, Table, leaves

Rate = Annotated[float, Field(gt=0)]
Decay = Annotated[float, Field(gt=0, lt=1)]
NotNegative = Annotated[float, Field(ge=0)]

DECAYING = (Projection, Table)
"""The kinds of parts whose arrays decay, biases excepted."""


class TrainConfig(Frozen):
    """AdamW (Loshchilov and Hutter 2019) on the mean cross-entropy of the next token.

    With g the gradient, clipped to g * min(1, max_norm / (|g| + 1e-6)), and t counting updates from 1:

        mu = beta1 * mu + (1 - beta1) * g          nu = beta2 * nu + (1 - beta2) * g^2
        w = w - rate * (mu / (1 - beta1^t) / (sqrt(nu / (1 - beta2^t)) + eps) + weight_decay * w)

    where the last term is there for projections and tables alone.

    Attributes:
        steps: updates of the whole training.
        batch: B, windows per step.
        context: T, tokens of a window that are read; each predicts the one after it.
        learning_rate: the highest rate.
        schedule: what the rate does after the warm-up: stays, or falls to `min_learning_rate` at the last step.
        min_learning_rate: the rate of the last step.
        warmup: steps in which the rate rises to `learning_rate`; the first is already above 0.
        weight_decay: decoupled decay, multiplied by the rate.
        beta1: decay of the first moment, mu.
        beta2: decay of the second moment, nu.
        eps: added to the root of the second moment.
        max_norm: the norm that the gradient of all weights together is clipped to; None does not clip.
        seed: with the step's number, all that a batch depends on.
        validation_fraction: the part of the tokens, taken from their end, that is never trained on.
        validation_windows: how many windows an evaluation reads, evenly spread; None reads them all.
        eval_every: steps between evaluations; None evaluates after the last step alone.
        save_every: steps between checkpoints; None saves before the first step and after the last alone.
    """

    steps: Size = 1000
    batch: Size = 32
    context: Size = 64
    learning_rate: Rate = 3e-3
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    min_learning_rate: NotNegative = 0.0
    warmup: int = Field(default=0, ge=0)
    weight_decay: NotNegative = 0.01
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    eps: Rate = 1e-8
    max_norm: Rate | None = 1.0
    seed: int = Field(default=0, ge=0, lt=2**32)
    validation_fraction: float = Field(default=0.1, ge=0, lt=1)
    validation_windows: Size | None = None
    eval_every: Size | None = None
    save_every: Size | None = None

    @model_validator(mode="after")
    def _fields_fit(self) -> Self:
        if self.warmup >= self.steps:
            raise ValueError(f"warmup must be below steps; got warmup={self.warmup} and steps={self.steps}.")
        lowest, highest = self.min_learning_rate, self.learning_rate
        if lowest > highest:
            raise ValueError(f"min_learning_rate must be at most learning_rate={highest}; got {lowest}.")
        if lowest and self.schedule == "constant":
            raise ValueError(f"min_learning_rate is not read by the constant schedule; got {lowest}.")
        for name in ("eval_every", "validation_windows"):
            if getattr(self, name) is not None and not self.validation_fraction:
                raise ValueError(f"{name} needs a validation_fraction above 0; got {name}={getattr(self, name)}.")
        return self


def learning_rates(cfg: TrainConfig) -> np.ndarray:
    """The rate of each step in float64, [steps]: both twins read it here.

    rate_n = learning_rate * (n + 1) / (warmup + 1) while n < warmup; afterwards, with u going from 0 at n = warmup to 1
    at the last step, min + (learning_rate - min) * f(u): f is 1, 1 - u, or (1 + cos(pi u)) / 2.
    """
    n = np.arange(cfg.steps, dtype=np.float64)
    u = np.clip((n - cfg.warmup) / max(1, cfg.steps - 1 - cfg.warmup), 0, 1)
    fall = {"constant": np.ones_like(u), "linear": 1 - u, "cosine": (1 + np.cos(math.pi * u)) / 2}[cfg.schedule]
    rates = cfg.min_learning_rate + (cfg.learning_rate - cfg.min_learning_rate) * fall
    return np.where(n < cfg.warmup, cfg.learning_rate * (n + 1) / (cfg.warmup + 1), rates)


def decayed(cfg: Config) -> tuple[Leaf, ...]:
    """The arrays that weight decay shrinks, by the kind of their part and never by their rank; no bias among them."""
    return tuple(leaf for leaf in leaves(cfg) if isinstance(leaf.part, DECAYING) and not leaf.name.endswith(".bias"))


def check_trainable(parameters: Mapping[str, Any]) -> None:
    """Refuse parameters too coarse to add small updates to.

    Raises:
        ValueError: "embed.embedding has dtype bfloat16; expected float32 or float64."
    """
    for name, array in parameters.items():
        check_dtype(name, array, ("float32", "float64"))
