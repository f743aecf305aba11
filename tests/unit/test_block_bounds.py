"""The bounds of the block kernel against every pair: what it leaves out is hidden, what it does not mask is seen."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("jax")

from attn.masks import Causal, Chunked, Full, Prefix, SlidingWindow
from attn_jax.kernels import blocks_bounds
from tests.cases import RULES


def plan_of(rule, keys, block_q, block_k, rows=1, **options):
    """A plan of which only the bounds are looked at."""
    settings = {"scale": 1.0, "softcap": None, "slopes": None, "dropout": 0.0, "by_index": True, "group": 1, "heads": 1}
    settings |= options
    return blocks_bounds.Plan(rule=rule, keys=keys, block_q=block_q, block_k=block_k, rows=rows, **settings)


def given_of(**arrays):
    """What a call brings along."""
    return blocks_bounds.Given(**dict.fromkeys(blocks_bounds.Given._fields) | arrays)


@pytest.mark.parametrize("name", RULES)
@given(ends=st.tuples(*[st.integers(0, 23)] * 4))
def test_two_ranges_touch_if_a_pair_is_allowed_and_are_covered_only_if_all_are(name, ends):
    rule, (a, b, c, d) = RULES[name], ends
    q, k = (min(a, b), max(a, b)), (min(c, d), max(c, d))
    pairs = rule.allows(np.arange(q[0], q[1] + 1)[:, None], np.arange(k[0], k[1] + 1))
    assert blocks_bounds.touches(rule, q, k) or not pairs.any()
    assert pairs.all() or not blocks_bounds.covers(rule, q, k)


COUNTS = {
    "full": (Full(), [4, 4, 4], [4, 4, 4]),
    "causal": (Causal(), [0, 1, 2], [2, 3, 4]),
    "window": (SlidingWindow(width=10), [0, 0, 0], [2, 3, 3]),
    "window of all": (SlidingWindow(width=64), [0, 1, 2], [2, 3, 4]),
    "both sides": (SlidingWindow(width=9, symmetric=True), [0, 0, 0], [2, 4, 2]),
    "chunks": (Chunked(width=24), [0, 0, 0], [2, 3, 2]),
    "prefix": (Prefix(length=12), [1, 1, 2], [2, 3, 4]),
    "window or chunks": (SlidingWindow(width=4) | Chunked(width=12), [0, 0, 0], [2, 2, 2]),
    "causal or both sides": (Causal() | SlidingWindow(width=28, symmetric=True), [2, 3, 4], [4, 4, 4]),
    "window and chunks": (SlidingWindow(width=20) & Chunked(width=24), [0, 0, 0], [2, 3, 2]),
}


@pytest.mark.parametrize("name", COUNTS)
def test_blocks_are_left_out_and_left_unmasked_as_counted_by_hand(name):
    # Three blocks of 16 queries and, because keys are narrower, blocks of 12 keys.
    rule, full, seen = COUNTS[name]
    bounds = blocks_bounds.bounds(plan_of(rule, 48, 16, 12), given_of(), 3, 4)
    assert (bounds.full[0].tolist(), bounds.seen[0].tolist()) == (full, seen)


def test_full_blocks_come_first_then_masked_ones_then_those_left_out():
    bounds = blocks_bounds.bounds(plan_of(SlidingWindow(width=30), 48, 8, 8), given_of(), 6, 6)
    assert bounds.order[0, 5].tolist() == [3, 4, 1, 2, 5, 0]
    assert (bounds.full[0, 5], bounds.seen[0, 5]) == (2, 5)


def test_the_keys_that_fill_up_the_last_block_are_always_masked():
    bounds = blocks_bounds.bounds(plan_of(Full(), 45, 16, 12), given_of(), 3, 4)
    assert (bounds.full[0].tolist(), bounds.seen[0].tolist()) == ([3, 3, 3], [4, 4, 4])
    assert bounds.order[0, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("rows", [1, 2])
@given(seed=st.integers(0, 999))
def test_no_pair_is_lost_and_none_is_added_whatever_a_call_brings(name, rows, seed):
    rng, rule, B, T, S = np.random.default_rng(seed), RULES[name], 4, 12, 20
    arrays = {"q_positions": rng.integers(0, 15, (B, T)), "k_positions": rng.integers(0, 15, (B, S)).cumsum(1) // 7}
    arrays |= {"q_valid": rng.random((B, T)) < 0.7, "k_valid": rng.random((B, S)) < 0.8}
    arrays |= {
        "q_segments": rng.integers(0, 3, (B, T)).cumsum(1) // 4,
        "k_segments": rng.integers(0, 3, (B, S)).cumsum(1) // 4,
    }
    arrays["allowed"] = rng.random((B, 1, 1, T, S)) < rng.choice([0.05, 1.0])
    plan = plan_of(rule, S, 4, 5, rows, by_index=False)
    bounds = blocks_bounds.bounds(plan, given_of(**arrays), 3, 4)
    pairs = rule.allows(arrays["q_positions"][:, :, None], arrays["k_positions"][:, None])
    pairs = pairs & arrays["k_valid"][:, None] & arrays["allowed"][:, 0, 0]
    pairs = pairs & (arrays["q_segments"][:, :, None] == arrays["k_segments"][:, None])
    real = arrays["q_valid"][:, :, None]
    for b in range(B):
        for i in range(3):
            order, full, seen = (table[b // rows, i] for table in bounds)
            assert sorted(order) == [0, 1, 2, 3]
            for place, j in enumerate(order):
                block = np.s_[b, 4 * i : 4 * i + 4, 5 * j : 5 * j + 5]
                assert place < seen or not (pairs & real)[block].any()
                assert place >= full or (pairs | ~real)[block].all()


ONE, MANY = True, False


@pytest.mark.parametrize(
    ("rule", "queries", "keys", "group", "by_index", "expected"),
    [
        (Causal(), 4096, 4096, 1, True, (1024, 256, MANY)),
        (Causal(), 1000, 1000, 1, True, (1000, 256, MANY)),
        (Causal(), 4096, 4096, 4, True, (256, 256, MANY)),
        (Causal(), 4096, 4096, 32, True, (64, 256, MANY)),
        (SlidingWindow(width=256), 8192, 8192, 1, True, (256, 512, ONE)),
        (SlidingWindow(width=256), 8192, 8192, 2, True, (128, 384, ONE)),
        (SlidingWindow(width=256), 8192, 8192, 1, False, (128, 128, MANY)),
        (SlidingWindow(width=256), 768, 768, 1, True, (128, 128, MANY)),
        (SlidingWindow(width=256, symmetric=True), 8192, 8192, 1, True, (256, 768, ONE)),
        (SlidingWindow(width=4096), 8192, 8192, 1, True, (1024, 256, MANY)),
        (SlidingWindow(width=128), 8192, 8192, 1, True, (128, 128, MANY)),
        (SlidingWindow(width=160) & Chunked(width=300), 1000, 1000, 1, True, (256, 416, ONE)),
        (Chunked(width=100), 1000, 1000, 1, True, (128, 128, MANY)),
        (Chunked(width=256), 8192, 8192, 1, True, (128, 128, MANY)),
        (Full(), 129, 31, 1, True, (72, 32, MANY)),
        (Full(), 1, 1, 1, True, (8, 8, MANY)),
    ],
)
def test_blocks_have_nearly_equal_sizes_that_fit_the_rule(rule, queries, keys, group, by_index, expected):
    assert blocks_bounds.block_sizes(rule, queries, keys, group, by_index and queries == keys) == expected


@given(
    rule=st.sampled_from([rule for rule in RULES.values() if not isinstance(rule, Full | Causal)]),
    length=st.integers(1, 200),
    block_q=st.integers(1, 60),
)
def test_a_single_block_has_every_key_that_its_queries_can_see(rule, length, block_q):
    low, high = blocks_bounds._seen(rule, length, block_q)
    width = min(length, int((high - low).max() + 1))
    starts = blocks_bounds.starts(plan_of(rule, length, block_q, width, single=True))
    pairs = rule.allows(np.arange(length)[:, None], np.arange(length))
    assert starts.min() >= 0
    assert starts.max() + width <= length
    for i, start in enumerate(starts):
        outside = np.delete(pairs[i * block_q : (i + 1) * block_q], np.arange(start, start + width), axis=1)
        assert not outside.any()
