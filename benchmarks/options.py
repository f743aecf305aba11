"""No option may make a call slower than the plain form: each one, automatic beside plain, in one framework."""

from types import ModuleType
from typing import Any

import numpy as np

import attn
from attn.terminal import counted
from benchmarks.cases import DIM, HEADS, Case, config, draw, inputs, mode
from benchmarks.comparing import OURS, Budget, Comparison
from benchmarks.results import Record, record

PLAIN = f"{OURS}, plain"

FIELDS: dict[str, dict[str, Any]] = {
    "no option": {},
    "rotary positions": {"rope": attn.Rope()},
    "query and key norms": {"qk_norm": attn.QKNorm()},
    "soft-cap": {"softcap": 20.0},
    "sinks": {"sinks": True},
    "ALiBi": {"position_bias": attn.Alibi()},
    "relative buckets": {"position_bias": attn.Buckets()},
    "output gate": {"output_gate": "elementwise"},
    "dropout": {"dropout": 0.1},
    "values half as wide": {"dim_k": DIM, "dim_v": DIM // 2},
    "window of 64": {"mask": attn.SlidingWindow(width=64)},
    "window of 64, sinks": {"mask": attn.SlidingWindow(width=64), "sinks": True},
    "chunks of 64": {"mask": attn.Chunked(width=64)},
    "prefix of 64": {"mask": attn.Prefix(length=64)},
}
"""What a config may say, beside the causal layer."""

CALLS = ("valid", "segments", "positions", "allowed", "bias")
"""What a call may bring along."""

LENGTHS = (64, 1024)

QUICK = ("no option", "sinks", "window of 64", "valid")
"""The options of a quick run, at the greater length."""


def options(side: ModuleType, peers: ModuleType, budget: Budget, quick: bool) -> list[Record]:
    """One column for each length; a row's time is that of the automatic choice, its ratio that of the plain form."""
    table = [(T, gradients) for gradients in (False, True) for T in (LENGTHS[1:] if quick else LENGTHS)]
    columns: dict[tuple[int, bool], dict[str, Any]] = {key: {} for key in table}
    named = [(name, fields, ()) for name, fields in FIELDS.items()] + [(name, {}, (name,)) for name in CALLS]
    work = [(key, *each) for key in table for each in named if each[0] in QUICK or not quick]
    for (T, gradients), name, fields, words in counted(work, len(work), f"options, {side.name}"):
        case = Case(name, "causal", HEADS, T, gradients)
        cfg = config(case, **fields)
        call = {word: brought(word, T) for word in words}
        candidates = {OURS: peers.called(cfg, call, None), PLAIN: peers.called(cfg, call, "plain")}
        rows = Comparison(side, budget).rows(candidates, side.given(inputs(T)), gradients, cfg, T)
        columns[T, gradients][name] = {**rows[PLAIN], "seconds": rows[OURS]["seconds"]}
    return [record("options", side.name, mode(gradients), f"T={T}", rows) for (T, gradients), rows in columns.items()]


def brought(word: str, T: int) -> np.ndarray:
    """An argument of a call: the last quarter padded, two segments, positions with a gap, a random mask or bias."""
    if word == "valid":
        return np.arange(T)[None] < T - T // 4
    if word == "segments":
        return (np.arange(T)[None] >= T // 2).astype(np.int32)
    if word == "positions":
        return np.arange(T, dtype=np.int32)[None] + (np.arange(T, dtype=np.int32) >= T // 2) * 7
    noise = draw(T, T, seed=3)
    return noise if word == "bias" else noise > -1
