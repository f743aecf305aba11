import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from attn.masks import FAR, AllOf, AnyOf, Causal, Chunked, Full, Mask, Prefix, SlidingWindow
from tests.cases import RULES

# Rows are queries 0 to 4, columns keys 0 to 6.
LITERAL = {
    "full": "1111111 1111111 1111111 1111111 1111111",
    "causal": "1...... 11..... 111.... 1111... 11111..",
    "window_of_1": "1...... .1..... ..1.... ...1... ....1..",
    "window_of_3": "1...... 11..... 111.... .111... ..111..",
    "symmetric_window_of_1": "1...... .1..... ..1.... ...1... ....1..",
    "symmetric_window_of_3": "111.... 1111... 11111.. .11111. ..11111",
    "chunks_of_2": "1...... 11..... ..1.... ..11... ....1..",
    "chunks_of_3": "1...... 11..... 111.... ...1... ...11..",
    "prefix_of_3": "111.... 111.... 111.... 1111... 11111..",
    "window_and_chunks": "1...... 11..... .11.... ...1... ...11..",
    "symmetric_window_and_prefix": "11..... 11..... .11.... ..11... ...11..",
    "window_or_chunks": "1...... 11..... 111.... 1111... ...11..",
    "nested": "1...... 11..... 111.... ..11... ...11..",
}


def matrix(rule, queries: range, keys: range) -> np.ndarray:
    return rule.allows(np.array(queries)[:, None], np.array(keys)[None, :])


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_the_matrix_that_it_is_said_to_be(name):
    written = np.array([[mark == "1" for mark in row] for row in LITERAL[name].split()])
    allowed = matrix(RULES[name], range(5), range(7))
    assert allowed.dtype == bool
    np.testing.assert_array_equal(allowed, written)


def test_a_window_of_4_holds_4_keys():
    counts = matrix(SlidingWindow(width=4), range(10), range(10)).sum(1)
    assert counts.tolist() == [1, 2, 3, 4, 4, 4, 4, 4, 4, 4]
    # One query far along, as in decoding.
    assert matrix(SlidingWindow(width=200), range(799, 800), range(800)).sum() == 200


def test_operators_compose():
    a, b = SlidingWindow(width=3), Chunked(width=4)
    assert a & b == AllOf(of=(a, b))
    assert a | b == AnyOf(of=(a, b))


simple = st.one_of(
    st.just(Full()),
    st.just(Causal()),
    st.builds(SlidingWindow, width=st.integers(1, 6), symmetric=st.booleans()),
    st.builds(Chunked, width=st.integers(1, 6)),
    st.builds(Prefix, length=st.integers(1, 6)),
)
rules = st.recursive(
    simple,
    lambda inner: st.builds(
        lambda kind, of: kind(of=tuple(of)), st.sampled_from([AllOf, AnyOf]), st.lists(inner, min_size=1, max_size=3)
    ),
    max_leaves=5,
)
EDGE = 40
"""Beyond every bound that the rules drawn here can have."""


@given(rules, st.integers(0, 15), st.integers(0, 9))
def test_the_reach_is_what_the_queries_can_see_and_no_more(rule, low, more):
    keys = range(-EDGE, EDGE)
    seen = np.flatnonzero(matrix(rule, range(low, low + more + 1), keys).any(0)) - EDGE
    lowest, highest = (int(bound) for bound in rule.reach(low, low + more))
    assert (lowest if lowest > -EDGE else -EDGE) == seen[0]
    assert (highest if highest < EDGE else EDGE - 1) == seen[-1]


@given(rules, st.lists(st.integers(0, 20), min_size=1, max_size=5), st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_the_reach_of_many_blocks_at_once_is_that_of_each(rule, lows, mores):
    size = min(len(lows), len(mores))
    low = np.array(lows[:size], np.int32)
    high = low + np.array(mores[:size], np.int32)
    for bound in (0, 1):
        together = np.broadcast_to(rule.reach(low, high)[bound], (size,))
        assert together.dtype == np.int32
        assert together.tolist() == [rule.reach(int(a), int(b))[bound] for a, b in zip(low, high, strict=True)]


def test_what_is_far_survives_a_subtraction_in_int32():
    low, high = Full().reach(np.int32(0), np.int32(0))
    assert (low, high) == (-FAR, FAR)
    assert np.int32(high) - np.int32(low) == 2 * FAR


@given(rules)
def test_a_rule_that_calls_itself_causal_shows_no_future(rule):
    future = np.triu(matrix(rule, range(20), range(20)), 1).any()
    assert not (rule.causal and future)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_knows_whether_it_is_causal(name):
    expected = name not in {
        "full",
        "symmetric_window_of_3",
        "prefix_of_3",
        "symmetric_window_and_prefix",
        # Only itself, but a symmetric window is not asked for its width.
        "symmetric_window_of_1",
    }
    assert RULES[name].causal is expected


@given(rules)
def test_rules_are_values_that_travel_through_json(rule):
    read = TypeAdapter(Mask).validate_json(rule.to_json())
    assert read == rule
    assert hash(read) == hash(rule)
