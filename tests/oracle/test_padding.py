"""Law 10: padding and packing are exact. Each real token has the value that it has alone, and nothing else speaks."""

from itertools import product

import numpy as np
import pytest

import attn
from tests.cases import (
    CASES,
    READING,
    SHORTLIST,
    WITHIN,
    B,
    T,
    assert_close,
    decoder,
    draw,
    in_both,
    in_both_for,
    sides_of,
    weights_of,
)
from tests.twins import by_every_kernel


def marks(*rows: str) -> np.ndarray:
    return np.array([[mark == "1" for mark in row] for row in rows])


# Full, padded on the left, on the right, full of holes, and empty.
VALID = marks("11111111111", "....1111111", "1111111....", ".11.1..11.1", "...........")
CONTEXT_VALID = marks("1111111111111", "...1111111111", "11111........", "1.1..1.11...1", "......1......")
SEGMENTS = np.array(
    [
        [4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4],
        [4, 4, 4, 4, 7, 7, 7, 7, 7, 7, 7],
        [9, 4, 4, 4, 4, 4, 9, 9, 9, 9, 9],
        [1, 1, 2, 2, 1, 6, 1, 1, 3, 3, 1],
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
    ]
)


def padding(cfg) -> dict[str, np.ndarray]:
    """Which tokens are real, on each side that the config has."""
    return {"valid": VALID} if cfg.reads is None else {"valid": VALID, "context_valid": CONTEXT_VALID}


def runs_of(row: int) -> list[np.ndarray]:
    """The places of the valid tokens of each run of a row."""
    runs: list[list[int]] = []
    for t in np.flatnonzero(VALID[row]):
        if not runs or SEGMENTS[row, t] != SEGMENTS[row, runs[-1][-1]]:
            runs.append([])
        runs[-1].append(int(t))
    return [np.array(run) for run in runs]


def test_an_invalid_token_neither_begins_a_run_nor_ends_one():
    runs = [[run.tolist() for run in runs_of(row)] for row in range(B)]
    assert runs[2:] == [[[0], [1, 2, 3, 4, 5], [6]], [[1], [2], [4, 7], [8], [10]], []]


@in_both_for("name dtype", product(CASES, ["float64", "float32"]), [*product(SHORTLIST, ["float64"])])
def test_each_real_token_has_the_value_it_has_alone(twin, name, dtype):
    cfg, weights, sides = CASES[name], weights_of(CASES[name], dtype), sides_of(CASES[name], dtype)
    for y in by_every_kernel(twin, cfg, weights, *sides, **padding(cfg)).values():
        for row in range(B - 1):
            alone = [sides[0][row : row + 1, VALID[row]]]
            alone += [side[row : row + 1, CONTEXT_VALID[row]] for side in sides[1:]]
            assert_close(y[row, VALID[row]], attn.reference(cfg, weights, *alone)[0], cfg, dtype)
        np.testing.assert_array_equal(y[~VALID], 0)


@in_both_for("name", READING)
def test_each_side_may_be_padded_alone(twin, name):
    cfg, weights, (x, context) = CASES[name], weights_of(CASES[name]), sides_of(CASES[name])
    y = twin(cfg, weights, x, context, context_valid=CONTEXT_VALID)
    for row in range(B):
        assert_close(y[row], attn.reference(cfg, weights, x[row][None], context[row][None, CONTEXT_VALID[row]])[0])
    y = twin(cfg, weights, x, context, valid=VALID)
    expected = attn.reference(cfg, weights, x, context)
    assert_close(y[VALID], expected[VALID])
    np.testing.assert_array_equal(y[~VALID], 0)


@in_both_for("name", WITHIN)
def test_each_packed_sequence_has_the_value_it_has_alone(twin, name):
    cfg, weights, (x,) = CASES[name], weights_of(CASES[name]), sides_of(CASES[name])
    for y in by_every_kernel(twin, cfg, weights, x, segments=SEGMENTS, valid=VALID).values():
        for row in range(B):
            for run in runs_of(row):
                assert_close(y[row, run], attn.reference(cfg, weights, x[row, run][None])[0])
        np.testing.assert_array_equal(y[~VALID], 0)


@in_both_for("name", WITHIN)
def test_packing_needs_no_padding(twin, name):
    cfg, weights, (x,) = CASES[name], weights_of(CASES[name]), sides_of(CASES[name])
    numbers = np.array([1, 1, 2, 2, 1, 1, 3, 3, 3, 3, 1])
    for y in by_every_kernel(twin, cfg, weights, x, segments=numbers).values():
        for run in ([0, 1], [2, 3], [4, 5], [6, 7, 8, 9], [10]):
            assert_close(y[:, run], attn.reference(cfg, weights, x[:, run]))


@in_both_for("name", READING)
def test_packed_sequences_read_the_context_of_their_own_number(twin, name):
    cfg, weights, (x, context) = CASES[name], weights_of(CASES[name]), sides_of(CASES[name])
    ours, theirs = np.array([4] * 3 + [7] * 8), np.array([7] * 6 + [4] * 7)
    y = twin(cfg, weights, x, context, segments=ours, context_segments=theirs)
    for number in (4, 7):
        alone = attn.reference(cfg, weights, x[:, ours == number], context[:, theirs == number])
        assert_close(y[:, ours == number], alone)


@in_both_for("name", CASES)
@pytest.mark.parametrize("planted", [np.nan, np.inf])
def test_nothing_reaches_a_real_token_from_an_invalid_one(twin, name, planted):
    cfg, weights, sides = CASES[name], weights_of(CASES[name]), sides_of(CASES[name])
    masks = (VALID, CONTEXT_VALID)[: len(sides)]
    clean, dirty = (
        by_every_kernel(
            twin,
            cfg,
            weights,
            *(np.where(m[..., None], s, what) for s, m in zip(sides, masks, strict=True)),
            **padding(cfg),
        )
        for what in (0, planted)
    )
    for kernel, y in clean.items():
        np.testing.assert_array_equal(dirty[kernel], y)


FIRST_MOVED = [("grouped_query", "float64")]


@in_both_for("name dtype", product(["cross", "grouped_query", "latent"], ["float64", "float32"]), FIRST_MOVED)
def test_an_invalid_token_moves_nothing_and_is_not_moved(twin, name, dtype):
    cfg, weights, sides = CASES[name], weights_of(CASES[name], dtype), sides_of(CASES[name], dtype)
    masks = dict(zip(("x", "context"), (VALID, CONTEXT_VALID), strict=True))
    filled = [
        [np.where(m[..., None], s, what).astype(dtype) for s, m in zip(sides, masks.values(), strict=False)]
        for what in (0, np.nan)
    ]
    direction = draw(*twin(cfg, weights, *sides, **padding(cfg)).shape, seed=9, dtype=dtype)
    for kernel in by_every_kernel(twin, cfg, weights, *sides, **padding(cfg)):
        options = {"kernel": kernel}
        clean, dirty = (
            twin.gradients(cfg, weights, direction, *given, **padding(cfg), options=options) for given in filled
        )
        for of, gradient in clean.items():
            np.testing.assert_array_equal(dirty[of], gradient, err_msg=f"{kernel}: {of}")
            if of in masks:
                np.testing.assert_array_equal(gradient[~masks[of]], 0)
        # A direction at padded outputs alone is no direction at all.
        nowhere = np.where(VALID[..., None], 0, direction).astype(dtype)
        for of, gradient in twin.gradients(cfg, weights, nowhere, *filled[1], **padding(cfg), options=options).items():
            np.testing.assert_array_equal(gradient, 0, err_msg=f"{kernel}: {of}")


@in_both_for("name", CASES)
def test_one_row_of_marks_stands_for_every_row(twin, name):
    cfg, weights, sides = CASES[name], weights_of(CASES[name]), sides_of(CASES[name])
    row = {argument: mask[3] for argument, mask in padding(cfg).items()}
    tiled = {argument: np.tile(mask, (B, 1)) for argument, mask in row.items()}
    np.testing.assert_array_equal(twin(cfg, weights, *sides, **row), twin(cfg, weights, *sides, **tiled))


@in_both_for("name", CASES)
def test_attention_weights_of_invalid_tokens_are_zero(twin, name):
    cfg, weights, sides = CASES[name], weights_of(CASES[name]), sides_of(CASES[name])
    seen = twin(cfg, weights, *sides, **padding(cfg), method="attention_weights")
    np.testing.assert_array_equal(seen.transpose(0, 2, 1, 3)[~VALID], 0)
    keys = VALID if cfg.reads is None else CONTEXT_VALID
    np.testing.assert_array_equal(seen.transpose(0, 3, 1, 2)[~keys], 0)


@in_both
@pytest.mark.parametrize("packed", [False, True])
def test_a_model_gives_each_real_token_what_it_gives_it_alone(twin, packed):
    cfg = decoder(norm=attn.NormConfig(kind="layer"), learned_positions=T)
    weights = weights_of(cfg)
    tokens = np.random.default_rng(0).integers(0, cfg.vocab_size, (B, T))
    # What stands at an invalid token does not matter, even if it is in no vocabulary.
    tokens[~VALID] = 10**6
    rows = {"valid": VALID, "segments": SEGMENTS} if packed else {"valid": VALID}
    y = twin(cfg, weights, tokens, **rows)
    for row in range(B - 1):
        for run in runs_of(row) if packed else [np.flatnonzero(VALID[row])]:
            assert_close(y[row, run], attn.reference(cfg, weights, tokens[row, run][None])[0])
    np.testing.assert_array_equal(y[~VALID], 0)
