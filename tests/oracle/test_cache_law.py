"""Law 11: full = prefill + steps = any split into chunks, padded and packed, whatever the rule."""

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
    S,
    T,
    assert_close,
    decoder,
    draw,
    in_both,
    in_both_for,
    refused,
    sides_of,
    under,
    weights_of,
)

LAWFUL = {name: under(CAUSAL, name) for name in ("self", "causal", "multi_head", "grouped_query", "latent")}
LAWFUL |= {
    "window": CASES["multi_query"],
    "wide_window": under({"kind": "sliding_window", "width": T + 2}, "grouped_query"),
    "chunks": under({"kind": "chunked", "width": 5}, "grouped_query"),
    "latent_window": under({"kind": "sliding_window", "width": 3}, "latent"),
    "window_and_chunks": under(
        {"kind": "all", "of": [{"kind": "sliding_window", "width": 3}, {"kind": "chunked", "width": 5}]}, "multi_query"
    ),
    "window_or_chunks": under(
        {"kind": "any", "of": [{"kind": "sliding_window", "width": 2}, {"kind": "chunked", "width": 4}]}, "multi_head"
    ),
    "decoder": decoder(learned_positions=2 * T),
}
"""Every mechanism and every rule under which nothing sees the future."""

FORMS = ["plain", "ragged", "packed", "ragged and packed"]
FIRST = [("grouped_query", "ragged and packed", "float64"), ("latent", "plain", "float64")]

SPLITS = [[T], [1] * T, [4, 4, 3], [3, 1, 1, 6]]
"""At once, step by step, and in between."""

RAGGED = np.array(
    [[mark == "1" for mark in row] for row in ("1" * 11, "....1111111", "1111111....", ".11.1..11.1", "....1......")]
)
PACKED = np.array(
    [
        [4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4],
        [4, 4, 4, 4, 7, 7, 7, 7, 7, 7, 7],
        [9, 4, 4, 4, 4, 4, 9, 9, 9, 9, 9],
        [1, 1, 2, 2, 1, 6, 1, 1, 3, 3, 1],
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
    ]
)


def rows_of(form: str) -> dict[str, np.ndarray]:
    """What is said of the tokens."""
    ragged = {"valid": RAGGED} if "ragged" in form else {}
    return ragged | ({"segments": PACKED} if "packed" in form else {})


def tokens_of(cfg, dtype: str = "float64") -> np.ndarray:
    if cfg.variant == "decoder":
        return np.random.default_rng(0).integers(0, cfg.vocab_size, (B, T))
    return sides_of(cfg, dtype)[0]


def in_chunks(twin, cfg, x, split, cache=None, dtype="float64", **rows) -> np.ndarray:
    """What a module says of x piece by piece."""
    weights, pieces, start = weights_of(cfg, dtype), [], 0
    cache = twin.init_cache(cfg, len(x), x.shape[1], dtype) if cache is None else cache
    for length in split:
        piece = slice(start, start := start + length)
        given = {name: row[:, piece] for name, row in rows.items()}
        y, cache = twin(cfg, weights, x[:, piece], **given, cache=cache, compiled=twin.name == "jax")
        pieces.append(y)
    counted = np.asarray(rows.get("valid", np.ones(x.shape[:2], bool)))[:, :start].sum(1)
    np.testing.assert_array_equal(np.asarray(cache.length), counted)
    return np.concatenate(pieces, 1)


@in_both_for("name form dtype", product(LAWFUL, FORMS, ["float64", "float32"]), FIRST)
def test_any_split_says_what_the_whole_says(twin, name, form, dtype):
    cfg, rows = LAWFUL[name], rows_of(form)
    x = tokens_of(cfg, dtype)
    expected = attn.reference(cfg, weights_of(cfg, dtype), x, **rows)
    for split in SPLITS if twin.name == "torch" else SPLITS[1:3]:
        assert_close(in_chunks(twin, cfg, x, split, dtype=dtype, **rows), expected, cfg, dtype)


RANDOM = product(["causal", "window", "chunks", "latent_window", "decoder"], range(5))


@in_both_for("name seed", RANDOM, ())
def test_so_does_a_random_split_of_random_rows(twin, name, seed):
    cfg, rng = LAWFUL[name], np.random.default_rng(seed)
    rows = {"valid": rng.random((B, T)) < 0.7, "segments": np.cumsum(rng.random((B, T)) < 0.3, 1) % 3}
    cuts = np.sort(rng.choice(np.arange(1, T), rng.integers(0, T), replace=False))
    split = np.diff([0, *cuts, T]).tolist()
    expected = attn.reference(cfg, weights_of(cfg), tokens_of(cfg), **rows)
    assert_close(in_chunks(twin, cfg, tokens_of(cfg), split, **rows), expected)


@in_both_for("name", LAWFUL, ["window"])
def test_a_padded_row_is_kept_as_it_would_be_alone(twin, name):
    # Invalid tokens take no slot: a cache of 6 holds the 6 real ones of row 3, whatever stands between them.
    cfg = LAWFUL[name]
    x, valid = tokens_of(cfg)[3:4], RAGGED[3:4]
    cache = twin.init_cache(cfg, 1, 6)
    y = in_chunks(twin, cfg, x, [4, 4, 3], cache, valid=valid)
    assert_close(y[valid], attn.reference(cfg, weights_of(cfg), x[valid][None])[0])


@in_both_for("name", ["causal", "grouped_query", "latent"], ["grouped_query"])
def test_positions_that_are_given_stay_with_their_tokens(twin, name):
    cfg = LAWFUL[name]
    positions = np.arange(T) + np.arange(B)[:, None] + 1500
    expected = attn.reference(cfg, weights_of(cfg), tokens_of(cfg), positions=positions)
    assert_close(in_chunks(twin, cfg, tokens_of(cfg), [4, 4, 3], positions=positions), expected)


@in_both_for("name", ["causal", "grouped_query", "latent"], ["grouped_query"])
def test_what_is_allowed_spans_the_slots_of_the_cache(twin, name):
    cfg, x = LAWFUL[name], tokens_of(LAWFUL[name])
    allowed, bias = np.random.default_rng(0).random((T, T)) < 0.6, draw(T, T, seed=5)
    expected = attn.reference(cfg, weights_of(cfg), x, allowed=allowed, bias=bias)
    cache, pieces = twin.init_cache(cfg, B, T), []
    for piece in (slice(0, 4), slice(4, 8), slice(8, T)):
        given = {"allowed": allowed[piece], "bias": bias[piece]}
        y, cache = twin(cfg, weights_of(cfg), x[:, piece], cache=cache, **given, compiled=twin.name == "jax")
        pieces.append(y)
    assert_close(np.concatenate(pieces, 1), expected)


@in_both_for("name", READING)
def test_a_context_is_read_once(twin, name):
    cfg, weights, (x, context) = CASES[name], weights_of(CASES[name]), sides_of(CASES[name])
    expected = attn.reference(cfg, weights, x, context)
    cache = twin.init_cache(cfg, B, T, context_length=S)
    first, cache = twin(cfg, weights, x[:, :4], context, cache=cache, compiled=twin.name == "jax")
    second, cache = twin(cfg, weights, x[:, 4:8], cache=cache, compiled=twin.name == "jax")
    third, cache = twin(cfg, weights, x[:, 8:], cache=cache, compiled=twin.name == "jax")
    assert_close(np.concatenate([first, second, third], 1), expected)


@in_both_for("name", ["grouped_query", "window", "latent", "decoder"], ["grouped_query"])
def test_a_copy_goes_its_own_way(twin, name):
    cfg, x = LAWFUL[name], tokens_of(LAWFUL[name])
    other = np.concatenate([x[:, :4], x[:, :3:-1]], 1)
    cache = twin(cfg, weights_of(cfg), x[:, :4], cache=twin.init_cache(cfg, B, T), compiled=twin.name == "jax")[1]
    branch = cache.copy()
    for way, kept in ((x, cache), (other, branch)):
        y, pieces = None, []
        for piece in (slice(4, 8), slice(8, T)):
            y, kept = twin(cfg, weights_of(cfg), way[:, piece], cache=kept, compiled=twin.name == "jax")
            pieces.append(y)
        assert_close(np.concatenate(pieces, 1), attn.reference(cfg, weights_of(cfg), way)[:, 4:])


@in_both_for("name", ["grouped_query", "latent", "causal"], ["grouped_query"])
def test_a_cache_is_rewound_to_what_it_was(twin, name):
    cfg, x, lengths = LAWFUL[name], tokens_of(LAWFUL[name]), np.arange(B) % 4 + 2
    weights, compiled = weights_of(cfg), twin.name == "jax"
    cache = twin(cfg, weights, x[:, :6], cache=twin.init_cache(cfg, B, T), compiled=compiled)[1]
    kept, back = cache.copy(), cache.rewind(twin.array(lengths))
    assert_close(np.asarray(back.length), lengths)
    other = np.roll(x, 3, axis=1)[:, :5]
    y, back = twin(cfg, weights, other, cache=back, compiled=compiled)
    for row, length in enumerate(lengths):
        whole = np.concatenate([x[row : row + 1, :length], other[row : row + 1]], 1)
        assert_close(y[row : row + 1], attn.reference(cfg, weights, whole)[:, length:])
    y, _ = twin(cfg, weights, x[:, 6:], cache=kept, compiled=compiled)
    assert_close(y, attn.reference(cfg, weights, x)[:, 6:])
    if twin.name == "torch":
        # Both would write into the same slots.
        with refused("cache must be the one that the last call returned; got one that a call has consumed."):
            cache.rewind(1)
        with refused("cache must be the one that the last call returned; got one that a call has consumed."):
            twin(cfg, weights, x[:, 6:], cache=cache)


@in_both
def test_a_slot_that_was_not_written_is_not_read(twin):
    # A kernel that multiplies what it should not see by 0 would be found out by large numbers.
    cfg, x = LAWFUL["grouped_query"], tokens_of(LAWFUL["grouped_query"])
    clean, dirty = (twin.init_cache(cfg, B, T) for _ in range(2))
    for store in dirty.stores:
        for kept in list(store):
            store[kept] = twin.filled(store[kept], 1e4)
    split = [4, 4, 3]
    np.testing.assert_array_equal(in_chunks(twin, cfg, x, split, dirty), in_chunks(twin, cfg, x, split, clean))


@in_both
@pytest.mark.parametrize("name", ["grouped_query", "decoder"])
def test_a_cache_that_would_overflow_is_refused(twin, name):
    cfg, x, weights = LAWFUL[name], tokens_of(LAWFUL[name]), weights_of(LAWFUL[name])
    cache = twin(cfg, weights, x[:, :4], cache=twin.init_cache(cfg, B, 6), compiled=twin.name == "jax")[1]
    with refused("cache has 6 slots a row; got 7 tokens in row 0."):
        twin(cfg, weights, x[:, 4:7], cache=cache)
    # Only real tokens count; and what was refused has changed nothing.
    valid = np.array([[1, 0, 1], [0, 1, 0], [1, 1, 0], [1, 1, 1], [0, 0, 0]], bool)
    with refused("cache has 6 slots a row; got 7 tokens in row 3."):
        twin(cfg, weights, x[:, 4:7], cache=cache, valid=valid)
    y, cache = twin(cfg, weights, x[:, 4:6], cache=cache, compiled=twin.name == "jax")
    assert_close(y, attn.reference(cfg, weights, x[:, :6])[:, 4:])
    with refused("cache has 6 slots a row; got 7 tokens in row 0."):
        twin(cfg, weights, x[:, 6:7], cache=cache)


@in_both
@pytest.mark.parametrize("name", ["grouped_query", "decoder"])
def test_a_cache_that_overflows_gives_nan_in_compiled_code(twin, name):
    cfg, x, weights = LAWFUL[name], tokens_of(LAWFUL[name]), weights_of(LAWFUL[name])
    valid = np.tile(np.array([1, 1, 1, 1, 0, 0], bool), (B, 1))
    valid[[1, 3]] = True
    y, _ = twin(cfg, weights, x[:, :6], cache=twin.init_cache(cfg, B, 5), valid=valid, compiled=True)
    assert np.isnan(y[[1, 3]]).all()
    expected = attn.reference(cfg, weights, x[:, :6], valid=valid)
    assert_close(y[[0, 2, 4]], expected[[0, 2, 4]])


@in_both
@pytest.mark.parametrize("name", [name for name in WITHIN if not CASES[name].rule.causal])
def test_a_rule_that_sees_the_future_has_no_cache(twin, name):
    with refused("mask must be causal to be cached; got 'full'."):
        twin.init_cache(CASES[name], B, T)


@in_both
@pytest.mark.parametrize(
    ("batch", "length", "text"),
    [(0, T, "batch must be at least 1; got 0."), (B, -1, "length must be at least 1; got -1.")],
)
def test_a_cache_of_no_size_is_refused(twin, batch, length, text):
    with refused(text):
        twin.init_cache(LAWFUL["grouped_query"], batch, length)


@in_both
def test_a_cache_of_another_batch_is_refused(twin):
    cfg = LAWFUL["grouped_query"]
    with refused(f"cache has {B + 1} rows; got a batch of {B}."):
        twin(cfg, weights_of(cfg), tokens_of(cfg), cache=twin.init_cache(cfg, B + 1, T))
