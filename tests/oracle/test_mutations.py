"""What the bound is worth: each mistake that people make exceeds it at least ten times, in every variant it can befall.

The twins compute what they should; the mistake is made in the reference, by another config, other weights or another
call. What is measured is how far the two are apart in float32.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import attn
from attn.parity import Inputs, draw
from attn.parity.directions import value
from attn.parity.founding import FOUNDING, D
from attn.tolerance import bound, row_error
from tests.mutations import (
    called,
    changed,
    exchanged,
    option,
    other_eps,
    scaled_by_another_width,
    tiled,
    under,
    wider,
    wider_in_a_layer,
    without,
)

BATCH, T, S = 2, 23, 19
ROW_ARGUMENTS = ("valid", "segments", "positions")
BY_NAME = {cfg.variant: cfg for cfg in FOUNDING}
WINDOW, ROPE = attn.SlidingWindow(width=7), attn.Rope(theta=100.0)
LATENT, GROUPED = BY_NAME["latent"], BY_NAME["grouped_query"]
PLAIN_MLP = {"input_dim": 29, "hidden_dim": 37, "gated": False}
GPT_BLOCK = attn.MultiHeadAttentionConfig(input_dim=29, heads=3, dim_k=33, dim_v=39, bias=True, mask=attn.Causal())


class Subject(NamedTuple):
    """What a mistake is made in: a config, and what its call brings along."""

    cfg: Any
    arguments: tuple[str, ...] = ()

    @property
    def keys(self) -> int | None:
        """The length of the context, where there is one."""
        return S if getattr(self.cfg, "reads", None) else None


SUBJECTS = {
    "self": Subject(BY_NAME["self"].replace(mask=WINDOW, rope=ROPE)),
    "cross": Subject(BY_NAME["cross"].replace(mask=WINDOW, rope=ROPE), ("positions",)),
    "causal": Subject(BY_NAME["causal"].replace(rope=ROPE)),
    "multi_head": Subject(BY_NAME["multi_head"].replace(mask=WINDOW, rope=ROPE)),
    "multi_query": Subject(BY_NAME["multi_query"].replace(mask=WINDOW, rope=ROPE)),
    "grouped_query": Subject(GROUPED.replace(mask=WINDOW, rope=ROPE)),
    "latent": Subject(LATENT.replace(mask=WINDOW, dim_v=LATENT.dim_k)),
    "decoder": Subject(BY_NAME["decoder"]),
    "gpt": Subject(
        attn.DecoderConfig(
            vocab_size=23,
            layers=2,
            attention=GPT_BLOCK,
            mlp=attn.MLPConfig(**PLAIN_MLP, activation="gelu"),
            norm=attn.NormConfig(kind="layer"),
            learned_positions=71,
        )
    ),
}
"""Every variant, without anything in its call but what it needs."""

CALLED = {
    name: subject._replace(
        arguments=ROW_ARGUMENTS if name in ("decoder", "gpt") else (*ROW_ARGUMENTS, "allowed", "bias")
    )
    for name, subject in SUBJECTS.items()
}
"""The same with all that a call can bring along."""


ROTATED = ("self", "cross", "causal", "multi_head", "multi_query", "grouped_query")
WINDOWED = ("self", "cross", "multi_head", "multi_query", "grouped_query", "latent")
MANY = ("multi_head", "multi_query", "grouped_query", "latent")
ATTENTIONS = (*ROTATED, "latent")
MUTANTS: dict[str, tuple[tuple[str, ...], Any]] = {
    "window of one more": (WINDOWED, wider),
    "scale of another width": (ATTENTIONS, scaled_by_another_width),
    "interleaved rope": (ROTATED, option(rope=ROPE.replace(layout="interleaved"))),
    "no rope": (ROTATED, option(rope=None)),
    "rope of another theta": (ROTATED, option(rope=ROPE.replace(theta=101.0))),
    "half of the rope": (ROTATED, option(rope=ROPE.replace(width=D // 2 - 1))),
    "queries one position on": (("cross",), called(positions=lambda inputs: inputs.call["positions"] + 1)),
    "tiled heads": (("grouped_query",), tiled),
    "heads of out rolled": (MANY, changed("out.kernel", lambda kernel: np.roll(kernel, 1, axis=0))),
    "no bias of the queries": (ATTENTIONS, changed("q.bias", np.zeros_like)),
    "no bias of the values": (ROTATED, changed("v.bias", np.zeros_like)),
    "no bias of out": (MANY, changed("out.bias", np.zeros_like)),
    "k_up and v_up swapped": (("latent",), exchanged("k_up", "v_up")),
    "the future seen": (("causal",), under(attn.Full())),
    "itself not seen": (("causal",), called(allowed=lambda inputs: ~np.eye(T, dtype=bool))),
    "another eps": (("decoder", "gpt"), other_eps),
    "window of one more in a layer": (("decoder",), wider_in_a_layer),
    "relu for silu": (("decoder",), option(mlp=attn.MLPConfig(input_dim=29, hidden_dim=37, activation="relu"))),
    "tanh in gelu": (("gpt",), option(mlp=attn.MLPConfig(**PLAIN_MLP, activation="gelu_tanh"))),
    "gate and up swapped": (("decoder",), exchanged("mlp.gate", "mlp.up")),
    "layers swapped": (("decoder", "gpt"), exchanged("layers.0.mlp", "layers.1.mlp")),
    "positions from one": (("gpt",), called(positions=lambda inputs: np.arange(1, T + 1))),
    "norms without scale": (("decoder", "gpt"), changed("norm.scale", np.ones_like)),
    "norms without shift": (("gpt",), changed("norm.bias", np.zeros_like)),
}
"""By name: the subjects that it can befall, and how the reference makes it."""

ATTENDING = tuple(name for name in SUBJECTS if name not in ("decoder", "gpt"))
IGNORED: dict[str, tuple[str, ...]] = {
    "valid": tuple(SUBJECTS),
    "segments": tuple(SUBJECTS),
    "positions": tuple(SUBJECTS),
    "allowed": ATTENDING,
    "bias": ATTENDING,
}
"""Arguments that a call brings along and that are dropped on the way."""


@lru_cache(maxsize=64)
def drawn(subject: Subject) -> Inputs:
    """The numbers that all implementations of a subject get."""
    keys, arguments = subject.keys, subject.arguments
    return draw(subject.cfg, "float32", batch=BATCH, queries=T, keys=keys, seed=0, arguments=arguments)


@lru_cache(maxsize=64)
def found(twin: str, subject: Subject) -> np.ndarray:
    """y of a twin."""
    module = pytest.importorskip(f"attn_{twin}.gradients")
    return module.value_and_gradients(subject.cfg, *drawn(subject), "float32")[0]


def limit(subject: Subject) -> float:
    """The bound on y."""
    return bound(subject.cfg, T, subject.keys or T, "float32", depth=getattr(subject.cfg, "layers", 1))


in_both = pytest.mark.parametrize("twin", attn.BACKENDS)


@in_both
@pytest.mark.parametrize(
    "subject",
    [*SUBJECTS.values(), *CALLED.values()],
    ids=lambda subject: "-".join((subject.cfg.variant, *subject.arguments)),
)
def test_without_a_mistake_the_bound_holds(subject, twin):
    assert row_error(found(twin, subject), value(subject.cfg, drawn(subject))) <= limit(subject)


@in_both
@pytest.mark.parametrize(
    ("mutant", "name"), [(mutant, name) for mutant, (names, _) in MUTANTS.items() for name in names]
)
def test_a_mistake_exceeds_the_bound_ten_times(mutant, name, twin):
    subject = SUBJECTS[name]
    wrong = value(*MUTANTS[mutant][1](subject.cfg, drawn(subject)))
    assert row_error(found(twin, subject), wrong) > 10 * limit(subject)


@in_both
@pytest.mark.parametrize(
    ("argument", "name"), [(argument, name) for argument, names in IGNORED.items() for name in names]
)
def test_an_argument_that_is_ignored_exceeds_the_bound_ten_times(argument, name, twin):
    subject = CALLED[name]
    inputs = drawn(subject)
    wrong = value(*without(argument)(subject.cfg, inputs))
    # Only the real tokens count: it is no art to see that an invalid one is not zero.
    real = inputs.call["valid"]
    assert row_error(found(twin, subject)[real], wrong[real]) > 10 * limit(subject)
