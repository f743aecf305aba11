"""Training: loss, step, evaluation, the loop around them, and checkpoints that either twin resumes."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attn import training_checkpoint
from attn.batches import examples
from attn.call import check_range
from attn.characters import CharTokenizer
from attn.history import History
from attn.letters import bind
from attn.training import TrainConfig
from attn.training_checkpoint import Training
from attn.training_loop import Progress, run
from attn_torch.building import build
from attn_torch.functional import wide
from attn_torch.optimizer import adamw, moments, restored
from attn_torch.scope import concrete
from attn_torch.weights import from_neutral, to_neutral


@dataclass(frozen=True)
class TrainState:
    """A training between two steps. A state passed in is consumed: use the returned one.

    Attributes:
        optimizer: the moments and the count of updates; the weights are the module's own.
        history: how the model is trained, and every loss so far.
    """

    optimizer: torch.optim.AdamW
    history: History


def cross_entropy(logits: Float[Tensor, "B T V"], targets: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
    """mean of -log softmax(logits)[target] over the targets that are not negative, in at least float32; 0 without any.

    Raises:
        ValueError: a shape does not fit, or a target is V or more; compiled code gives NaN instead.
    """
    V = bind({}, logits=(logits.shape, "B T V"), targets=(targets.shape, "B T"))["V"]
    if concrete(targets) and targets.numel():
        check_range("targets", 0, max(0, int(targets.max())), V)
    logarithms = torch.log_softmax(logits.to(wide(logits.dtype)), dim=-1)
    losses = -logarithms.gather(-1, targets.clamp(0, V - 1).long()[..., None])[..., 0]
    losses = torch.where(targets < V, losses, torch.nan)
    counted = targets >= 0
    return torch.where(counted, losses, 0).sum() / counted.sum().clamp(min=1)


def init_state(module: nn.Module, cfg: TrainConfig, *, tokenizer: CharTokenizer | None = None) -> TrainState:
    """The state before the first step.

    Args:
        module: what is trained; its weights are where the training begins.
        cfg: how it is trained.
        tokenizer: what the tokens come from, to be kept in checkpoints.

    Raises:
        ValueError: a parameter is neither float32 nor float64.
    """
    return TrainState(adamw(cfg, module), History(train=cfg, tokenizer=tokenizer))


def train_step(module: nn.Module, state: TrainState, tokens: Int[np.ndarray, "B T+1"]) -> tuple[TrainState, float]:
    """One update of AdamW; (state, loss), the loss being that before the update.

    Raises:
        ValueError: all steps of the training are made, or the loss is not finite.
    """
    optimizer, history = state.optimizer, state.history
    history.check_room()
    for group in optimizer.param_groups:
        group["lr"] = float(group["rates"][history.step])
    optimizer.zero_grad()
    module.train()
    with _seeded(module, history):
        value = _loss(module, tokens)
    value.backward()
    if history.train.max_norm is not None:
        # PyTorch's factor is min(1, max_norm / (norm + 1e-6)).
        nn.utils.clip_grad_norm_(module.parameters(), history.train.max_norm)
    optimizer.step()
    history.add(value.item())
    return state, history.losses[-1]


@torch.no_grad()
def evaluate(module: nn.Module, batches: Iterable[Int[np.ndarray, "B T+1"]]) -> float:
    """The mean cross-entropy of the next token over all batches, each token counting the same; 0 without any."""
    training = module.training
    module.eval()
    total = count = 0
    for tokens in batches:
        weight = examples(tokens).count
        total += _loss(module, tokens).item() * weight
        count += weight
    module.train(training)
    return total / max(1, count)


def train(
    module: nn.Module,
    state: TrainState,
    tokens: Int[np.ndarray, "N"],
    *,
    until: int | None = None,
    folder: str | Path | None = None,
    report: Callable[[Progress], None] | None = None,
) -> TrainState:
    """Train on a text to the last step, or to `until`; return the new state.

    Args:
        module: what is trained, in place.
        state: from `init_state`, `load_training` or an earlier call.
        tokens: the text, one row of numbers; its end is held out for validation.
        until: the number of updates after which to stop. The schedule is that of the whole training all the same.
        folder: where checkpoints are written, at the beginning and the end at least; None writes none.
        report: called with a `Progress` after each step.

    Raises:
        ValueError: the tokens or `until` do not fit; nothing is computed. Or the loss is no longer finite.
        Interrupted: Ctrl-C; the step was finished, the state is saved if there is a folder, and given as `.state`.
    """

    def step(state: TrainState, batch: np.ndarray) -> tuple[TrainState, float]:
        return train_step(module, state, batch)

    def validate(state: TrainState, batches: Iterable[np.ndarray]) -> float:
        return evaluate(module, batches)

    def save(state: TrainState) -> None:
        if folder is not None:
            save_training(folder, module, state)

    return run(state, tokens, module.cfg, step=step, evaluate=validate, save=save, until=until, report=report)


def save_training(folder: str | Path, module: nn.Module, state: TrainState) -> None:
    """Write a training checkpoint, which is a checkpoint folder too; either twin resumes it."""
    mu, nu = moments(module, state.optimizer)
    training = Training(module.cfg, to_neutral(module.cfg, module), mu, nu, state.history)
    training_checkpoint.save(folder, training)


def load_training(
    folder: str | Path,
    *,
    cfg: TrainConfig | None = None,
    dtype: torch.dtype | None = None,
    kernel: str | None = None,
    device: torch.device | str | None = None,
) -> tuple[nn.Module, TrainState]:
    """The module and the state of a training checkpoint, which go on as if the training had never stopped.

    Args:
        folder: what `save_training` of either twin wrote.
        cfg: takes the place of the checkpoint's own; None goes on as it was.
        dtype: what inputs and parameters are cast to on use; None computes in the parameters' own dtype.
        kernel: the name of an attention kernel to force.
        device: where the parameters live.

    Raises:
        ValueError: a file is not what it must be, or the files were not saved together.
    """
    model, weights, mu, nu, history = training_checkpoint.load(folder)
    history.train = history.train if cfg is None else cfg
    module = build(model, dtype=dtype, kernel=kernel, device=device)
    module.load_state_dict(from_neutral(model, weights))
    return module, TrainState(restored(history.train, module, mu, nu, history.step), history)


def _loss(module: nn.Module, tokens: np.ndarray) -> Tensor:
    device = next(module.parameters()).device
    inputs, targets, valid = examples(tokens)
    valid = None if valid is None else torch.from_numpy(valid).to(device)
    logits = module(torch.from_numpy(inputs).to(device), valid=valid)
    return cross_entropy(logits, torch.from_numpy(targets).to(device))


@contextmanager
def _seeded(module: nn.Module, history: History) -> Iterator[None]:
    """What is dropped depends on seed and step alone, so that a resumed training drops the same."""
    device = next(module.parameters()).device
    seed = np.random.SeedSequence([history.train.seed, history.step]).generate_state(1, np.uint64)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(int(seed[0]))
        yield
