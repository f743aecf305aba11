from functools import cache
from typing import NamedTuple
from unittest.mock import patch

import jax
import numpy as np
import pytest

import attn_jax.training
from attn import training_checkpoint
from attn.history import History
from attn.training_loop import Interrupted
from tests.cases import decoder
from tests.trainees import TRAIN, Trainee, x64

__all__ = ["x64"]

GATES = {"float64": 1e-12, "float32": 2e-5}
"""How far the losses of 200 steps may part: the same algorithm, and the rounding of float32 fed back into itself."""

FILES = ("config.json", "model.safetensors", "optimizer.safetensors", "train.json")

to_the_other = pytest.mark.parametrize(("writer", "reader"), [("jax", "torch"), ("torch", "jax")])


class Run(NamedTuple):
    """A whole training, and how often JAX made an optimizer in it: for its state, and for each compiled step."""

    history: History
    optimizers: int


@cache
def whole(twin: str, dtype: str) -> Run:
    """The 200 steps, done once for all tests."""
    with (
        jax.enable_x64(dtype == "float64"),
        patch.object(attn_jax.training, "adamw", wraps=attn_jax.training.adamw) as adamw,
    ):
        return Run(Trainee.start(twin, TRAIN, dtype).train(), adamw.call_count)


def apart(one: History, other: History) -> float:
    """The largest difference between two curves, as far as the shorter one goes."""
    return max(abs(ours - theirs) for ours, theirs in zip(one.losses, other.losses, strict=False))


@pytest.mark.parametrize("dtype", GATES)
def test_200_steps_have_the_same_losses(dtype):
    (ours, optimizers), (theirs, _) = whole("jax", dtype), whole("torch", dtype)
    assert ours.step == theirs.step == 200
    assert apart(ours, theirs) <= GATES[dtype]
    # It learned: guessing among 29 costs 3.4, among three 1.1.
    assert np.mean(ours.losses[:10]) > 3
    assert np.mean(ours.losses[-10:]) < 2
    # So have the held out tokens.
    assert [step for step, _ in ours.validation] == [step for step, _ in theirs.validation] == [50, 100, 150, 200]
    assert np.abs(np.subtract(ours.validation, theirs.validation)).max() <= GATES[dtype]
    # And JAX compiled one step.
    assert optimizers == 1 + 1


@pytest.mark.parametrize(
    "changes",
    [{"weight_decay": 1e-4}, {"max_norm": None}, {"warmup": 12}, {"schedule": "linear"}, {"beta2": 0.992}],
    ids=str,
)
def test_another_setting_shows(changes):
    # Beyond the wide gate too: what float64 tells apart, float32 must not hide.
    other = Trainee.start("torch", TRAIN.replace(**changes)).train(until=100)
    assert apart(whole("torch", "float64").history, other) > GATES["float32"]


def interrupt_at(step):
    def report(progress):
        if progress.step == step:
            raise KeyboardInterrupt

    return report


@to_the_other
def test_a_training_goes_on_in_the_other_twin(tmp_path, x64, writer, reader):
    begun = Trainee.start(writer, TRAIN)
    with pytest.raises(Interrupted):
        begun.train(folder=tmp_path, report=interrupt_at(37))
    resumed = Trainee.load(reader, tmp_path).train(until=61)
    unbroken = whole("torch", "float64").history
    assert resumed.step == 61
    assert apart(resumed, unbroken) <= GATES["float64"]
    assert np.abs(np.subtract(resumed.validation, unbroken.validation[:1])).max() <= GATES["float64"]


@to_the_other
def test_a_checkpoint_crosses_byte_for_byte(tmp_path, x64, writer, reader):
    begun = Trainee.start(writer, TRAIN)
    begun.train(until=3, folder=tmp_path / "one")
    Trainee.load(reader, tmp_path / "one").save(tmp_path / "other")
    for name in FILES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


@pytest.mark.parametrize("kind", ["mu", "nu"])
def test_without_a_moment_it_goes_on_otherwise(tmp_path, kind):
    Trainee.start("torch", TRAIN).train(until=37, folder=tmp_path)
    training = training_checkpoint.load(tmp_path)
    zeros = {name: np.zeros_like(array) for name, array in getattr(training, kind).items()}
    training_checkpoint.save(tmp_path, training._replace(weights=dict(training.weights), **{kind: zeros}))
    resumed = Trainee.load("torch", tmp_path).train(until=61)
    assert apart(resumed, whole("torch", "float64").history) > GATES["float32"]


@pytest.mark.full
@pytest.mark.parametrize("dtype", GATES)
@pytest.mark.parametrize("tied", [False, True])
def test_two_mechanisms_train_alike(dtype, tied):
    cfg = decoder(tied=tied)
    with jax.enable_x64(dtype == "float64"):
        ours, theirs = (Trainee.start(twin, TRAIN, dtype, cfg).train() for twin in ("jax", "torch"))
    assert apart(ours, theirs) <= GATES[dtype]
