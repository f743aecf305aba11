"""Laws 1 to 3, each said by a sentence and held by both twins: what True means, positions, windows."""

from itertools import product

import numpy as np
import pytest

import attn
from tests.cases import (
    CASES,
    CAUSAL,
    READING,
    WITHIN,
    B,
    M,
    S,
    T,
    assert_close,
    draw,
    in_both_for,
    keys_of,
    refused,
    sides_of,
    under,
    weights_of,
)
from tests.twins import TWINS, by_every_kernel

FULL = {"kind": "full"}
FIRST_SHAPES = [("grouped_query", "B H T S"), ("multi_head_reading", "B T S"), ("latent", "T S")]
every = in_both_for("name", CASES)
every_within = in_both_for("name", WITHIN)
every_reading = in_both_for("name", READING)


def seen_by(twin, cfg, **call) -> np.ndarray:
    """How much each query attends to each key, [B H T S]."""
    return twin(cfg, weights_of(cfg), *sides_of(cfg), method="attention_weights", **call)


def assert_sees(weights: np.ndarray, expected: np.ndarray) -> None:
    """Exactly these keys have a weight, and the weights of a query that sees any add up to 1."""
    np.testing.assert_array_equal(weights > 0, np.broadcast_to(expected, weights.shape))
    np.testing.assert_allclose(weights.sum(-1), np.broadcast_to(expected.any(-1), weights.shape[:-1]), atol=1e-12)


# Law 1: True means that a query may attend, and that a token is real.


@in_both_for("name axes", product(CASES, ["T S", "B T S", "1 1 T S", "B H T S", "B 1 T S", "1 H T S"]), FIRST_SHAPES)
def test_true_means_may_attend(twin, name, axes):
    cfg = under(FULL, name)
    sizes = {"B": B, "H": cfg.heads, "1": 1, "T": T, "S": keys_of(cfg)}
    # Every query may see one key, each row and head another.
    shape = [sizes[axis] for axis in axes.split()]
    chosen = np.random.default_rng(0).integers(0, np.arange(1, T + 1), shape[:-1])
    allowed = np.arange(sizes["S"]) == chosen[..., None]
    expected = allowed[:, None] if allowed.ndim == 3 else allowed
    seen = seen_by(twin, cfg, allowed=allowed)
    np.testing.assert_array_equal(seen, np.broadcast_to(expected, seen.shape))


@every_within
def test_the_upper_triangle_as_allowed_shows_the_future(twin, name):
    if name != "causal":
        assert_sees(
            seen_by(twin, under(FULL, name), allowed=np.triu(np.ones((T, T), bool))), np.triu(np.ones((T, T))) > 0
        )


@every
def test_true_means_a_real_token(twin, name):
    cfg = under(FULL, name)
    real = np.arange(keys_of(cfg)) == 3
    seen = seen_by(twin, cfg, **{"valid" if cfg.reads is None else "context_valid": real})
    expected = np.outer(real, real) if cfg.reads is None else np.tile(real, (T, 1))
    np.testing.assert_array_equal(seen, np.tile(expected, (B, cfg.heads, 1, 1)))


@pytest.mark.parametrize("dtype", ["int32", "float32", "uint8"])
@pytest.mark.parametrize("argument", ["allowed", "valid", "context_valid"])
def test_a_mask_of_numbers_is_refused(argument, dtype):
    cfg = CASES["multi_head_reading"]
    shape = {"allowed": (T, S), "valid": (B, T), "context_valid": (B, S)}[argument]
    for run in (*TWINS, attn.reference):
        with refused(f"{argument} has dtype {dtype}; expected bool."):
            run(cfg, weights_of(cfg), *sides_of(cfg), **{argument: np.ones(shape, dtype)})


@pytest.mark.parametrize("dtype", ["bool", "int32"])
def test_a_bias_of_no_floats_is_refused(dtype):
    cfg = CASES["multi_head"]
    for run in (*TWINS, attn.reference):
        with refused(f"bias has dtype {dtype}; expected float64 or float32 or bfloat16 or float16."):
            run(cfg, weights_of(cfg), *sides_of(cfg), bias=np.ones((T, T), dtype))


# Law 2: rules compare positions, never indices.


PATTERNS = {
    "causal": (CAUSAL, lambda q, k: k <= q),
    "window": ({"kind": "sliding_window", "width": 4}, lambda q, k: (k <= q) & (k > q - 4)),
    "both_sides": ({"kind": "sliding_window", "width": 3, "symmetric": True}, lambda q, k: abs(k - q) <= 2),
    "chunks": ({"kind": "chunked", "width": 5}, lambda q, k: (k <= q) & (k // 5 == q // 5)),
}


@in_both_for("name pattern", product(READING, PATTERNS), [("multi_head_reading", "window")])
def test_a_rule_compares_positions_where_queries_and_keys_differ_in_number(twin, name, pattern):
    mask, allows = PATTERNS[pattern]
    rng = np.random.default_rng(0)
    for q, k in (
        (np.arange(T), np.arange(S)),
        (np.arange(T) + 2, np.arange(S)),
        (rng.integers(0, 15, (B, T)), rng.integers(0, 15, (B, S))),
    ):
        seen = seen_by(twin, under(mask, name), positions=q, context_positions=k)
        expected = allows(np.broadcast_to(q, (B, T))[:, None, :, None], np.broadcast_to(k, (B, S))[:, None, None, :])
        assert_sees(seen, expected)


CORNERS = [
    ([2, 3], [0, 1, 2, 3], ["1110", "1111"]),
    ([7], [0, 1, 2, 3, 4, 5, 6, 7], ["11111111"]),
    (None, [0, 1], ["10", "11", "11", "11"]),
    ([0, 1, 2, 3], None, ["10", "11", "11", "11"]),
]


@in_both_for("queries keys expected", CORNERS, CORNERS[:1])
def test_a_query_at_p_sees_the_keys_up_to_p_and_no_corner_is_special(twin, queries, keys, expected):
    cfg = attn.CrossAttentionConfig(input_dim=M, mask=CAUSAL, bias=True)
    written = np.array([[mark == "1" for mark in row] for row in expected])
    rows = {"positions": queries, "context_positions": keys}
    rows = {name: np.array(row) for name, row in rows.items() if row is not None}
    sides = draw(1, len(expected), M), draw(1, len(expected[0]), M, seed=1)
    weights = weights_of(cfg)
    assert_sees(twin(cfg, weights, *sides, method="attention_weights", **rows), written)
    # And so does every kernel: what may be seen, written out, changes nothing.
    plain = twin(cfg.replace(mask=FULL), weights, *sides, allowed=written)
    for y in by_every_kernel(twin, cfg, weights, *sides, **rows).values():
        assert_close(y, plain)


@every_within
def test_tokens_may_come_in_any_order_if_their_positions_come_along(twin, name):
    cfg, (x,) = CASES[name], sides_of(CASES[name])
    rng = np.random.default_rng(0)
    positions = rng.permuted(np.tile(np.arange(T) * 2 + 1500, (B, 1)), axis=1)
    order = rng.permuted(np.tile(np.arange(T), (B, 1)), axis=1)
    y = twin(cfg, weights_of(cfg), x, positions=positions)
    shuffled = np.take_along_axis(x, order[..., None], 1), np.take_along_axis(positions, order, 1)
    for mixed in by_every_kernel(twin, cfg, weights_of(cfg), shuffled[0], positions=shuffled[1]).values():
        assert_close(mixed, np.take_along_axis(y, order[..., None], 1))


@every_within
def test_only_the_distance_of_two_positions_counts(twin, name):
    cfg, sides = CASES[name], sides_of(CASES[name])
    y = twin(cfg, weights_of(cfg), *sides)
    for shifted in by_every_kernel(twin, cfg, weights_of(cfg), *sides, positions=np.arange(T) + 1500).values():
        assert_close(shifted, y)


@every_within
def test_a_default_position_counts_the_valid_tokens_before_it_in_its_segment(twin, name):
    cfg, sides = CASES[name], sides_of(CASES[name])
    valid = np.array([0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1], bool)
    segments = np.array([8, 5, 5, 6, 5, 2, 2, 2, 2, 5, 5])
    positions = np.array([0, 0, 1, 2, 2, 0, 1, 2, 2, 0, 1])
    call = {"valid": valid, "segments": segments}
    y = twin(cfg, weights_of(cfg), *sides, **call)
    assert_close(twin(cfg, weights_of(cfg), *sides, **call, positions=positions), y)
    assert_close(attn.reference(cfg, weights_of(cfg), *sides, **call, positions=positions), y)


@every_within
def test_a_segment_is_a_run_of_equal_numbers(twin, name):
    cfg = under(FULL, name)
    numbers = np.array([4, 4, 7, 7, 7, 4, 4, 4, 9, 9, 9])
    runs = np.array([0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3])
    expected = runs[:, None] == runs[None]
    assert_sees(seen_by(twin, cfg, segments=numbers), np.tril(expected) if name == "causal" else expected)
    # An invalid token neither begins a run nor ends one.
    valid = np.arange(T) != 5
    numbers[5] = 1
    expected = expected & valid & valid[:, None]
    seen = seen_by(twin, cfg, segments=numbers, valid=valid)
    assert_sees(seen, np.tril(expected) if name == "causal" else expected)


@every_reading
def test_across_two_sequences_equal_numbers_belong_together(twin, name):
    ours, theirs = np.array([4, 4, 7, 7, 7, 4, 4, 4, 9, 9, 9]), np.array([7, 7, 4, 4, 4, 4, 1, 1, 9, 9, 4, 4, 4])
    assert_sees(seen_by(twin, CASES[name], segments=ours, context_segments=theirs), ours[:, None] == theirs[None])


@in_both_for("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"], ["int8", "uint32"])
def test_every_integer_type_counts_the_same(twin, dtype):
    cfg, sides = CASES["grouped_query"].replace(mask={"kind": "sliding_window", "width": 4}), sides_of(CASES["self"])
    rows = {"positions": np.arange(T)[::-1], "segments": np.array([4, 4, 7, 7, 7, 4, 4, 4, 9, 9, 9])}
    y = twin(cfg, weights_of(cfg), *sides, **rows)
    assert_close(twin(cfg, weights_of(cfg), *sides, **{name: row.astype(dtype) for name, row in rows.items()}), y)
    assert_close(attn.reference(cfg, weights_of(cfg), *sides, **{n: row.astype(dtype) for n, row in rows.items()}), y)


@every_within
def test_no_token_sees_the_future(twin, name):
    cfg = CASES[name] if CASES[name].rule.causal else under(CAUSAL, name)
    (x,) = sides_of(cfg)
    other = np.concatenate([x[:, :4], draw(B, T - 4, M, seed=7)], 1)
    before, after = (by_every_kernel(twin, cfg, weights_of(cfg), side) for side in (x, other))
    for kernel, y in before.items():
        np.testing.assert_array_equal(y[:, :4], after[kernel][:, :4])
        assert (y[:, 4:] != after[kernel][:, 4:]).all()


@every
def test_rows_of_a_batch_do_not_mix(twin, name):
    cfg, sides = CASES[name], sides_of(CASES[name])
    other = [np.concatenate([side[:2], draw(B - 2, *side.shape[1:], seed=7)]) for side in sides]
    before, after = (twin(cfg, weights_of(cfg), *given) for given in (sides, other))
    np.testing.assert_array_equal(before[:2], after[:2])
    assert (before[2:] != after[2:]).all()


# Law 3: a window of W counts the query itself.


def value_of(cfg, weights, x) -> np.ndarray:
    """y of a query that attends to itself alone: its own value, through `out`."""
    if cfg.variant == "latent":
        x = x @ weights["kv_down.kernel"] + weights["kv_down.bias"]
    v = "v_up" if cfg.variant == "latent" else "v"
    value = np.tensordot(x, weights[f"{v}.kernel"], 1) + weights[f"{v}.bias"]
    value = np.repeat(value, cfg.heads // cfg.kv_heads, axis=2)
    if "out.kernel" not in weights:
        return value.reshape(*x.shape[:2], -1)
    return np.tensordot(value, weights["out.kernel"], 2) + weights["out.bias"]


@every_within
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_window_of_1_sees_only_itself(twin, name, symmetric):
    if name == "causal":
        pytest.skip("its rule is fixed")
    cfg = under({"kind": "sliding_window", "width": 1, "symmetric": symmetric}, name)
    np.testing.assert_array_equal(seen_by(twin, cfg), np.tile(np.eye(T), (B, cfg.heads, 1, 1)))
    for y in by_every_kernel(twin, cfg, weights_of(cfg), *sides_of(cfg)).values():
        assert_close(y, value_of(cfg, weights_of(cfg), *sides_of(cfg)))
