"""The metric and the bound, in literal numbers."""

import re
from math import inf, nan, sqrt

import ml_dtypes
import numpy as np
import pytest

import attn
from attn.tolerance import bound, by_row, floors, row_error, summed

MULTI_HEAD = attn.MultiHeadAttentionConfig(input_dim=256, heads=8)
LATENT = attn.MultiHeadLatentAttentionConfig(input_dim=13, heads=3, kv_lora_rank=7, dim_k=15, dim_v=33)
DECODER = attn.DecoderConfig(
    vocab_size=23,
    layers=3,
    attention=attn.MultiHeadAttentionConfig(input_dim=13, heads=3, dim_k=15, dim_v=33, mask=attn.Causal()),
    mlp=attn.MLPConfig(input_dim=13, hidden_dim=29),
)


@pytest.mark.parametrize(
    ("actual", "expected", "error"),
    [
        ([[3, 4], [6, 8]], [[3, 4], [6, 8]], 0),
        ([[3, 4.5], [6, 8]], [[3, 4], [6, 8]], 0.1),
        ([[3, 4.5], [6, 9]], [[3, 4], [6, 8]], 0.1),
        ([[3, 4.5], [6, 10]], [[3, 4], [6, 8]], 0.2),
        # A large row does not hide what happens in a small one.
        ([[1000, 0], [1, 0.5]], [[1000, 0], [1, 0]], 0.5),
        # A vector is one row, and so is a number.
        ([3, 5], [3, 4], 0.2),
        (5, 4, 0.25),
        (np.zeros((3, 0)), np.zeros((3, 0)), 0),
    ],
)
def test_an_error_is_relative_to_its_own_row(actual, expected, error):
    assert row_error(np.array(actual, float), np.array(expected, float)) == pytest.approx(error, abs=1e-15)


@pytest.mark.parametrize(
    ("last", "moved", "error"),
    [
        # The other rows' norms are 2, 4 and 6: with a small last one the median is 3, its thousandth 0.003.
        (0.0031, 0.0062, 1.0),
        (0.0029, 0.0058, 0.0029 / 3),
        # A row of zeros does not count in the median, which is 4.
        (0.0, 0.5, 0.125),
    ],
)
def test_a_tiny_row_is_measured_against_the_median(last, moved, error):
    others = [[2, 0], [0, 4], [6, 0]]
    assert row_error(np.array([*others, [last, 0]]), np.array([*others, [last, 0]])) == 0
    assert row_error(np.array([*others, [moved, 0]]), np.array([*others, [last, 0]])) == pytest.approx(error)


def test_a_floor_is_the_least_that_an_error_is_measured_against():
    actual, expected = np.array([[3, 5.0], [0, 0.5]]), np.array([[3, 4.0], [0, 0]])
    assert row_error(actual, expected, floor=2.0) == 0.25
    assert row_error(actual, expected, floor=10.0) == 0.1
    assert row_error(actual, expected, floor=0.0) == inf
    assert row_error(actual, expected, floor=np.array([10.0, 2.0])) == 0.25
    assert row_error(actual[None], expected[None], floor=np.array([[10.0, 5.0]])) == 0.1


def test_where_only_zeros_are_expected_nothing_else_will_do():
    zeros = np.zeros((2, 3))
    assert row_error(zeros, zeros) == 0
    assert row_error(zeros + 1e-30, zeros) == inf


@pytest.mark.parametrize(
    ("actual", "expected", "error"),
    [
        ([[nan, 4], [3, 4]], [[nan, 4], [3, 4]], 0),
        ([[nan, 5], [3, 4]], [[nan, 4], [3, 4]], 0.25),
        ([[inf, 5], [3, 4]], [[inf, 4], [3, 4]], 0.25),
        ([[nan, 4], [3, 4]], [[0, 4], [3, 4]], inf),
        ([[0, 4], [3, 4]], [[nan, 4], [3, 4]], inf),
        ([[4, nan], [3, 4]], [[nan, 4], [3, 4]], inf),
        ([[inf, 4], [3, 4]], [[0, 4], [3, 4]], inf),
        ([[0, 4], [3, 4]], [[inf, 4], [3, 4]], inf),
        ([[-inf, 4], [3, 4]], [[inf, 4], [3, 4]], inf),
        ([[nan, 4], [3, 4]], [[inf, 4], [3, 4]], inf),
    ],
)
def test_what_is_not_finite_must_be_the_same_on_both_sides(actual, expected, error):
    assert row_error(np.array(actual), np.array(expected)) == error


def test_half_types_are_widened_before_they_are_compared():
    actual = np.array([[1.0, 2.0]], ml_dtypes.bfloat16)
    assert row_error(actual, np.array([[1.0, 2.0 + 2**-20]])) == pytest.approx(2**-20 / sqrt(5), rel=1e-5)


def test_another_shape_is_refused_and_not_broadcast():
    text = "actual has shape (2, 1); expected (2, 3), the shape of the expected array."
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        row_error(np.zeros((2, 1)), np.zeros((2, 3)))


def test_a_row_of_a_kernel_is_what_one_input_feeds():
    gradients = {"x": np.zeros((2, 3, 13))} | {name: np.zeros(shape) for name, shape in LATENT.shapes().items()}
    rows = {name: array.shape for name, array in by_row(LATENT, gradients).items()}
    assert rows == {
        "x": (2, 3, 13),
        "q.kernel": (13, 15),
        "kv_down.kernel": (13, 7),
        "k_up.kernel": (7, 15),
        "v_up.kernel": (7, 33),
        "out.kernel": (33, 13),
    }
    biased = attn.SelfAttentionConfig(input_dim=3, dim_k=5, bias=True)
    assert by_row(biased, {"q.bias": np.zeros((1, 5))})["q.bias"].shape == (5,)


def test_a_gradient_that_vanishes_is_measured_against_what_it_is_part_of():
    kernel, noise = np.array([[3.0, 4.0], [6.0, 8.0], [9.0, 12.0]]), np.array([1e-7, 0.0])
    gradients = {"k.kernel": kernel, "k.bias": noise, "q.kernel": 7 * kernel, "x": kernel / 5}
    exact = {name: float(np.linalg.norm(array)) for name, array in gradients.items()} | {"k.bias": 1e-16}
    assert floors(gradients, exact) == {"k.kernel": 10.0, "k.bias": 10.0, "q.kernel": 70.0, "x": 2.0}
    # Over a single key the whole part is noise. The rows of the rest have norms 1, 2, 3, 35, 70, 105.
    gradients |= {"k.kernel": kernel * 1e-9}
    assert floors(gradients, exact | {"k.kernel": 1e-15})["k.kernel"] == 19.0


def test_a_bias_is_one_more_row_of_its_kernel():
    gradients = {"q.kernel": np.array([[3.0, 4.0], [6.0, 8.0]]), "q.bias": np.array([60.0, 80.0])}
    exact = {name: float(np.linalg.norm(array)) for name, array in gradients.items()}
    assert floors(gradients, exact) == {"q.kernel": 10.0, "q.bias": 10.0}


@pytest.mark.parametrize(
    ("cfg", "S", "total"),
    [
        (MULTI_HEAD, 128, 256 + 32 + 128 + 128 + 256),
        (LATENT, 19, 13 + 7 + 5 + 19 + 19 + 33),
        (attn.SelfAttentionConfig(input_dim=13, dim_k=5, dim_v=7), 19, 13 + 5 + 19 + 19),
        (attn.CrossAttentionConfig(input_dim=13, context_dim=17, dim_k=5), 19, 17 + 5 + 19 + 19),
        (DECODER, 11, (13 + 5 + 11 + 11 + 33) + (13 + 29) + 13),
    ],
)
def test_the_length_of_all_sums_follows_from_the_layout(cfg, S, total):
    assert summed(cfg, S) == total


@pytest.mark.parametrize(
    ("dtype", "gradient", "expected"),
    [
        ("float32", False, 6 * 2.0**-24 + 2 * sqrt(800) * 2.0**-24),
        ("float32", True, 12 * 2.0**-24 + 2 * sqrt(1600 + 3 * 128) * 2.0**-24),
        ("bfloat16", False, 6 * 2.0**-8 + 2 * sqrt(800) * 2.0**-24),
        ("float16", False, 6 * 2.0**-11 + 2 * sqrt(800) * 2.0**-24),
        ("float64", False, 1e-12),
        ("float64", True, 1e-12),
    ],
)
def test_the_bound(dtype, gradient, expected):
    assert bound(MULTI_HEAD, 128, 128, dtype, gradient, batch=3) == pytest.approx(expected, rel=1e-12)


def test_the_bound_in_round_numbers():
    assert f"{bound(MULTI_HEAD, 128, 128, 'float32'):.1e}" == "3.7e-06"
    assert f"{bound(MULTI_HEAD, 128, 128, 'bfloat16'):.1e}" == "2.3e-02"


def test_a_latent_rounds_once_more():
    assert bound(LATENT, 11, 19, "float32") == pytest.approx((7 + 2 * sqrt(96)) * 2.0**-24, rel=1e-12)


def test_a_weight_gradient_is_summed_over_the_longer_side():
    cfg = MULTI_HEAD.replace(context_dim=64)
    expected = (12 + 2 * sqrt(2 * (256 + 32 + 2 * 19 + 256) + 2 * 19)) * 2.0**-24
    assert bound(cfg, 11, 19, "float32", True, batch=2) == pytest.approx(expected, rel=1e-12)
    assert bound(cfg, 23, 19, "float32", True, batch=2) > expected


def test_depth_multiplies_by_its_square_root():
    assert bound(DECODER, 11, 11, "float32", depth=3) == pytest.approx(sqrt(3) * (16 + 2 * sqrt(128)) * 2.0**-24)


def test_a_dtype_without_a_bound_is_refused():
    text = "dtype must be one of float64, float32, float16, bfloat16; got 'int8'."
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        bound(MULTI_HEAD, 1, 1, "int8")
