"""Law 10 where kernels cut blocks: padded or packed, each sequence has the values and gradients it has alone."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import pytest

from attn.kernels import FORMS
from attn.tolerance import bound, by_row, floors, row_error
from tests.cases import draw
from tests.factors import NEUTRAL, config_of, inputs_of
from tests.twins import TWINS

LENGTHS, CONTEXT_LENGTHS = (131, 67), (73, 137)
Placed = tuple[int, int, int]
"""Which sequence, where it begins, and how far apart its tokens are."""


class Layout(NamedTuple):
    """Rows of a batch, each a list of sequences at their places; the tokens between them are not real."""

    rows: tuple[tuple[Placed, ...], ...]
    lengths: tuple[int, ...]
    width: int

    def laid(self, sequences: list[np.ndarray], between: Any) -> np.ndarray:
        """The sequences at their places, and `between` everywhere else."""
        laid = np.full((len(self.rows), self.width, *sequences[0].shape[1:]), between, sequences[0].dtype)
        for row, number, tokens in self.places():
            laid[row, tokens] = sequences[number]
        return laid

    def places(self) -> Iterator[tuple[int, int, slice]]:
        """Each row, sequence, and slice of its tokens."""
        for row, placed in enumerate(self.rows):
            for number, first, step in placed:
                yield row, number, slice(first, first + step * self.lengths[number], step)


# Padded on the right; on the left; between all tokens. Then packed, with padding behind, before and between.
LAYOUTS = {
    "padded": (
        Layout((((0, 0, 1),), ((1, 70, 1),), ((1, 1, 2),)), LENGTHS, 137),
        Layout((((0, 1, 2),), ((1, 12, 1),), ((1, 0, 1),)), CONTEXT_LENGTHS, 149),
    ),
    "packed": (
        Layout((((0, 0, 1), (1, 131, 1)), ((1, 3, 1), (0, 79, 1))), LENGTHS, 211),
        Layout((((0, 0, 1), (1, 80, 1)), ((0, 7, 1), (1, 80, 1))), CONTEXT_LENGTHS, 223),
    ),
}
CONFIGS = {
    "causal": {"rule": "causal", "rope": "dynamic", "biases": "all"},
    "reading": {"variant": "multi_head", "context": "longer", "biases": "some", "widths": "values_wider"},
    "full": {"variant": "multi_query", "qk_norm": "layer"},
    "window": {"rule": "window", "sinks": "some", "position_bias": "alibi", "widths": "values_wider"},
    "symmetric_window": {"rule": "symmetric_window", "softcap": "some", "rope": "longrope", "gate": "headwise"},
    "chunked": {"variant": "self", "rule": "chunked", "position_bias": "t5", "sinks": "some"},
    "prefix": {"variant": "latent_in_full", "rule": "prefix", "rope": "yarn", "biases": "all"},
    "nested": {"variant": "multi_head", "rule": "nested", "position_bias": "alibi"},
    "causal_reading": {"rule": "causal", "context": "longer", "rope": "half", "sinks": "some"},
}
HERE = {"jax": {"steps", "blocks", "plain"}, "torch": {"blocks", "chunked", "sdpa_masked", "plain"}}
"""The kernels that run on a CPU and can read a mask."""


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "causal" else pytest.mark.full) for name in CONFIGS]
)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_every_kernel_gives_each_sequence_what_it_has_alone(twin, layout, name, dtype):
    cfg, (queries, keys) = config_of(NEUTRAL | CONFIGS[name]), LAYOUTS[layout]
    given = [inputs_of(NEUTRAL | CONFIGS[name] | {"dtype": dtype, "size": f"1 x {length}"}) for length in LENGTHS]
    weights = given[0].weights
    sides = {"x": (queries, [sequence.x[0] for sequence in given])}
    if cfg.reads is not None:
        contexts = [draw(length, cfg.reads, seed=length, dtype=dtype).astype(float) for length in CONTEXT_LENGTHS]
        sides["context"] = keys, contexts
    directions = [sequence.cotangent[0] for sequence in given]
    call = arguments(sides, layout == "packed")
    found = by_kernel(twin, cfg, weights, sides, call, queries.laid(directions, 1.0), dtype)
    assert found.keys() >= expected_kernels(twin, cfg, CONFIGS[name])
    alone = [alone_of(cfg, weights, n, sides, directions[n]) for n in range(2)]
    limits = [bound(cfg, queries.width, keys.width, dtype, gradient, batch=3) for gradient in (False, True)]
    for kernel, (y, gradients) in found.items():
        assert_outside_is_0(queries, y)
        for row, number, tokens in queries.places():
            assert row_error(y[row, tokens], alone[number][0][0]) <= limits[0], kernel
        assert_summed(cfg, sides, gradients, [gradients_alone for _, gradients_alone in alone], limits[1], kernel)


def expected_kernels(twin, cfg, levels) -> set[str]:
    lacking = {"blocks"} if "softcap" in levels or levels.get("position_bias") == "t5" else set()
    lacking |= {"sdpa_masked"} if {"softcap", "sinks"} & levels.keys() else set()
    forms = set(FORMS) if cfg.variant == "latent" else set()
    return HERE[twin.name] - (lacking if twin.name == "torch" else set()) | forms


def arguments(sides, packed: bool) -> dict[str, np.ndarray]:
    """Which tokens are real, and of which sequence; what stands between them has the number of one of them."""
    call = {}
    for side, (layout, sequences) in sides.items():
        prefix = "" if side == "x" else "context_"
        call[f"{prefix}valid"] = layout.laid([np.ones(len(sequence), bool) for sequence in sequences], False)
        if packed:
            numbers = [np.full(len(sequence), 4 + number, np.int32) for number, sequence in enumerate(sequences)]
            call[f"{prefix}segments"] = layout.laid(numbers, 4)
    return call


def by_kernel(twin, cfg, weights, sides, call, direction, dtype) -> dict[str, Any]:
    """y and the gradients by every kernel that can run the call; NaN stands wherever no token is real."""
    run, found = import_module(f"attn_{twin.name}.gradients").value_and_gradients, {}
    x, context = (sides[side][0].laid(sides[side][1], np.nan) if side in sides else None for side in ("x", "context"))
    for kernel in (*twin.kernels, *(FORMS if cfg.variant == "latent" else ())):
        try:
            found[kernel] = run(cfg, weights, x, context, call, direction, dtype, kernel)
        except ValueError as error:
            assert str(error).startswith(f"kernel {kernel!r} cannot run this call: ")  # noqa: PT017
    return found


def alone_of(cfg, weights, number: int, sides, direction) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """y and the gradients of one sequence, with nothing beside it and nothing said of it."""
    pytest.importorskip("torch")
    run = import_module("attn_torch.gradients").value_and_gradients
    x, context = (sides[side][1][number][None] if side in sides else None for side in ("x", "context"))
    return run(cfg, weights, x, context, {}, direction[None], "float64", "plain")


def assert_outside_is_0(layout: Layout, array: np.ndarray) -> None:
    real = layout.laid([np.ones(length, bool) for length in layout.lengths], False)
    np.testing.assert_array_equal(array[~real], 0)


def assert_summed(cfg, sides, gradients, alone, limit: float, kernel: str) -> None:
    """Each token has its own gradient, and each weight the sum of what every placed sequence gives it."""
    queries = sides["x"][0]
    times = [sum(number == placed for _, placed, _ in queries.places()) for number in range(2)]
    expected = {name: times[0] * alone[0][name] + times[1] * alone[1][name] for name in gradients if name not in sides}
    expected |= {side: layout.laid([each[side][0] for each in alone], 0.0) for side, (layout, _) in sides.items()}
    expected, gradients = by_row(cfg, expected), by_row(cfg, gradients)
    least = floors(expected, {name: float(np.linalg.norm(gradient)) for name, gradient in expected.items()})
    for side, (layout, _) in sides.items():
        assert_outside_is_0(layout, gradients[side])
    errors = {name: row_error(gradients[name], expected[name], least[name]) for name in expected}
    assert {name: error for name, error in errors.items() if error > limit} == {}, kernel
