"""The edges of a call: nothing to read, nothing to ask, what is said of padding, and a bias that hides."""

from itertools import product

import numpy as np
import pytest

import attn
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
