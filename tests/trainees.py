"""Both twins behind one way to train, for tests that do the same with each."""

from typing import Any

import jax
import numpy as np
import pytest

import attn
from attn.training import TrainConfig
from tests.cases import CASES, decoder, weights_of

CFG = decoder(layers=1, attention=CASES["grouped_query"])

TRAIN = TrainConfig(
    steps=200,
    batch=3,
    context=11,
    learning_rate=3e-3,
    min_learning_rate=1e-4,
    warmup=13,
    weight_decay=1e-2,
    beta2=0.99,
    max_norm=0.7,
    seed=5,
    validation_windows=6,
    eval_every=50,
)
"""Schedule, warm-up, clipping and decay are on."""

TOKENS = np.cumsum(np.random.default_rng(0).integers(0, 3, 1009)) % CFG.vocab_size
"""A walk upwards around the alphabet, of which one of three steps has to be guessed."""

FIRST = np.random.default_rng(1).integers(0, CFG.vocab_size, (3, 12))
"""A batch on its own."""


class Trainee:
    """A twin, its module and its state."""

    def __init__(self, twin: str, module: Any, state: Any):
        self.name, self.module, self.state, self.twin = twin, module, state, attn.backend(twin)

    @classmethod
    def start(cls, twin: str, train: TrainConfig, dtype: str = "float64", cfg: Any = CFG) -> "Trainee":
        """A trainee before its first step."""
        weights, backend = weights_of(cfg, dtype), attn.backend(twin)
        module = backend.build(cfg)
        if twin == "jax":
            return cls(twin, module, backend.init_state(module, backend.from_neutral(cfg, weights), train))
        module.load_state_dict(backend.from_neutral(cfg, weights))
        return cls(twin, module, backend.init_state(module, train))

    @classmethod
    def load(cls, twin: str, folder: Any) -> "Trainee":
        """A trainee as a checkpoint left it."""
        return cls(twin, *attn.backend(twin).load_training(folder))

    def train(self, tokens: np.ndarray = TOKENS, **options: Any) -> Any:
        """Train, and return the history."""
        self.state = self.twin.train(self.module, self.state, tokens, **options)
        return self.state.history

    def step(self, tokens: np.ndarray = FIRST) -> float:
        """One update, and its loss."""
        self.state, loss = self.twin.train_step(self.module, self.state, tokens)
        return loss

    def save(self, folder: Any) -> None:
        """Write a checkpoint."""
        self.twin.save_training(folder, self.module, self.state)

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """The weights by their neutral names."""
        held = self.state.variables if self.name == "jax" else self.module
        return self.twin.to_neutral(self.module.cfg, held)

    def evaluate(self, batches: list[np.ndarray]) -> float:
        """The loss on batches."""
        held = (self.module, self.state.variables) if self.name == "jax" else (self.module,)
        return self.twin.evaluate(*held, batches)


@pytest.fixture
def x64():
    """JAX in float64."""
    with jax.enable_x64(True):
        yield


in_each_twin = pytest.mark.parametrize("twin", ["jax", "torch"])
