"""One training that crosses from JAX to PyTorch and back, moments and schedule included, without a seam."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attn.batches import Batches
from attn.characters import CharTokenizer
from attn.commands.bar import TrainingBar
from attn.demo.checks import Check
from attn.demo.trigram import trigram_loss
from attn.driving import Driver, both
from attn.history import History
from attn.presets import TRAINING, decoder
from attn.sampling import Sampling
from attn.training import TrainConfig
from attn.weights import init_weights

if TYPE_CHECKING:
    from rich.console import Console

LEGS = (("jax", 150), ("torch", 270), ("jax", 400))
"""The twins that train, each up to a step."""

SEAM = 1e-5
"""How far the loss on a batch may move when the framework changes: float32 rounds at 6e-8."""

GOAL = 1.90
"""The loss on the held out text, in nats per character, that the training has to reach."""

SAMPLING = Sampling(temperature=0.8, seed=1)


class Crossed(NamedTuple):
    """The training in all its legs, the loss of the trigram model beside it, and what was checked."""

    history: History
    trigram: float
    checks: list[Check]


def cross(text: str, folder: Path, terminal: "Console") -> Crossed:
    """Train in one twin, go on in the other, and finish in the first; every crossing goes through `folder`."""
    tokenizer = CharTokenizer.of(text)
    tokens, train = tokenizer.encode(text), TRAINING.replace(steps=LEGS[-1][1], eval_every=50)
    batches, twins = Batches(train, tokens), both()
    fixed = [next(batches.validation())]
    checks: list[Check] = []
    model, before = _begun(twins["jax"], tokenizer, train), None
    for number, (name, until) in enumerate(LEGS):
        if number:
            model = twins[name].resume(folder)
        loss = model.evaluate(fixed)
        if before is not None:
            checks.append(_seam(LEGS[number - 1][0], name, before, loss))
            terminal.print(f"{checks[-1].claim}: {checks[-1].found}")
        with TrainingBar(f"training in {name}", train.steps, model.history.step) as bar:
            model.train(tokens, until=until, folder=folder, report=bar.report)
        before = model.evaluate(fixed)
        _speak(name, model, tokenizer, terminal)
    trigram = trigram_loss(batches.train, batches.held_out, tokenizer.vocab_size)
    reached = model.history.validation[-1][1]
    found = f"{reached:.3f} nats per character, a trigram model {trigram:.3f}"
    checks.append(Check(f"the loss on the last tenth of the text is under {GOAL:.2f}", found, reached < GOAL))
    return Crossed(model.history, trigram, checks)


def _begun(twin: type[Driver], tokenizer: CharTokenizer, train: TrainConfig) -> Driver:
    cfg = decoder(tokenizer.vocab_size)
    model = twin.load(cfg, init_weights(cfg, seed=train.seed))
    model.begin(train, tokenizer)
    return model


def _seam(left: str, right: str, before: float, after: float) -> Check:
    found = f"{before:.7f} in {left}, {after:.7f} in {right}"
    return Check(f"{left} to {right}: the loss on a fixed batch stays", found, abs(after - before) <= SEAM)


def _speak(name: str, model: Driver, tokenizer: CharTokenizer, terminal: "Console") -> None:
    prompt = np.array([tokenizer.encode("\n")], np.int32)
    text = tokenizer.decode(model.generate(prompt, 160, SAMPLING)[0]).strip()
    terminal.print(f"{name} after {model.history.step} steps says:")
    terminal.print(text, style="italic", markup=False, end="\n\n")
