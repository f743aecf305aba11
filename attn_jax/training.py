"""Training: loss, step, evaluation, the loop around them, and checkpoints that either twin resumes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict
from jaxtyping import Array, Float, Int

from attn import training_checkpoint
from attn.batches import examples
from attn.call import check_range
from attn.characters import CharTokenizer
from attn.history import History
from attn.letters import bind
from attn.training import TrainConfig, check_trainable
from attn.training_checkpoint import Training
from attn.training_loop import Progress, run
from attn_jax.building import build
from attn_jax.functional import wide
from attn_jax.optimizer import adamw, moments, restored
from attn_jax.scope import concrete
from attn_jax.weights import Variables, from_neutral, neutral_name, to_neutral


@dataclass(frozen=True)
class TrainState:
    """A training between two steps. A state passed in is consumed: use the returned one.

    Attributes:
        variables: the weights.
        optimizer: the moments and the count of updates.
        history: how the model is trained, and every loss so far.
    """

    variables: Variables
    optimizer: optax.OptState
    history: History


def cross_entropy(logits: Float[Array, "B T V"], targets: Int[Array, "B T"]) -> Float[Array, ""]:
    """mean of -log softmax(logits)[target] over the targets that are not negative, in at least float32; 0 without any.

    Raises:
        ValueError: a shape does not fit, or a target is V or more; compiled code gives NaN instead.
    """
    V = bind({}, logits=(logits.shape, "B T V"), targets=(targets.shape, "B T"))["V"]
    if concrete(targets) and targets.size:
        check_range("targets", 0, max(0, int(np.asarray(targets).max())), V)
    logarithms = jax.nn.log_softmax(logits.astype(wide(logits.dtype)), axis=-1)
    losses = -jnp.take_along_axis(logarithms, jnp.clip(targets, 0, V - 1)[..., None], axis=-1)[..., 0]
    losses = jnp.where(targets < V, losses, jnp.nan)
    counted = targets >= 0
    return jnp.where(counted, losses, 0).sum() / jnp.maximum(counted.sum(), 1)


def init_state(
    module: nn.Module, variables: Variables, cfg: TrainConfig, *, tokenizer: CharTokenizer | None = None
) -> TrainState:
    """The state before the first step.

    Args:
        module: what is trained.
        variables: the weights with which the training begins; they are copied.
        cfg: how it is trained.
        tokenizer: what the tokens come from, to be kept in checkpoints.

    Raises:
        ValueError: a parameter is neither float32 nor float64.
    """
    variables = jax.tree.map(lambda array: jnp.array(array, copy=True), {"params": nn.unbox(variables["params"])})
    arrays = flatten_dict(variables["params"])
    check_trainable({neutral_name(path): array for path, array in arrays.items()})
    optimizer = adamw(cfg, module).init(variables["params"])
    return TrainState(variables, optimizer, History(train=cfg, tokenizer=tokenizer))


def train_step(module: nn.Module, state: TrainState, tokens: Int[np.ndarray, "B T+1"]) -> tuple[TrainState, float]:
    """One update of AdamW; (state, loss), the loss being that before the update.

    Raises:
        ValueError: all steps of the training are made, or the loss is not finite.
    """
    history = state.history
    history.check_room()
    arrays = state.variables, state.optimizer
    variables, optimizer, value = _update(module, history.train, *arrays, history.step, *examples(tokens))
    history.add(float(value))
    return replace(state, variables=variables, optimizer=optimizer), history.losses[-1]


def evaluate(module: nn.Module, variables: Variables, batches: Iterable[Int[np.ndarray, "B T+1"]]) -> float:
    """The mean cross-entropy of the next token over all batches, each token counting the same; 0 without any."""
    total = count = 0
    for tokens in batches:
        weight = examples(tokens).count
        total += float(_loss(module, variables, *examples(tokens))) * weight
        count += weight
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
        module: what is trained.
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
        return evaluate(module, state.variables, batches)

    def save(state: TrainState) -> None:
        if folder is not None:
            save_training(folder, module, state)

    return run(state, tokens, module.cfg, step=step, evaluate=validate, save=save, until=until, report=report)


def save_training(folder: str | Path, module: nn.Module, state: TrainState) -> None:
    """Write a training checkpoint, which is a checkpoint folder too; either twin resumes it."""
    mu, nu = moments(module, state.optimizer)
    training = Training(module.cfg, to_neutral(module.cfg, state.variables), mu, nu, state.history)
    training_checkpoint.save(folder, training)


def load_training(
    folder: str | Path, *, cfg: TrainConfig | None = None, dtype: Any = None, kernel: str | None = None
) -> tuple[nn.Module, TrainState]:
    """The module and the state of a training checkpoint, which go on as if the training had never stopped.

    Args:
        folder: what `save_training` of either twin wrote.
        cfg: takes the place of the checkpoint's own; None goes on as it was.
        dtype: what inputs and parameters are cast to on use; None computes in the parameters' own dtype.
        kernel: the name of an attention kernel to force.

    Raises:
        ValueError: a file is not what it must be, or the files were not saved together.
    """
    model, weights, mu, nu, history = training_checkpoint.load(folder)
    history.train = history.train if cfg is None else cfg
    module, variables = build(model, dtype=dtype, kernel=kernel), from_neutral(model, weights)
    return module, TrainState(variables, restored(history.train, module, variables, mu, nu, history.step), history)


@partial(jax.jit, static_argnums=0)
def _loss(module: nn.Module, variables: Variables, inputs: Array, targets: Array, valid: Array | None) -> Array:
    logits: Any = module.apply(variables, inputs, valid=valid)
    return cross_entropy(logits, targets)


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=(2, 3))
def _update(module, cfg, variables, optimizer, step, inputs, targets, valid):
    """(variables, optimizer, loss): one compiled step, which gives the old arrays' memory to the new ones."""
    # What is dropped depends on seed and step alone, so that a resumed training drops the same.
    rngs = {"dropout": jax.random.fold_in(jax.random.key(cfg.seed), step)}

    def objective(params):
        logits: Any = module.apply({"params": params}, inputs, valid=valid, deterministic=False, rngs=rngs)
        return cross_entropy(logits, targets)

    params = variables["params"]
    value, gradients = jax.value_and_grad(objective)(params)
    updates, optimizer = adamw(cfg, module).update(gradients, optimizer, params)
    return {"params": optax.apply_updates(params, updates)}, optimizer, value
