"""How the benchmarks time, compare, and write down; what they measure is not run here."""

import json
from collections import Counter
from itertools import pairwise, permutations, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import layers, memory, results
from benchmarks.__main__ import main
from benchmarks.cases import Case, cases, config, masked
from benchmarks.comparing import Budget, Candidate, Comparison, most_calls, timed
from benchmarks.decode import LATENT, flops
from benchmarks.goals import GOALS, Goal
from benchmarks.plots import lines
from benchmarks.tables import duration, render
from benchmarks.timing import compared, interleaved, order, rounds_for


class Clock:
    """A clock that only moves when a candidate works."""

    def __init__(self):
        self.now = 0.0
        self.calls = []

    def __call__(self):
        return self.now

    def works(self, name, *seconds):
        """A candidate that takes the next of these times in each of its turns."""
        turns = iter(seconds)

        def call():
            self.calls.append(name)
            self.now += next(turns)

        return call


def test_candidates_take_turns_in_another_order_in_each_round():
    clock = Clock()
    functions = {name: clock.works(name, *[1.0] * 12) for name in "abc"}
    interleaved(functions, 6, clock)
    assert "".join(clock.calls) == "aabbccbbccaaccaabbccbbaaaaccbbbbaacc"


@pytest.mark.parametrize("count", range(1, 11))
def test_each_candidate_has_each_place_and_each_predecessor_equally_often(count):
    times = 1 + count % 2
    rounds = [order(number, count) for number in range(times * count)]
    places = Counter((name, place) for names in rounds for place, name in enumerate(names))
    followers = Counter(pair for names in rounds for pair in pairwise(names))
    assert places == dict.fromkeys(product(range(count), repeat=2), times)
    assert followers == dict.fromkeys(permutations(range(count), 2), times)


def test_the_second_call_of_a_turn_is_timed_alone():
    clock = Clock()
    left = 100.0
    functions = {
        "a": clock.works("a", left, 1.0, left, 2.0, left, 4.0),
        "b": clock.works("b", left, 8.0, left, 16.0, left, 32.0),
    }
    assert interleaved(functions, 3, clock) == {"a": [1.0, 2.0, 4.0], "b": [8.0, 16.0, 32.0]}


def test_ratios_are_those_of_each_round():
    # Round by round b takes 3, 2 and 5 times as long as a: the median is 3, and not that of the medians, 20 / 7.
    rows = compared({"a": [1.0, 10.0, 7.0], "b": [3.0, 20.0, 35.0]}, "a")
    assert rows["a"] == {"seconds": 7.0, "ratio": 1.0, "low": 1.0, "high": 1.0, "rounds": 3.0}
    assert rows["b"] == {"seconds": 20.0, "ratio": 3.0, "low": 2.5, "high": 4.0, "rounds": 3.0}


@pytest.mark.parametrize(("budget", "rounds"), [(0.1, 3), (12.0, 12), (100.0, 40)])
def test_rounds_fit_into_the_budget_between_least_and_most(budget, rounds):
    assert rounds_for({"a": 0.2, "b": 0.3}, budget) == rounds


def test_masks_for_peers_are_the_rules():
    table = cases(quick=False)
    assert {case.rule for case in table} == {"full", "causal", "window"}
    assert masked(Case("", "full", 8, 5, False)) is None
    assert masked(Case("", "causal", 8, 3, False)).tolist() == [[True, False, False], [True, True, False], [True] * 3]
    window = masked(Case("", "window", 8, 400, False))
    assert window.sum(1).tolist() == [*range(1, 256), *[256] * 145]


def test_operations_of_latent_attention():
    # M 2048, H 16, D = E 128, C 512, R 64: q 2048 * 16 * 192, kv_down and k_rope 2048 * 576, out 2048 * 2048.
    projections = 6291456 + 1179648 + 4194304
    assert flops(LATENT, 4096, "absorbed") == 2 * (projections + 16 * (131072 + 4096 * 1088))
    assert flops(LATENT, 4096, "expanded") == 2 * (projections + 16 * (4096 * 131072 + 4096 * 320))


MACHINE = {
    "cores": 2,
    "processor": "A Model",
    "system": "Linux x86_64",
    "python": "3.11.7",
    "libraries": {"torch": "2.13.0", "jax": "0.10.2"},
}

ROW = {"seconds": 0.25, "ratio": 1.0, "low": 1.0, "high": 1.0, "rounds": 5.0}

RECORDS = [
    results.record(
        "layers",
        "jax",
        "causal, forward",
        "T=4096",
        {"attn": ROW, "Equinox": {"seconds": 0.75, "ratio": 3.125, "low": 2.5, "high": 4.0, "rounds": 5.0}},
    ),
    results.record(
        "layers", "jax", "causal, forward", "T=8192", {"attn": ROW, "Equinox": {"no": "would take about 9 s a call"}}
    ),
    results.record("memory", "torch", "causal, forward", "T=1024", {"attn": {"bytes": 3 * 2**20, "ratio": 1.0}}),
    results.record("memory", "torch", "causal, forward", "growth", {"attn": {"growth": 4.03}}),
    results.record(
        "operations", "both", "a token", "context 1024", {"expanded": {"operations": 2_500_000, "ratio": 12.5}}
    ),
    results.record(
        "generation",
        "both",
        "a story",
        "batch 4",
        {"attn_jax": {"seconds": 0.05, "ratio": 0.25, "low": 0.2, "high": 0.3, "rounds": 5.0}},
        tokens=960,
    ),
]

PAGE = """\
# Benchmarks

Made by `make bench`. Candidates take turns in one process, two calls each, of which the second counts. Times
are medians, ratios those of each round.
Batch 1, 8 heads of 64, float32, on 2 cores (A Model, Linux x86_64),
Python 3.11.7, torch 2.13.0, jax 0.10.2.

## Goals

| goal | wanted | found | met |
| --- | ---: | ---: | ---: |
| JAX, T=4096, forward: layers over any peer | at least 3x | 3.12x | yes |

## Layers

Time, and how many times that of attn; in brackets the quartiles of the ratio.

### JAX: causal, forward

|  | T=4096 | T=8192 |
| --- | ---: | ---: |
| attn | 250 ms, 1.00x (1.00 to 1.00) | 250 ms, 1.00x (1.00 to 1.00) |
| Equinox | 750 ms, 3.12x (2.50 to 4.00) | – |

* Equinox, T=8192: no, would take about 9 s a call.

## Memory

The peak beside the inputs, and how many times that of attn.

### PyTorch: causal, forward

|  | T=1024 | growth |
| --- | ---: | ---: |
| attn | 3.0 MiB, 1.00x | 4.03x |

## Operations

Those of one decoded token, a multiplication and an addition counting as two.

### both frameworks: a token

|  | context 1024 |
| --- | ---: |
| expanded | 2 million, 12.5x |

## Generation

Tokens per second, and how many times the first of transformers' times.

### both frameworks: a story

|  | batch 4 |
| --- | ---: |
| attn_jax | 19,200, 0.25x (0.20 to 0.30) |
"""


def test_the_page():
    assert render(json.loads(json.dumps({"machine": MACHINE, "records": RECORDS}))) == PAGE


def test_the_page_that_is_kept_is_what_its_results_say():
    folder = Path(__file__).parents[2] / "benchmarks" / "results"
    kept = (folder / "README.md").read_text(encoding="utf-8")
    assert kept == render(results.read(folder / "results.json"))
    assert "## Goals" in kept


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (0.2504, "250 ms"), (0.00123, "1.23 ms"), (0.0000456, "45.6 µs")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def column(rows, name="T=1"):
    return results.record("layers", "jax", "g", name, rows)


@pytest.mark.parametrize(
    ("goal", "value", "met"),
    [
        (Goal("", "layers", "jax", "g", (), ("b", "c"), "a", least=2.0), 1.5, False),
        (Goal("", "layers", "jax", "g", ("T=1",), ("b", "c"), "a", least=2.0), 2.0, True),
        (Goal("", "layers", "jax", "g", (), ("a",), "b", most=0.6), 0.5, True),
        (Goal("", "layers", "jax", "g", (), ("a",), "b", most=30.0, field="seconds"), -4e6, True),
        (Goal("", "layers", "jax", "g", (), ("b",), None, least=2.5), 2.0, False),
        (Goal("", "layers", "jax", "g", (), ("d",), "a", least=2.0), None, None),
        (Goal("", "layers", "torch", "g", (), ("b",), "a", least=2.0), None, None),
    ],
)
def test_a_goal_takes_the_worst_column_and_the_fastest_peer(goal, value, met):
    row = {"seconds": 4.0, "ratio": 1.0}
    first = column({"a": row, "b": {"seconds": 8.0, "ratio": 2.0}, "c": {"seconds": 12.0, "ratio": 3.0}})
    second = column({"a": row, "b": {"seconds": 9.0, "ratio": 2.25}, "c": {"seconds": 6.0, "ratio": 1.5}}, "T=2")
    third = column({"a": row, "b": {"no": "it has no window"}}, "T=3")
    assert goal.value([first, second, third]) == value
    assert value is None or goal.met(value) is met


def test_ours_is_not_flattered_by_what_is_ours_too():
    rows = {"attn": {"ratio": 1.0}, "attn, rotary": {"ratio": 0.5}, "floor": {"ratio": 0.8}}
    goal = Goal("", "layers", "jax", "g", (), ("attn",), "floor", most=1.05)
    assert goal.value([column(rows)]) == 1.25


@pytest.mark.parametrize(
    ("even", "peer", "floor", "ahead", "held"),
    [
        (True, (1.0, 1.02), (0.96, 1.0), "yes", "yes"),
        (True, (0.98, 1.0), (0.94, 0.96), "level", "level"),
        (True, (0.98, 0.99), (0.94, 0.95), "no", "no"),
        (False, (0.98, 1.0), (0.94, 0.96), "no", "no"),
    ],
)
def test_a_goal_that_misses_within_the_quartiles_is_level(even, peer, floor, ahead, held):
    def row(ratio, high):
        return {"seconds": 1.0, "ratio": ratio, "low": 0.5, "high": high}

    good = column({"a": row(1.0, 1.0), "peer": row(1.2, 1.3), "floor": row(1.0, 1.1)})
    close = column({"a": row(1.0, 1.0), "peer": row(*peer), "floor": row(*floor)}, "T=2")
    place = ("", "layers", "jax", "g", ())
    assert Goal(*place, ("peer",), "a", least=1.0, even=even).verdict([good, close]) == ahead
    assert Goal(*place, ("a",), "floor", most=1.05, even=even).verdict([good, close]) == held


def test_goals_name_tables_that_are_measured():
    measured = {case.group for case in cases(quick=False)}
    assert {goal.group for goal in GOALS if goal.part == "layers"} <= measured


def test_new_results_take_the_place_of_old_ones_of_the_same_part(tmp_path):
    path = tmp_path / "results.json"
    results.merge(path, [column({"a": {"ratio": 1.0}}), results.record("memory", "jax", "g", "T=1", {})])
    results.merge(path, [column({"a": {"ratio": 2.0}})])
    found = results.read(path)
    assert [record["part"] for record in found["records"]] == ["memory", "layers"]
    assert found["records"][1]["rows"] == {"a": {"ratio": 2.0}}
    assert found["machine"] == results.machine()
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


def test_a_column_measured_again_keeps_its_place(tmp_path):
    path = tmp_path / "results.json"
    results.merge(path, [column({"a": {"ratio": 1.0}}, name) for name in ("T=1", "T=2")])
    again = [column({"a": {"ratio": ratio}}, name) for name, ratio in (("T=1", 3.0), ("T=4", 5.0))]
    results.merge(path, again, whole=False)
    found = [(record["column"], record["rows"]["a"]["ratio"]) for record in results.read(path)["records"]]
    assert found == [("T=1", 3.0), ("T=2", 1.0), ("T=4", 5.0)]


class Arrays:
    """A framework whose candidates are functions of an array."""

    name = "torch"

    @staticmethod
    def given(x):
        return x

    @staticmethod
    def call(candidate, x, gradients):
        return lambda: candidate.function(x)

    @staticmethod
    def first(result):
        return [result]


@pytest.mark.parametrize("name", memory.IN_TORCH)
def test_the_memory_of_a_long_layer_is_that_of_a_candidate(name):
    # What is too slow or too large to be timed beside others still has a process of its own.
    assert isinstance(memory.candidate(name, 4096), Candidate)


def test_a_function_is_called_no_more_often_than_is_said():
    # A cache has so many slots: on a fast machine all rounds are used.
    called = []
    for budget in (Budget(1e6, 1, 3), Budget(0.0, 4, 3)):
        called.clear()
        timed({"attn": lambda: called.append(1)}, budget)
        assert len(called) == most_calls(budget)


def test_a_candidate_is_checked_against_one_that_is_not_timed():
    half, third = Candidate(lambda x: x / 2, []), Candidate(lambda x: x / 3, [])
    candidates = {"attn": half, "other": third._replace(like=third), "wrong": third}
    case = Case("causal", "causal", 8, 4, False)
    x = np.ones((1, 4, 512), np.float32)
    rows = Comparison(Arrays, Budget(0.0)).rows(candidates, x, False, config(case), case.T)
    assert list(rows) == ["attn", "other", "wrong"]
    assert rows["other"]["rounds"] == 3
    assert rows["wrong"]["no"].startswith("its values differ by 3.3e-01")


@pytest.mark.parametrize(("length", "columns"), [(None, ["T=256", "T=1024"]), (1024, ["T=1024"])])
def test_a_table_or_one_of_its_columns_is_measured_alone(length, columns):
    peers = SimpleNamespace(layers=lambda case: {"attn": Candidate(lambda x: x, [])})
    found = layers.layers(Arrays, peers, Budget(0.0), True, "causal, forward", length)
    assert [(each["group"], each["column"]) for each in found] == [("causal, forward", name) for name in columns]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--layer", "causal", "--quick"], "--layer must be one of ['causal, forward', "),
        (["--layer", "causal, forward", "--length", "512"], "one of [256, 1024, 2048, 4096, 8192]; got 512"),
        (["--length", "512"], "--length is of one table, named by --layer; got none"),
    ],
)
def test_a_table_or_a_column_that_is_not_there_is_refused(words, text, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["benchmarks", "torch", *words])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert text in capsys.readouterr().err


def test_plots_leave_out_what_was_not_measured():
    assert lines(RECORDS[:2], "seconds") == {"attn": [(4096, 0.25), (8192, 0.25)], "Equinox": [(4096, 0.75)]}
