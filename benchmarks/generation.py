"""A whole generation of the 260K-parameter Llama of the examples: both twins beside transformers' `generate`."""

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch  # before jax: after it, PyTorch's import can crash the process

import attn
import attn_jax
import attn_torch
from attn.hub.llama2c_tokenizer import Llama2cTokenizer
from attn.terminal import counted
from benchmarks.comparing import Budget, timed
from benchmarks.results import Record, record

MODEL = Path(__file__).parents[1] / "examples" / "data" / "stories260K"

STEPS = {True: 60, False: 240}

PEER = "transformers, dynamic cache"

Generate = Callable[[np.ndarray, int], np.ndarray]


def generation(budget: Budget, quick: bool) -> list[Record]:
    """One column for each batch; the time is that of one whole call, greedy and to the last step."""
    steps = STEPS[quick]
    prompt = Llama2cTokenizer.read(MODEL / "tok512.bin").encode("Once upon a time, there was a big dog")
    candidates = {**_ours(), **_peers()}
    records = []
    for batch in counted((1, 16), 2, "generation"):
        tokens = np.array([prompt] * batch, np.int64)
        expected = candidates[PEER](tokens, steps)
        told = {name: np.array_equal(make(tokens, steps), expected) for name, make in candidates.items()}
        rows: dict[str, Any] = {name: {"no": "it tells another story"} for name, same in told.items() if not same}
        calls = {name: _bound(candidates[name], tokens, steps) for name, same in told.items() if same}
        rows |= timed(calls, budget, PEER)
        rows = {name: rows[name] for name in candidates}
        group = "the same story, greedy"
        records.append(record("generation", "both", group, f"batch {batch}", rows, base=PEER, tokens=batch * steps))
    return records


def _bound(generate: Generate, tokens: np.ndarray, steps: int) -> Callable[[], Any]:
    return lambda: generate(tokens, steps)


def _ours() -> dict[str, Generate]:
    cfg, weights = attn.hub.read(MODEL)
    weights = {name: weights[name] for name in weights}
    module = attn_torch.build(cfg)
    module.load_state_dict(attn_torch.from_neutral(cfg, weights))
    in_jax, variables = attn_jax.build(cfg), attn_jax.from_neutral(cfg, weights)

    def eager(tokens: np.ndarray, steps: int, **options: bool) -> np.ndarray:
        return attn_torch.generate(module, torch.from_numpy(tokens), steps, **options).numpy()

    made: dict[str, Generate] = {"attn_torch": eager}
    if "compile" in signature(attn_torch.generate).parameters:
        made["attn_torch, compiled"] = lambda tokens, steps: eager(tokens, steps, compile=True)
    made["attn_jax"] = lambda tokens, steps: np.asarray(
        attn_jax.generate(in_jax, variables, tokens.astype(np.int32), steps)
    )
    return made


def _peers() -> dict[str, Generate]:
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(MODEL).eval()
    # Nothing may end a story before its last step.
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0

    def generate(tokens: np.ndarray, steps: int, **options: Any) -> np.ndarray:
        given = torch.from_numpy(tokens)
        told = model.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=steps, do_sample=False, **options
        )
        return told.numpy()

    static = {"cache_implementation": "static"}
    return {
        PEER: lambda tokens, steps: generate(tokens, steps),
        "transformers, static cache": lambda tokens, steps: generate(tokens, steps, **static),
    }
