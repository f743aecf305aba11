"""T5's bias, looked up by distance: the right number for each pair, and gradients that keep their digits at length."""

import numpy as np
import pytest

from attn.tolerance import row_error
from tests.cases import draw

H, FAR = 2, 16


def in_jax(relative, q, k, direction):
    """The bias, and the gradient of the numbers."""
    import jax

    from attn_jax.functional import relative_bias

    with jax.enable_x64(relative.dtype == np.float64):
        bias, pull = jax.vjp(lambda relative: relative_bias(relative, q, k), relative)
        return np.array(bias), np.array(pull(direction)[0])


def in_torch(relative, q, k, direction):
    """The bias, and the gradient of the numbers."""
    import torch

    from attn_torch.functional import relative_bias

    relative, q, k, direction = map(torch.from_numpy, (relative, q, k, direction))
    bias = relative_bias(relative.requires_grad_(), q, k)
    return bias.detach().numpy(), torch.autograd.grad(bias, relative, direction)[0].numpy()


def written_out(relative, q, k, direction):
    """The same in numpy, in float64."""
    index = np.clip(k[:, None] - q[:, :, None], -FAR, FAR) + FAR
    counts = [np.bincount(index.ravel(), direction[:, h].ravel().astype(float), 2 * FAR + 1) for h in range(H)]
    return np.moveaxis(relative[:, index], 0, 1), np.array(counts)


@pytest.mark.parametrize("looked_up", [in_jax, in_torch])
@pytest.mark.parametrize(("rows", "T", "S"), [(1, 0, 3), (1, 1, 5), (2, 129, 257), (1, 300, 7)])
def test_each_pair_gets_the_number_of_its_distance(looked_up, rows, T, S):
    rng = np.random.default_rng(0)
    q, k = rng.integers(0, 60, (rows, T)), rng.integers(0, 60, (rows, S))
    call = draw(H, 2 * FAR + 1), q, k, draw(rows, H, T, S, seed=1)
    (bias, gradient), (expected, sums) = looked_up(*call), written_out(*call)
    np.testing.assert_array_equal(bias, expected)
    np.testing.assert_allclose(gradient, sums, atol=1e-11)


@pytest.mark.parametrize("looked_up", [in_jax, in_torch])
def test_the_sum_over_millions_of_pairs_keeps_its_digits(looked_up):
    # One sum after another over the keys that are far behind would be 4e-5 off.
    T = 2500
    index = np.arange(T)[None]
    call = draw(H, 2 * FAR + 1, dtype="float32"), index, index, draw(1, H, T, T, seed=1, dtype="float32")
    _, gradient = looked_up(*call)
    assert row_error(gradient.T, written_out(*call)[1].T) < 1e-5
