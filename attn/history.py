"""What a training has gone through so far: `train.json`, from which it goes on as if it had never stopped."""

import json
import math
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from attn.characters import CharTokenizer
from attn.files import load_json
from attn.training import TrainConfig


class History(BaseModel):
    """The losses of every step and what they came from. It grows in place.

    Attributes:
        train: how the model is trained.
        tokenizer: what made the tokens out of text, where it is known.
        data: the fingerprint of the tokens, known from the first step on.
        validation: pairs of a step and the loss on the held out tokens after it.
        losses: the loss of each step, on its batch before its update.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    train: TrainConfig
    tokenizer: CharTokenizer | None = None
    data: str | None = None
    validation: list[tuple[int, float]] = Field(default_factory=list)
    losses: list[float] = Field(default_factory=list)

    @property
    def step(self) -> int:
        """How many updates were made; the next batch is that of this number."""
        return len(self.losses)

    def check_room(self) -> None:
        """Refuse a step beyond the last: the schedule has no rate for it."""
        if self.step >= self.train.steps:
            raise ValueError(f"training must stay within steps={self.train.steps}; got step {self.step + 1}.")

    def add(self, loss: float) -> None:
        """Note the loss of one more step.

        Raises:
            ValueError: it is not finite, and nothing after it would be.
        """
        if not math.isfinite(loss):
            raise ValueError(f"loss must stay finite; got {loss} in step {self.step + 1}.")
        self.losses.append(loss)

    def expect(self, data: str) -> None:
        """Note the fingerprint of the tokens, or refuse tokens other than those the training began with."""
        if self.data is None:
            self.data = data
        elif self.data != data:
            raise ValueError(f"tokens must be those the training began with, {self.data}; got {data}.")

    def to_json(self) -> str:
        """JSON with a line for each field, the step first."""
        fields = {"step": self.step} | self.model_dump(mode="json")
        lines = (f"  {json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in fields.items())
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """What `to_json` wrote.

        Raises:
            ValueError: it is not that, or the step is not the number of losses.
        """
        fields: Any = load_json(text)
        if not isinstance(fields, dict):
            raise ValueError(f"a history must be a JSON object; got {fields!r}.")
        step = fields.pop("step", None)
        history = cls.model_validate_json(json.dumps(fields))
        if type(step) is not int or step != history.step:
            raise ValueError(f"step must be the number of losses, {history.step}; got {step!r}.")
        return history
