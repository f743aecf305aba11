"""The twins against one another at lengths where the reference would take too long, and what they leave behind."""

import re

import numpy as np
import pytest

import attn
from attn.parity import draw
from attn.parity.founding import FOUNDING, X
from attn.tolerance import bound, by_row, floors, row_error

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

import attn_jax.gradients  # noqa: E402  PyTorch comes first: after JAX its import can crash the process
import attn_torch.gradients  # noqa: E402

BY_NAME = {cfg.variant: cfg for cfg in FOUNDING}
READING = BY_NAME["grouped_query"].replace(context_dim=X)


def both(cfg, dtype, queries, keys=None, arguments=()):
    inputs = draw(cfg, dtype, batch=2, queries=queries, keys=keys, seed=0, arguments=arguments)
    return [twin.value_and_gradients(cfg, *inputs, dtype) for twin in (attn_torch.gradients, attn_jax.gradients)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("cfg", "queries", "keys", "arguments"),
    [
        (BY_NAME["causal"], 127, None, ()),
        (READING, 67, 131, ("valid", "segments", "positions")),
        pytest.param(READING, 131, 67, ("valid", "allowed", "bias"), marks=pytest.mark.full),
        pytest.param(BY_NAME["latent"], 257, None, ("segments",), marks=pytest.mark.full),
        pytest.param(BY_NAME["multi_query"], 193, None, ("positions",), marks=pytest.mark.full),
        pytest.param(BY_NAME["decoder"], 101, None, ("valid",), marks=pytest.mark.full),
    ],
    ids=lambda value: getattr(value, "variant", None),
)
def test_long_sequences(cfg, queries, keys, arguments, dtype):
    (y, gradients), (expected_y, expected) = both(cfg, dtype, queries, keys, arguments)
    S, depth = keys or queries, getattr(cfg, "layers", 1)
    assert row_error(y, expected_y) <= bound(cfg, queries, S, dtype, False, depth, batch=2)
    gradients, expected = by_row(cfg, gradients), by_row(cfg, expected)
    least = floors(expected, {name: float(np.linalg.norm(array.astype(float))) for name, array in expected.items()})
    limit = bound(cfg, queries, S, dtype, True, depth, batch=2)
    assert list(gradients) == list(expected)
    errors = {name: row_error(gradient, expected[name], least[name]) for name, gradient in gradients.items()}
    # Without the reference nothing tells what vanishes exactly; without rope the gradient of k.bias does.
    assert {name: error for name, error in errors.items() if error > limit} == {}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_values_and_gradients_keep_the_dtype(dtype):
    for y, gradients in both(BY_NAME["causal"], dtype, 5, arguments=("bias",)):
        assert {str(array.dtype) for array in (y, *gradients.values())} == {dtype}
        shapes = {"x": (2, 5, 29), "bias": (1, 1, 5, 5), **BY_NAME["causal"].shapes()}
        assert {name: array.shape for name, array in gradients.items()} == shapes


def test_a_tensor_that_is_not_used_has_a_gradient_of_zeros():
    cfg = attn.DecoderConfig(
        vocab_size=23,
        layers=1,
        attention=attn.CausalAttentionConfig(input_dim=13),
        mlp=attn.MLPConfig(input_dim=13, hidden_dim=7),
        tied=False,
        learned_positions=19,
    )
    for _, gradients in both(cfg, "float32", 5):
        assert (gradients["positions.embedding"][5:] == 0).all()
        assert (gradients["positions.embedding"][:5] != 0).all()


def test_settings_are_given_back():
    torch.set_float32_matmul_precision("high")
    try:
        attn_torch.gradients.matmul_error()
        both(BY_NAME["causal"], "float64", 5)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert not jax.config.jax_enable_x64
    assert jax.config.jax_default_matmul_precision is None


def test_products_are_set_to_their_highest_precision():
    with attn_torch.gradients.precise("float32"):
        assert torch.get_float32_matmul_precision() == "highest"
    with attn_jax.gradients.precise("float32"):
        assert jax.config.jax_default_matmul_precision == "highest"
        assert not jax.config.jax_enable_x64
    with attn_jax.gradients.precise("float64"):
        assert jax.config.jax_enable_x64


def test_a_compiler_option_that_is_not_known_is_left_out():
    assert not attn_jax.gradients._is_known("xla_no_such_option", 1)
    assert attn_jax.gradients._is_known("xla_backend_optimization_level", 0)


def test_a_wrong_call_is_refused_by_both_in_the_same_words():
    cfg = BY_NAME["causal"]
    inputs = draw(cfg, "float32", batch=2, queries=5, keys=None, seed=0, arguments=())
    for twin in (attn_torch.gradients, attn_jax.gradients):
        with pytest.raises(ValueError, match=re.escape("x has shape (2, 5, 28); expected [B T M] with M=29.")):
            twin.value_and_gradients(cfg, *inputs._replace(x=inputs.x[..., :-1]), "float32")
