import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tests.cases import RULES

QUERIES, KEYS = np.arange(9, dtype=np.int32)[:, None], np.arange(11, dtype=np.int32)[None, :]
every = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


@every
def test_one_text_says_the_same_in_numpy_jax_and_torch(rule):
    expected = rule.allows(QUERIES, KEYS)
    in_jax = rule.allows(jnp.array(QUERIES), jnp.array(KEYS))
    in_torch = rule.allows(torch.from_numpy(QUERIES), torch.from_numpy(KEYS))
    assert (in_jax.dtype, in_torch.dtype) == (bool, torch.bool)
    np.testing.assert_array_equal(in_jax, expected)
    np.testing.assert_array_equal(in_torch, expected)


@every
def test_the_reach_is_the_same_in_numpy_jax_and_torch(rule):
    low, high = np.array([0, 3, 7], np.int32), np.array([2, 6, 8], np.int32)
    expected = rule.reach(low, high)
    in_jax = rule.reach(jnp.array(low), jnp.array(high))
    in_torch = rule.reach(torch.from_numpy(low), torch.from_numpy(high))
    for bound in (0, 1):
        np.testing.assert_array_equal(in_jax[bound], expected[bound])
        np.testing.assert_array_equal(in_torch[bound], expected[bound])
        assert (in_jax[bound].dtype, in_torch[bound].dtype) == (jnp.int32, torch.int32)
