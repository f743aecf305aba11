"""What parity is made of, without a framework: the draw, the reference's derivatives, the report."""

import json
import re
import subprocess
import sys
from io import StringIO
from math import inf

import numpy as np
import pytest
from rich.console import Console

import attn
from attn.parity import Report, Row, cases, check, draw, summary
from attn.parity.directions import derivatives, directions, gradient_error, norm, value
from attn.parity.founding import FOUNDING

BY_NAME = {cfg.variant: cfg for cfg in FOUNDING}
LEARNED = attn.DecoderConfig(
    vocab_size=23,
    layers=1,
    attention=attn.MultiHeadAttentionConfig(input_dim=12, heads=3, mask=attn.Causal()),
    mlp=attn.MLPConfig(input_dim=12, hidden_dim=29),
    norm=attn.NormConfig(kind="layer"),
    learned_positions=13,
)
ALL = ("valid", "segments", "positions", "allowed", "bias")


def drawn(cfg, dtype="float64", *, keys=None, arguments=(), seed=0):
    return draw(cfg, dtype, batch=2, queries=11, keys=keys, seed=seed, arguments=arguments)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_all_that_is_real_is_rounded_to_the_dtype_before_it_is_widened(dtype):
    inputs = drawn(BY_NAME["cross"], dtype, keys=19, arguments=("bias",))
    for array in (*inputs.real().values(), inputs.cotangent):
        assert array.dtype == np.float64
        np.testing.assert_array_equal(array, array.astype(dtype).astype(np.float64))


def test_float64_uses_all_its_bits():
    for name, array in drawn(BY_NAME["grouped_query"], arguments=("bias",)).real().items():
        assert (array != array.astype(np.float32)).any(), name


def test_no_weight_keeps_its_default():
    weights = drawn(LEARNED).weights
    assert set(weights) == set(LEARNED.shapes())
    for name, array in weights.items():
        assert ((array != 0) & (array != 1)).all(), name


def test_each_tensor_has_a_stream_of_its_own():
    plain, all_given = drawn(BY_NAME["latent"]), drawn(BY_NAME["latent"], arguments=ALL)
    np.testing.assert_array_equal(plain.x, all_given.x)
    assert (drawn(BY_NAME["latent"], seed=1).x != plain.x).all()


def test_arguments_describe_both_sides():
    call = drawn(BY_NAME["cross"], keys=19, arguments=ALL).call
    assert {name: array.shape for name, array in call.items()} == {
        "valid": (2, 11),
        "segments": (2, 11),
        "positions": (2, 11),
        "context_valid": (2, 19),
        "context_segments": (2, 19),
        "context_positions": (2, 19),
        "allowed": (2, 1, 11, 19),
        "bias": (1, 1, 11, 19),
    }


def test_arguments_hide_nothing():
    call = drawn(BY_NAME["grouped_query"], arguments=ALL).call
    assert call["valid"].any(axis=1).all()
    assert not call["valid"].all()
    assert call["positions"].min() >= 50
    assert (np.diff(call["positions"]) < 0).any()
    assert not call["allowed"][0, :, 0].any()
    begins = np.diff(call["segments"]) != 0
    assert (begins.sum(axis=1) + 1 > [len(set(row)) for row in call["segments"].tolist()]).any()


def test_positions_stay_within_a_learned_table():
    assert drawn(LEARNED, arguments=("positions",)).call["positions"].max() < 13


@pytest.mark.parametrize(
    ("cfg", "given", "text"),
    [
        (
            BY_NAME["self"],
            {"arguments": ("mask",)},
            "arguments must name some of valid, segments, positions, allowed, bias; got 'mask'.",
        ),
        (LEARNED, {"arguments": ("bias",)}, "arguments must name some of valid, segments, positions; got 'bias'."),
        (BY_NAME["self"], {"keys": 19}, "keys must be None for a config that reads no context; got 19."),
        (
            BY_NAME["self"],
            {"dtype": "int8"},
            "dtype must be one of float64, float32, float16, bfloat16; got 'int8'.",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(cfg, given, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        check(cfg, **given)


@pytest.mark.parametrize("cfg", [BY_NAME["grouped_query"], LEARNED], ids=lambda cfg: cfg.variant)
def test_a_complex_step_is_the_limit_of_finite_differences(cfg):
    arguments = ("valid", "positions", *(("bias",) if cfg.variant == "grouped_query" else ()))
    inputs = drawn(cfg, arguments=arguments)
    for name, array in inputs.real().items():
        width = 1e-5 * np.sqrt(np.mean(array**2))
        along = directions(name, array.shape, seed=0)[:1]
        ahead = value(cfg, inputs.moved(name, width * along[0]))
        behind = value(cfg, inputs.moved(name, -width * along[0]))
        expected = np.sum(inputs.cotangent * (ahead - behind)) / (2 * width)
        # A central difference is wrong by its width squared, and by rounding over its width: relative 1e-10 and 1e-11.
        assert derivatives(cfg, inputs, name, along)[0] == pytest.approx(expected, rel=1e-7, abs=1e-7), name


def test_eight_directions_estimate_the_error_of_a_gradient():
    rng = np.random.default_rng(0)
    exact, error = rng.standard_normal((2, 7, 13, 17))
    along = directions("x", exact.shape, seed=0)
    derivative = np.array([np.sum(exact * direction) for direction in along])
    wrong = exact + 1e-3 * error * np.linalg.norm(exact) / np.linalg.norm(error)
    assert gradient_error(exact, along, derivative, 0.0) < 1e-14
    assert gradient_error(wrong, along, derivative, 0.0) == pytest.approx(1e-3, rel=0.5)
    assert norm(derivative) == pytest.approx(np.linalg.norm(exact), rel=0.5)
    assert gradient_error(np.where(exact > 3, np.nan, exact), along, derivative, 0.0) == inf
    assert gradient_error(np.zeros_like(exact), along, derivative, 0.0) == inf


def test_all_runs_every_variant_plain_padded_packed_and_reading():
    found = [
        (case.cfg.variant, case.cfg.reads if case.cfg.variant != "decoder" else None, case.arguments)
        for case in cases()
    ]
    for name in (*attn.VARIANTS, "decoder"):
        reads = BY_NAME[name].reads if name == "cross" else None
        for arguments in ((), ("valid",), ("segments",)):
            assert (name, reads, arguments) in found
        if name not in ("causal", "cross", "decoder"):
            assert (name, 31, ("valid",)) in found
    assert len(found) == len(set(found))


def test_one_variant_alone():
    assert {case.cfg.variant for case in cases("latent")} == {"latent"}
    text = (
        "variant must be one of self, cross, causal, multi_head, multi_query, grouped_query, latent, decoder; got 'no'."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        cases("no")


ROWS = (Row("y", "torch / jax", 1e-7, 4e-7), Row("gradient of x", "torch / jax", 3e-7, 4e-7))


def report(*rows, notes=()):
    return Report("self", "float32", ("valid",), 2, 11, 11, rows, notes)


def test_a_report_knows_its_worst_row():
    assert report(*ROWS).ok
    assert report(*ROWS).worst == ROWS[1]
    assert ROWS[1].ratio == 0.75


@pytest.mark.parametrize("error", [5e-7, inf])
def test_one_error_above_its_bound_is_one_too_many(error):
    wrong = report(*ROWS, Row("y", "jax / reference", error, 4e-7))
    assert not wrong.ok
    assert wrong.worst.comparison == "jax / reference"


def test_a_report_is_json():
    fields = json.loads(report(*ROWS, Row("y", "jax / reference", inf, 4e-7), notes=("one",)).to_json())
    assert fields["variant"] == "self"
    assert fields["ok"] is False
    assert fields["notes"] == ["one"]
    assert fields["rows"][0] == {
        "quantity": "y",
        "comparison": "torch / jax",
        "error": 1e-7,
        "bound": 4e-7,
        "ratio": 0.25,
        "ok": True,
    }
    assert fields["rows"][2]["error"] is None
    assert fields["rows"][2]["ratio"] is None


def shown(table) -> str:
    console = Console(file=StringIO(), width=120)
    console.print(table)
    return console.file.getvalue()


def test_a_report_is_a_table():
    text = shown(report(*ROWS, notes=("jax is missing",)))
    assert "self, float32, 11 queries, 11 keys, valid" in text
    assert re.search(r"gradient of x +│ torch / jax +│ 3\.0e-07 │ 4\.0e-07 │ +0\.75", text)
    assert "jax is missing" in text


def test_a_summary_has_the_worst_row_of_each_report():
    text = shown(summary([report(*ROWS, notes=("jax is missing",))] * 2))
    assert text.count("gradient of x") == 2
    assert "torch / jax" in text
    assert text.count("jax is missing") == 1


def test_parity_is_imported_without_a_framework():
    code = "import sys, attn.parity; print([name for name in ('torch', 'jax', 'rich') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
