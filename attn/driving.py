"""Both twins behind numpy arrays and one set of methods, for what has to run in either: commands and the demo."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from attn.backends import BACKENDS, backend
from attn.characters import CharTokenizer
from attn.config import Config
from attn.history import History
from attn.sampling import Sampling
from attn.training import TrainConfig
from attn.training_loop import Progress

Report = Callable[[Progress], None]


class Driver(Protocol):
    """A model of one twin, and its training once it has begun."""

    @property
    def history(self) -> History:
        """How it is trained, and every loss so far."""
        ...

    @classmethod
    def load(cls, cfg: Config, weights: Mapping[str, np.ndarray]) -> Self:
        """A model with its weights."""
        ...

    @classmethod
    def resume(cls, folder: Path) -> Self:
        """The model of a training checkpoint and its training."""
        ...

    def begin(self, train: TrainConfig, tokenizer: CharTokenizer | None = None) -> None:
        """Begin a training."""
        ...

    def train(
        self, tokens: np.ndarray, *, until: int | None = None, folder: Path | None = None, report: Report | None = None
    ) -> None:
        """Train to the last step or to `until`, and write checkpoints to `folder`."""
        ...

    def evaluate(self, batches: Iterable[np.ndarray]) -> float:
        """The mean loss of the next token."""
        ...

    def generate(self, tokens: np.ndarray, steps: int, sampling: Sampling) -> np.ndarray:
        """The prompt and `steps` more tokens, [B T+steps]."""
        ...

    def stream(self, tokens: np.ndarray, steps: int, sampling: Sampling) -> Iterator[np.ndarray]:
        """What `generate` adds, one token for each row at a time, [B]."""
        ...


class Torch:
    """attn_torch: the module holds the weights."""

    def __init__(self, module: Any, state: Any = None):
        self._twin, self._module, self._state = backend("torch"), module, state

    @classmethod
    def load(cls, cfg: Config, weights: Mapping[str, np.ndarray]) -> Self:
        twin = backend("torch")
        module = twin.build(cfg)
        module.load_state_dict(twin.from_neutral(cfg, weights))
        return cls(module)

    @classmethod
    def resume(cls, folder: Path) -> Self:
        return cls(*backend("torch").load_training(folder))

    @property
    def history(self) -> History:
        return self._state.history

    def begin(self, train: TrainConfig, tokenizer: CharTokenizer | None = None) -> None:
        self._state = self._twin.init_state(self._module, train, tokenizer=tokenizer)

    def train(
        self, tokens: np.ndarray, *, until: int | None = None, folder: Path | None = None, report: Report | None = None
    ) -> None:
        self._state = self._twin.train(self._module, self._state, tokens, until=until, folder=folder, report=report)

    def evaluate(self, batches: Iterable[np.ndarray]) -> float:
        return self._twin.evaluate(self._module, batches)

    def generate(self, tokens: np.ndarray, steps: int, sampling: Sampling) -> np.ndarray:
        prompt = import_module("torch").from_numpy(tokens)
        return self._twin.generate(self._module.eval(), prompt, steps, **dict(sampling)).numpy()

    def stream(self, tokens: np.ndarray, steps: int, sampling: Sampling) -> Iterator[np.ndarray]:
        prompt = import_module("torch").from_numpy(tokens)
        for token in self._twin.stream(self._module.eval(), prompt, steps, **dict(sampling)):
            yield token.numpy()


class Jax:
    """attn_jax: weights are a value beside the module."""

    def __init__(self, module: Any, variables: Any, state: Any = None):
        self._twin, self._module, self._variables, self._state = backend("jax"), module, variables, state

    @classmethod
    def load(cls, cfg: Config, weights: Mapping[str, np.ndarray]) -> Self:
        twin = backend("jax")
        with _precision(weights.values()):
            return cls(twin.build(cfg), twin.from_neutral(cfg, weights))

    @classmethod
    def resume(cls, folder: Path) -> Self:
        module, state = backend("jax").load_training(folder)
        return cls(module, state.variables, state)

    @property
    def history(self) -> History:
        return self._state.history

    def begin(self, train: TrainConfig, tokenizer: CharTokenizer | None = None) -> None:
        self._state = self._twin.init_state(self._module, self._variables, train, tokenizer=tokenizer)

    def train(
        self, tokens: np.ndarray, *, until: int | None = None, folder: Path | None = None, report: Report | None = None
    ) -> None:
        self._state = self._twin.train(self._module, self._state, tokens, until=until, folder=folder, report=report)
        self._variables = self._state.variables

    def evaluate(self, batches: Iterable[np.ndarray]) -> float:
        return self._twin.evaluate(self._module, self._variables, batches)

    def generate(self, tokens: np.ndarray, steps: int, sampling: Sampling) -> np.ndarray:
        with _precision(import_module("jax").tree.leaves(self._variables)):
            return np.asarray(self._twin.generate(self._module, self._variables, tokens, steps, **dict(sampling)))

    def stream(self, tokens: np.ndarray, steps: int, sampling: Sampling) -> Iterator[np.ndarray]:
        with _precision(import_module("jax").tree.leaves(self._variables)):
            for token in self._twin.stream(self._module, self._variables, tokens, steps, **dict(sampling)):
                yield np.asarray(token)


DRIVERS: dict[str, type[Driver]] = {"jax": Jax, "torch": Torch}


def driver(name: str) -> type[Driver]:
    """The driver of a twin, whose framework is imported here.

    Raises:
        ValueError: the name is unknown.
        ModuleNotFoundError: the framework is not installed.
    """
    backend(name)
    return DRIVERS[name]


def both() -> dict[str, type[Driver]]:
    """The drivers of both twins; PyTorch is imported first, because after JAX its import can crash the process."""
    return {name: driver(name) for name in reversed(BACKENDS)}


def _precision(arrays: Iterable[Any]) -> AbstractContextManager:
    """JAX in 64 bits where the weights need it."""
    wide = any(array.dtype == np.float64 for array in arrays)
    return import_module("jax").enable_x64(True) if wide else nullcontext()
