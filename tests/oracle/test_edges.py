"""The edges of a call: nothing to read, nothing to ask, what is said of padding, and a bias that hides."""

from itertools import product

import ml_dtypes
import numpy as np
import pytest

import attn
from attn.tolerance import bound, row_error
from tests.cases import H, M, assert_close, draw, in_both, in_both_for, refused, weights_of
from tests.twins import by_every_kernel

OPTIONS = {
    "nothing": {},
    "sinks": {"sinks": True},
    "softcap": {"softcap": 2.0},
    "causal": {"mask": {"kind": "causal"}},
    "window": {"mask": {"kind": "sliding_window", "width": 3}},
    "alibi": {"position_bias": {"kind": "alibi"}},
    "t5": {"position_bias": {"kind": "t5"}},
    "rope": {"rope": {"kind": "default"}},
    "dynamic": {"rope": {"kind": "dynamic", "factor": 2.0, "original_length": 3}},
    "longrope": {
        "rope": {"kind": "longrope", "factor": 4.0, "original_length": 3}
        | {"short_factor": [1.0, 1.5, 2.0], "long_factor": [2.0, 3.0, 5.0]}
    },
}
T = 9
VALID = np.array([[False, False, *[True] * 7], [*[True] * 6, False, True, False]])


def config(options: str, **more) -> attn.MultiHeadAttentionConfig:
    return attn.MultiHeadAttentionConfig(input_dim=M, heads=H, dim_k=6 * H, dim_v=5 * H, **(OPTIONS[options] | more))


@in_both_for("options queries keys", product(OPTIONS, (0, 5), (None, 0, 4)), [("sinks", 0, None), ("dynamic", 5, 0)])
def test_no_tokens_are_as_good_as_any(twin, options, queries, keys):
    reading = {} if keys is None else {"context_dim": M}
    cfg, sides = config(options, **reading), [draw(2, n, M) for n in (queries, keys) if n is not None]
    expected = attn.reference(cfg, weights_of(cfg), *sides)
    assert expected.shape == (2, queries, M)
    for y in by_every_kernel(twin, cfg, weights_of(cfg), *sides).values():
        assert_close(y, expected)


@in_both
def test_no_tokens_have_no_segments(twin):
    cfg, none = config("sinks", mask={"kind": "causal"}), np.zeros((2, 0), int)
    assert twin(cfg, weights_of(cfg), draw(2, 0, M), segments=none).shape == (2, 0, M)
    cache = twin.init_cache(cfg, 2, T)
    rows, x = np.array([[4, 4, 7]] * 2), draw(2, 3, M)
    first, cache = twin(cfg, weights_of(cfg), x, segments=rows, cache=cache)
    y, cache = twin(cfg, weights_of(cfg), draw(2, 0, M), segments=none, cache=cache)
    assert y.shape == (2, 0, M)
    more, _ = twin(cfg, weights_of(cfg), x[:, :2], segments=rows[:, 2:].repeat(2, 1), cache=cache)
    whole = {"segments": np.array([[4, 4, 7, 7, 7]] * 2)}
    expected = attn.reference(cfg, weights_of(cfg), np.concatenate([x, x[:, :2]], 1), **whole)
    assert_close(np.concatenate([first, more], 1), expected)


@in_both
@pytest.mark.parametrize("dtype", [pytest.param("uint8", marks=pytest.mark.full), "uint16", "uint32"])
def test_a_position_may_be_of_any_integer_type_beside_padding(twin, dtype):
    cfg, x = config("rope"), draw(2, T, M)
    given = {"valid": VALID, "positions": np.arange(T, dtype=dtype)}
    expected = attn.reference(cfg, weights_of(cfg), x, **given)
    assert_close(twin(cfg, weights_of(cfg), x, **given), expected)


@in_both
@pytest.mark.parametrize("options", ["rope", "dynamic", "longrope"])
@pytest.mark.parametrize("first", [pytest.param(8000, marks=pytest.mark.full), 1_000_000])
def test_far_positions_are_turned_by_in_full_digits(twin, options, first):
    cfg, x = config(options), draw(2, T, M, dtype="float32")
    weights, positions = weights_of(cfg, "float32"), first + 3 * np.arange(T)
    for more in ({}, {"valid": VALID}):
        expected = attn.reference(cfg, weights, x, positions=positions, **more)
        assert_close(twin(cfg, weights, x, positions=positions, **more), expected, cfg, "float32")


@in_both
@pytest.mark.parametrize("options", ["rope", pytest.param("dynamic", marks=pytest.mark.full)])
@pytest.mark.parametrize("compiled", [False, True])
def test_the_position_of_padding_does_not_matter(twin, options, compiled):
    cfg, x = config(options, mask={"kind": "causal"}), draw(2, T, M)
    given = np.where(VALID, np.arange(T), -1)
    given[0, 0] = 2**30
    expected = attn.reference(cfg, weights_of(cfg), x, valid=VALID, positions=np.where(VALID, np.arange(T), 5))
    assert_close(attn.reference(cfg, weights_of(cfg), x, valid=VALID, positions=given), expected)
    assert_close(twin(cfg, weights_of(cfg), x, valid=VALID, positions=given, compiled=compiled), expected)
    with refused("positions must lie between 0 and 1048575; got -1."):
        twin(cfg, weights_of(cfg), x, positions=np.where(VALID, np.arange(T), -1))


@in_both
def test_the_position_of_padding_moves_nothing(twin):
    cfg, x, direction = config("rope"), draw(2, T, M), draw(2, T, M, seed=1)
    given = [np.where(VALID, np.arange(T), number) for number in (-1, 5)]
    found, expected = (
        twin.gradients(cfg, weights_of(cfg), direction, x, valid=VALID, positions=positions) for positions in given
    )
    for name, gradient in expected.items():
        assert_close(found[name], gradient)


@in_both
def test_what_a_bias_says_of_padding_does_not_matter(twin):
    cfg, x, direction = config("sinks"), draw(2, T, M), draw(2, T, M, seed=1)
    bias = np.broadcast_to(draw(1, H, T, T, seed=2), (2, H, T, T)).copy()
    clean = attn.reference(cfg, weights_of(cfg), x, valid=VALID, bias=bias)
    for row, valid in enumerate(VALID):
        bias[row, :, ~valid] = np.nan
        bias[row, :, :, ~valid] = np.nan
    for y in by_every_kernel(twin, cfg, weights_of(cfg), x, valid=VALID, bias=bias).values():
        assert_close(y, clean)
    found = twin.gradients(cfg, weights_of(cfg), direction, x, valid=VALID, bias=bias)
    assert all(np.isfinite(gradient).all() for gradient in found.values())


@in_both_for("options", ["nothing", "sinks", "softcap", "alibi"], ["nothing"])
def test_a_bias_of_minus_infinity_hides(twin, options):
    cfg, x, direction = config(options), draw(2, T, M), draw(2, T, M, seed=1)
    hidden = np.random.default_rng(0).random((T, T)) < 0.4
    hidden[3] = True
    bias = np.where(hidden, -np.inf, draw(T, T, seed=2))
    expected = attn.reference(cfg, weights_of(cfg), x, bias=np.where(hidden, 0, bias), allowed=~hidden)
    assert_close(attn.reference(cfg, weights_of(cfg), x, bias=bias), expected)
    for y in by_every_kernel(twin, cfg, weights_of(cfg), x, bias=bias).values():
        assert_close(y, expected)
    found = twin.gradients(cfg, weights_of(cfg), direction, x, bias=bias)
    told = twin.gradients(cfg, weights_of(cfg), direction, x, bias=np.where(hidden, 0, bias), allowed=~hidden)
    for name, gradient in told.items():
        assert_close(found[name], gradient)


LOWEST = float(np.finfo("float32").min)


@in_both
@pytest.mark.parametrize("options", [pytest.param("nothing", marks=pytest.mark.full), "sinks"])
def test_a_very_low_bias_hides_nothing(twin, options):
    cfg, x = config(options), draw(2, T, M, dtype="float32")
    weights = weights_of(cfg, "float32")
    weights |= {name: array - np.float32(np.inf) for name, array in weights.items() if name == "sinks"}
    bias, allowed = np.zeros((T, T), "float32"), np.ones((T, T), bool)
    bias[2:5], bias[3, 4], allowed[4, 5:] = LOWEST, -np.inf, False
    expected = attn.reference(cfg, weights, x, bias=bias, allowed=allowed)
    assert np.abs(expected[:, 2:5]).min() > 0
    for y in by_every_kernel(twin, cfg, weights, x, bias=bias, allowed=allowed).values():
        assert_close(y, expected, cfg, "float32")


@in_both
def test_a_sink_of_minus_infinity_is_none(twin):
    cfg, x, direction = config("sinks"), draw(2, T, M), draw(2, T, M, seed=1)
    weights, allowed = weights_of(cfg), np.arange(T)[:, None] != 2
    allowed = allowed & np.ones(T, bool)
    weights["sinks"][::2] = -np.inf
    expected = attn.reference(cfg, weights, x, allowed=allowed)
    for y in by_every_kernel(twin, cfg, weights, x, allowed=allowed).values():
        assert_close(y, expected)
    every = by_every_kernel(twin, cfg, weights, direction, x, allowed=allowed, compute=twin.gradients)
    for found in every.values():
        for name, gradient in every["plain"].items():
            assert_close(found[name], gradient)
    assert not every["plain"]["sinks"][::2].any()


@in_both
@pytest.mark.parametrize(("dtype", "large"), [("float16", 70000.0), ("bfloat16", 1000.3)])
def test_a_bias_is_added_to_buckets_in_its_own_digits(twin, dtype, large):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    cfg, x = config("t5"), draw(2, T, M, dtype="float32").astype(kind)
    weights = {name: array.astype(kind) for name, array in weights_of(cfg).items()}
    bias = (large + draw(T, T, seed=3)).astype("float32")
    exact = {name: array.astype(float) for name, array in weights.items()}
    expected = attn.reference(cfg, exact, x.astype(float), bias=bias)
    y = twin(cfg, weights, x, bias=bias).astype(float)
    assert row_error(y, expected) < 2 * bound(cfg, T, T, dtype)


def test_jax_refuses_a_bias_that_it_would_round():
    jax, attn_jax = pytest.importorskip("jax"), pytest.importorskip("attn_jax")
    cfg, x = config("nothing"), draw(2, T, M, dtype="float32")
    with jax.enable_x64(False):
        variables = attn_jax.from_neutral(cfg, weights_of(cfg, "float32"))
        with refused("bias needs jax_enable_x64, without which JAX rounds it; got dtype float64."):
            attn_jax.build(cfg).apply(variables, x, bias=np.zeros((T, T)))
