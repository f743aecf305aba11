"""The loop around a twin's step: batches in, losses noted, checkpoints written, Ctrl-C between two steps."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from attn.batches import Batches
from attn.history import History
from attn.models import DecoderConfig


class Progress(NamedTuple):
    """What a caller hears after each step.

    Attributes:
        step: updates made so far.
        steps: updates of the whole training.
        loss: of the step's batch, before its update.
        tokens_per_second: of this step alone, without evaluation and saving.
        validation: the loss on the held out tokens, where this step ends with an evaluation.
    """

    step: int
    steps: int
    loss: float
    tokens_per_second: float
    validation: float | None


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a training. It stopped after a whole step, and was saved if a folder was given.

    Attributes:
        state: the state after that step; the training goes on from it.
    """

    def __init__(self, state: Any):
        super().__init__(f"training stopped after step {state.history.step} of {state.history.train.steps}")
        self.state = state


def run(
    state: Any,
    tokens: np.ndarray,
    model: DecoderConfig,
    *,
    step: Callable[[Any, np.ndarray], tuple[Any, float]],
    evaluate: Callable[[Any, Iterator[np.ndarray]], float],
    save: Callable[[Any], None],
    until: int | None = None,
    report: Callable[[Progress], None] | None = None,
) -> Any:
    """Train from the state's step to `until`, by default the last one; return the new state.

    Args:
        state: a twin's training state; its `history` is extended in place.
        tokens: the text, one row of numbers.
        model: the config of what is trained.
        step: one update, from a state and a batch to the new state and the loss.
        evaluate: the loss of a state on batches.
        save: writes a checkpoint of a state.
        until: the number of updates after which to stop.
        report: called after each step.

    Raises:
        ValueError: the tokens or `until` do not fit; nothing is computed. Or the loss is no longer finite.
        Interrupted: Ctrl-C, or KeyboardInterrupt in `report`; the state after the last whole step is saved and given.
    """
    history, cfg = state.history, state.history.train
    until, begun = cfg.steps if until is None else until, history.step
    batches = _batches(history, tokens, model, until)
    # A folder that cannot be written should be known before the work is done.
    save(state)
    with held_interrupts() as interrupted:
        while history.step < until and not interrupted.is_set():
            began = perf_counter()
            state, loss = step(state, batches.at(history.step))
            speed = cfg.batch * cfg.context / (perf_counter() - began)
            validation = None
            if cfg.validation_fraction and _due(cfg.eval_every, history.step, cfg.steps):
                validation = evaluate(state, batches.validation())
                history.validation.append((history.step, validation))
            if history.step < until and _due(cfg.save_every, history.step, cfg.steps):
                save(state)
            if report is not None:
                try:
                    report(Progress(history.step, cfg.steps, loss, speed, validation))
                except KeyboardInterrupt:
                    interrupted.set()
        if history.step > begun:
            save(state)
    if interrupted.is_set():
        raise Interrupted(state)
    return state


@contextmanager
def held_interrupts() -> Iterator[threading.Event]:
    """Hold the first Ctrl-C back, as an event to look at between steps; a second one interrupts at once.

    A step that is cut short loses what it began with: JAX gave the old arrays away, PyTorch wrote into them.
    """
    interrupted = threading.Event()
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        # Signals reach the main thread alone, and a process that ignores Ctrl-C goes on ignoring it.
        yield interrupted
        return

    def hold(number: int, frame: Any) -> None:
        if interrupted.is_set():
            previous(number, frame)
        interrupted.set()

    signal.signal(signal.SIGINT, hold)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, previous)


def _batches(history: History, tokens: np.ndarray, model: DecoderConfig, until: int) -> Batches:
    """The batches, after checking that everything fits; only then does the history know its tokens."""
    cfg = history.train
    batches = Batches(cfg, tokens)
    batches.check(model.vocab_size)
    longest = model.learned_positions
    if longest is not None and cfg.context > longest:
        raise ValueError(f"context must be at most the model's learned_positions={longest}; got {cfg.context}.")
    if not history.step <= until <= cfg.steps:
        raise ValueError(f"until must lie between the steps made, {history.step}, and steps={cfg.steps}; got {until}.")
    history.expect(batches.fingerprint())
    return batches


def _due(every: int | None, step: int, steps: int) -> bool:
    return step == steps or (every is not None and step % every == 0)
