"""Decoding one token with a filled cache: latent attention in its two forms, and grouped heads against many."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import attn
from attn.backends import backend
from attn.costs import attention_flops, projection_flops
from attn.terminal import counted
from attn.variants.latent.latent import LatentNorm, MultiHeadLatentAttentionConfig
from benchmarks.cases import draw
from benchmarks.comparing import Budget, most_calls, timed
from benchmarks.results import Record, record

LENGTHS = {True: (1024,), False: (1024, 4096, 16384)}

LATENT = attn.MultiHeadLatentAttentionConfig(
    input_dim=2048, heads=16, kv_lora_rank=512, rope_dim=64, rope=attn.Rope(), latent_norm=LatentNorm(),
    mask=attn.Causal(),
)  # fmt: skip
"""The attention of DeepSeek-V2-Lite: D = E = 128, C = 512, R = 64."""

MANY = attn.GroupedQueryAttentionConfig(input_dim=2048, heads=32, kv_heads=32, rope=attn.Rope(), mask=attn.Causal())
GROUPED = MANY.replace(kv_heads=4)

FORMS = ("absorbed", "expanded")


def decode(framework: str, budget: Budget, quick: bool) -> list[Record]:
    """One column for each number of tokens in the cache."""
    records = []
    for S in counted(LENGTHS[quick], len(LENGTHS[quick]), f"decode, {framework}"):
        latent = {form: stepper(framework, LATENT, S, most_calls(budget), form) for form in FORMS}
        rows = timed(latent, budget, "absorbed")
        group = "latent attention of DeepSeek-V2-Lite, one token"
        records.append(record("decode", framework, group, f"context {S}", rows, base="absorbed"))
        heads = {f"{cfg.heads} heads, {cfg.kv_heads} of keys": cfg for cfg in (GROUPED, MANY)}
        steppers = {name: stepper(framework, cfg, S, most_calls(budget)) for name, cfg in heads.items()}
        base = next(iter(heads))
        rows = timed(steppers, budget, base)
        records.append(record("decode", framework, "grouped heads, one token", f"context {S}", rows, base=base))
    return records


def operations(quick: bool) -> list[Record]:
    """The operations of one token of latent attention, a multiplication and an addition counting as two."""
    records = []
    for S in LENGTHS[quick]:
        counts = {form: flops(LATENT, S, form) for form in FORMS}
        rows = {form: {"operations": n, "ratio": round(n / counts["absorbed"], 2)} for form, n in counts.items()}
        group = "operations of a token of latent attention, projections included"
        records.append(record("operations", "both", group, f"context {S}", rows, base="absorbed"))
    return records


def flops(cfg: MultiHeadLatentAttentionConfig, keys: int, form: Any) -> int:
    """The operations of one query over so many keys, its projections included."""
    return projection_flops(cfg, 1) + attention_flops(cfg, 1, keys, form)


def stepper(framework: str, cfg: Any, tokens: int, calls: int, kernel: str | None = None) -> Callable[[], Any]:
    """A function that decodes the next token after so many; it may be called `calls` times."""
    twin = backend(framework)
    length = tokens + calls
    arrays = dict(twin.cache_to_neutral(cfg, twin.init_cache(cfg, 1, length)))
    cache = twin.cache_from_neutral(cfg, filled(arrays, tokens))
    weights = attn.init_weights(cfg, seed=0)
    module = twin.build(cfg, kernel=kernel)
    make = _in_torch if framework == "torch" else _in_jax
    return make(module, twin.from_neutral(cfg, weights), cache, draw(1, 1, cfg.input_dim))


def filled(arrays: Mapping[str, np.ndarray], tokens: int) -> dict[str, np.ndarray]:
    """A cache with so many tokens of random keys and values."""
    full = {name: array.copy() for name, array in arrays.items()}
    for name, array in full.items():
        if name.endswith("counts.length"):
            array[:] = tokens
        elif name.endswith("slots"):
            array[:, :tokens, 0] = np.arange(tokens)
        elif name.startswith("layers."):
            array[:, :tokens] = draw(*array[:, :tokens].shape)
    return full


def _in_torch(module: Any, weights: Any, cache: Any, x: np.ndarray) -> Callable[[], Any]:
    import torch

    module.load_state_dict(weights)
    token = torch.from_numpy(x)

    @torch.no_grad()
    def step() -> Any:
        nonlocal cache
        y, cache = module(token, cache=cache)
        return y

    return step


def _in_jax(module: Any, variables: Any, cache: Any, x: np.ndarray) -> Callable[[], Any]:
    import jax

    # The cache is given away, so that it is written in place.
    compiled = jax.jit(lambda variables, x, cache: module.apply(variables, x, cache=cache), donate_argnums=2)

    def step() -> Any:
        nonlocal cache
        y, cache = compiled(variables, x, cache)
        return y.block_until_ready()

    return step
