"""Every option with every other: twins and reference under the bound, over a covering array and beyond it."""

import re
from collections.abc import Iterable
from functools import partial
from random import Random
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from attn.masks import Mask
from attn.parity import Inputs, Row
from attn.parity.directions import derivatives, directions, gradient_error, value
from attn.parity.typical import typical
from attn.rope import AnyRope
from attn.tolerance import bound, by_row, row_error
from attn.variants import VARIANTS
from attn.variants.scored import PositionBias
from tests.arguments import lengths_of
from tests.covering import covering_array, pairs
from tests.factors import FACTORS, NEUTRAL, OPTIONS, Case, config_of, inputs_of, refusal
from tests.factors import VARIANTS as KINDS

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

import attn_jax.gradients  # noqa: E402  PyTorch comes first: after JAX its import can crash the process
import attn_torch.gradients  # noqa: E402

GRADIENTS = {"torch": attn_torch.gradients, "jax": attn_jax.gradients}
ARRAY = covering_array()
FIRST = 10
"""The cases of the first tier: those that cover the most."""


def compared(case: Case, seed: int = 0) -> list[Row]:
    """Output, gradients of inputs, gradients of weights: each twin with the reference, and the twins."""
    cfg, inputs, (B, T, S), dtype = config_of(case), inputs_of(case, seed), lengths_of(case), case["dtype"]
    found = {}
    for twin in GRADIENTS:
        kernel = case[f"{twin}_kernel"]
        y, gradients = gradients_of(twin, cfg, inputs, dtype, None if kernel == "default" else kernel)
        assert {str(array.dtype) for array in (y, *gradients.values())} == {dtype}
        found[twin] = y, gradients
    limit = {of: bound(cfg, T, S, dtype, of, batch=B) for of in (False, True)}
    least = typical(cfg, attn_torch.gradients, partial(inputs_of, case), seed)
    exact, rows = value(cfg, inputs), []
    for twin, (y, _) in found.items():
        rows.append(Row("y", f"{twin} / reference", row_error(y, exact), limit[False]))
    for name, array in inputs.real().items():
        along = directions(name, array.shape, seed)
        expected = derivatives(cfg, inputs, name, along)
        for twin, (_, gradients) in found.items():
            error = gradient_error(gradients[name], along, expected, least[name])
            rows.append(Row(f"gradient of {name}", f"{twin} / reference", error, limit[True]))
    rows.append(Row("y", "torch / jax", row_error(found["torch"][0], found["jax"][0]), limit[False]))
    for name, gradient in found["torch"][1].items():
        error = row_error(gradient, found["jax"][1][name], least[name])
        rows.append(Row(f"gradient of {name}", "torch / jax", error, limit[True]))
    return rows


def gradients_of(twin: str, cfg, inputs: Inputs, dtype: str, kernel: str | None) -> tuple[np.ndarray, dict]:
    """y, and the gradients by row."""
    y, gradients = GRADIENTS[twin].value_and_gradients(cfg, *inputs, dtype, kernel)
    return y, by_row(cfg, gradients)


def named(case: Case) -> str:
    """What a case asks for beyond the first level of each factor."""
    return "-".join(level for factor, level in case.items() if level != NEUTRAL[factor]).replace(" ", "")


def assert_alike(case: Case, seed: int = 0) -> None:
    rows = compared(case, seed)
    assert {(row.quantity, row.comparison): row.ratio for row in rows if not row.error <= row.bound} == {}
    quantities = {"y", *(f"gradient of {name}" for name in inputs_of(case, seed).real())}
    assert len(rows) == 3 * len(quantities)
    assert {row.quantity for row in rows} == quantities


FOUND: list[Case] = [
    # A segment's number that comes back in a context begins another run, of another length.
    {"rope": "dynamic", "context": "as_long", "segments": "some"},
    # Where no query sees anything, no gradient is typical.
    {"allowed": "T S", "size": "1 x 1"},
]
"""What once was wrong, as small as it could be made."""


@pytest.mark.parametrize("levels", FOUND, ids=named)
def test_what_was_wrong_once_stays_right(levels):
    assert_alike(NEUTRAL | levels)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{place}-{named(case)}", marks=pytest.mark.full if place >= FIRST else ())
        for place, case in enumerate(ARRAY.cases)
    ],
)
def test_twins_and_reference_compute_the_same(case):
    assert_alike(case)


# The array itself.


def test_every_pair_that_can_be_is_covered(record_property):
    first = ARRAY.cases[:FIRST]
    record_property("summary", f"covering: {ARRAY}; the first tier runs {len(first)}, {ARRAY.covered(first)} pairs")
    for reason, count in ARRAY.reasons().most_common():
        print(f"{count} pairs: {reason}")
    for (factor, level), reason in ARRAY.absent.items():
        print(f"{factor}={level}: {reason}")
    assert ARRAY.covered(ARRAY.cases) == len(ARRAY.possible)
    levels = {factor: sum((factor, level) not in ARRAY.absent for level in FACTORS[factor]) for factor in FACTORS}
    every = (sum(levels.values()) ** 2 - sum(count**2 for count in levels.values())) // 2
    assert len(ARRAY.possible) + len(ARRAY.impossible) == every
    assert not ARRAY.possible & ARRAY.impossible.keys()
    assert {factor for factor, _ in ARRAY.absent} <= {"jax_kernel", "torch_kernel"}
    assert all(refusal(case) is None for case in ARRAY.cases)


def test_the_array_is_drawn_from_a_seed():
    assert covering_array.__wrapped__() == ARRAY
    assert covering_array.__wrapped__(1).cases != ARRAY.cases


@pytest.mark.parametrize("draws", [3_000, pytest.param(50_000, marks=pytest.mark.full)])
def test_what_is_called_impossible_is_never_met(draws):
    rng, met = Random(0), set()
    for _ in range(draws):
        case = {factor: rng.choice(levels if rng.random() < 0.4 else levels[:1]) for factor, levels in FACTORS.items()}
        if refusal(case) is None:
            met |= set(pairs(case))
    assert not met & ARRAY.impossible.keys()
    assert not {level for pair in met for level in pair} & ARRAY.absent.keys()
    assert len(met) > 0.7 * len(ARRAY.possible)


def kinds_in(fields: Iterable[Any]) -> set[str]:
    """The kinds that are named anywhere in these fields."""
    found = set()
    for field in fields:
        if isinstance(field, dict):
            found |= ({field["kind"]} if "kind" in field else set()) | kinds_in(field.values())
        elif isinstance(field, list):
            found |= kinds_in(field)
    return found


def test_the_table_names_every_variant_rule_rope_and_field():
    assert {kind for kind, _ in KINDS.values()} == set(VARIANTS.values())
    for factor, union in (("rule", Mask), ("rope", AnyRope), ("position_bias", PositionBias)):
        kinds = {kind.model_fields["kind"].default for kind in get_args(get_args(union)[0])}
        assert kinds_in(OPTIONS[factor].values()) | {"full"} >= kinds, factor
    varied = {name for levels in OPTIONS.values() for fields in levels.values() for name in fields}
    varied |= {name for _, fields in KINDS.values() for name in fields} | {"bias", "dim_k", "dim_v"}
    # Dropout is random: its laws are tested elsewhere.
    assert {name for kind in VARIANTS.values() for name in kind.model_fields} - varied == {"variant", "dropout"}


def test_what_the_table_of_kernels_refuses_a_call_refuses():
    refused = 0
    for pair, reason in ARRAY.impossible.items():
        case = NEUTRAL | dict(pair)
        if "torch_kernel" in dict(pair) and " cannot run this call: " in reason and refusal(case) == reason:
            refused += 1
            with pytest.raises(ValueError, match=re.escape(reason)):
                torch_alone(case)
    assert refused > 10


def torch_alone(case: Case):
    cfg, kernel = config_of(case), case["torch_kernel"]
    return GRADIENTS["torch"].value_and_gradients(cfg, *inputs_of(case), case["dtype"], kernel)


# Beyond the array.


@st.composite
def drawn_cases(draw) -> Case:
    """Any levels in any size, each taken where the others let it stand; simple ones first."""
    wanted = {factor: draw(st.sampled_from(levels)) for factor, levels in FACTORS.items() if factor != "size"}
    B, T = draw(st.integers(1, 3)), draw(st.integers(1 if wanted["dtype"] == "float64" else 7, 13))
    case = NEUTRAL | {"size": f"{B} x {T}"}
    # Twice: what one level needs may come after it.
    for factor, level in [*wanted.items()] * 2:
        case |= {factor: level} if refusal(case | {factor: level}) is None else {}
    return case


def explored(examples: int):
    """Hypothesis on cases with their seeds. Each smaller case would be compiled anew: the first that fails is shown."""
    within = settings(max_examples=examples, phases=(Phase.explicit, Phase.generate))
    return lambda test: within(given(drawn_cases(), st.integers(0, 2**16))(test))


def assert_close_at_least(case: Case, seed: int) -> None:
    """Everything in float64. In float32 all but the twins' gradients row by row.

    Where a query sees two keys and is all but certain of one, its gradients are small differences of large numbers; a
    case in which all that see anything are of this kind has no typical row to measure float32's rounding against.
    """
    rows = [row for row in compared(case, seed) if case["dtype"] == "float64" or not by_rows(row)]
    assert {(row.quantity, row.comparison): row.ratio for row in rows if not row.error <= row.bound} == {}


def by_rows(row: Row) -> bool:
    return row.comparison == "torch / jax" and row.quantity != "y"


@explored(2)
def test_any_case_is_alike(case, seed):
    assert_close_at_least(case, seed)


@pytest.mark.full
@explored(150)
def test_many_cases_are_alike(case, seed):
    assert_close_at_least(case, seed)
