"""What a call of attention may vary: a table of factors, and what each level asks of a config, of a call, of a kernel.

The first level of a factor asks for nothing. Which levels cannot meet is written nowhere: `refusal` asks the config,
the call and the kernels themselves, and gives back what they say.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from pydantic import ValidationError

import attn
from attn.call import check_call
from attn.kernels import FORMS, Facts, check_form, choose, options
from attn.parity import Inputs
from attn.parity.inputs import perturbed
from attn.variants import AttentionConfig
from tests.arguments import arguments_of, lengths_of, stream
from tests.twins import TWINS

M, X, H, K, D, C, Q, R, P = 17, 19, 6, 3, 14, 9, 29, 10, 8
WIDTHS = {"values_narrower": 5, "as_wide": D, "values_wider": 23}
HEADS = {"input_dim": M, "heads": H}
LATENT = HEADS | {"kv_lora_rank": C}
VARIANTS: dict[str, tuple[type[AttentionConfig], dict[str, Any]]] = {
    "grouped_query": (attn.GroupedQueryAttentionConfig, HEADS | {"kv_heads": K}),
    "multi_head": (attn.MultiHeadAttentionConfig, HEADS),
    "multi_query": (attn.MultiQueryAttentionConfig, HEADS),
    "self": (attn.SelfAttentionConfig, {"input_dim": M}),
    "cross": (attn.CrossAttentionConfig, {"input_dim": M, "context_dim": X}),
    "causal": (attn.CausalAttentionConfig, {"input_dim": M}),
    "latent": (attn.MultiHeadLatentAttentionConfig, LATENT),
    "latent_in_full": (
        attn.MultiHeadLatentAttentionConfig,
        LATENT | {"q_lora_rank": Q, "rope_dim": R, "latent_norm": {"eps": 1e-5}},
    ),
}
"""The class and the sizes of each variant; DeepSeek's form of latent attention is one of its own."""

WINDOW, CHUNKS = {"kind": "sliding_window", "width": 4}, {"kind": "chunked", "width": 5}
BOTH_SIDES, PREFIX = {"kind": "sliding_window", "width": 3, "symmetric": True}, {"kind": "prefix", "length": 3}
NESTED = {"kind": "any", "of": [{"kind": "all", "of": [BOTH_SIDES, CHUNKS]}, WINDOW]}
STRETCHED = {"theta": 100.0, "factor": 3.0, "original_length": 5}
OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "rule": {
        "own": {},
        "causal": {"mask": {"kind": "causal"}},
        "window": {"mask": WINDOW},
        "symmetric_window": {"mask": BOTH_SIDES},
        "chunked": {"mask": CHUNKS},
        "prefix": {"mask": PREFIX},
        "all": {"mask": {"kind": "all", "of": [BOTH_SIDES, {"kind": "prefix", "length": 4}]}},
        "any": {"mask": {"kind": "any", "of": [WINDOW, CHUNKS, PREFIX]}},
        "nested": {"mask": NESTED},
    },
    "rope": {
        "none": {},
        "half": {"rope": {"kind": "default", "theta": 100.0}},
        "interleaved": {"rope": {"kind": "default", "theta": 100.0, "layout": "interleaved"}},
        "partial": {"rope": {"kind": "default", "theta": 100.0, "width": 6}},
        "partial_interleaved": {"rope": {"kind": "default", "theta": 100.0, "width": 4, "layout": "interleaved"}},
        "float32": {"rope": {"kind": "default", "theta": 100.0, "float32": True}},
        "linear": {"rope": {"kind": "linear", "theta": 100.0, "factor": 3.0}},
        "dynamic": {"rope": STRETCHED | {"kind": "dynamic"}},
        "llama3": {"rope": STRETCHED | {"kind": "llama3", "low_freq_factor": 0.3, "high_freq_factor": 1.5}},
        "yarn": {
            "rope": STRETCHED
            | {"kind": "yarn", "beta_fast": 2.0, "beta_slow": 0.1, "mscale": 0.7, "mscale_all_dim": 0.9}
        },
        "longrope": {
            "rope": STRETCHED
            | {"kind": "longrope", "width": 6, "short_factor": [1.0, 1.5, 2.0], "long_factor": [2.0, 3.0, 5.0]}
        },
    },
    "position_bias": {
        "none": {},
        "alibi": {"position_bias": {"kind": "alibi"}},
        "t5": {"position_bias": {"kind": "t5", "buckets": P, "max_distance": 20}},
        "t5_bidirectional": {"position_bias": {"kind": "t5", "buckets": P, "max_distance": 20, "bidirectional": True}},
    },
    "qk_norm": {
        "none": {},
        "rms": {"qk_norm": {"kind": "rms"}},
        "rms_of_all_heads": {"qk_norm": {"kind": "rms", "over": "full", "eps": 1e-5}},
        "rms_by_head_plus_1": {"qk_norm": {"kind": "rms", "over": "heads", "offset": True}},
        "rms_after_unlearned": {"qk_norm": {"kind": "rms", "place": "after", "learned": False}},
        "layer": {"qk_norm": {"kind": "layer", "shift": True}},
        "layer_by_head_after": {"qk_norm": {"kind": "layer", "over": "heads", "place": "after"}},
        "l2": {"qk_norm": {"kind": "l2", "eps": 1e-4}},
    },
    "softcap": {"none": {}, "some": {"softcap": 1.5}},
    "sinks": {"none": {}, "some": {"sinks": True}},
    "gate": {
        "none": {},
        "elementwise": {"output_gate": "elementwise"},
        "headwise": {"output_gate": "headwise"},
    },
    "scale": {"own": {}, "explicit": {"scale": 0.37}},
    "context": {
        "none": {},
        "as_long": {"context_dim": X},
        "longer": {"context_dim": X},
        "shorter": {"context_dim": X},
    },
}
"""The levels that are fields of a config."""

OTHERS = {
    "biases": ("none", "all", "some"),
    "widths": tuple(WIDTHS),
    "padding": ("none", "left", "right", "holes"),
    "context_padding": ("none", "some"),
    "segments": ("none", "some"),
    "positions": ("default", "given", "context", "both"),
    "allowed": ("none", "T S", "B T S", "B H T S"),
    "score_bias": ("none", "T S", "B T S", "1 H T S"),
    "dtype": ("float64", "float32"),
    "jax_kernel": ("default", *TWINS[0].kernels, *FORMS),
    "torch_kernel": ("default", *TWINS[1].kernels, *FORMS),
    "size": ("2 x 11", "1 x 131"),
}
FACTORS: dict[str, tuple[str, ...]] = {
    "variant": tuple(VARIANTS),
    **{factor: tuple(levels) for factor, levels in OPTIONS.items()},
    **OTHERS,
}
"""Every factor with its levels."""

CONFIGURES = ("variant", *OPTIONS, "biases", "widths")
CALLS = ("context", "padding", "context_padding", "segments", "positions", "allowed", "score_bias", "size")

Case = dict[str, str]
"""One level for each factor."""

NEUTRAL: Case = {factor: levels[0] for factor, levels in FACTORS.items()}


def refusal(case: Mapping[str, str]) -> str | None:
    """Why there is no such case, in the words of the config, the call or the kernel; None where there is one."""
    cfg = _config(*(case[factor] for factor in CONFIGURES))
    if isinstance(cfg, str):
        return cfg
    call = _called(cfg.heads, cfg.reads, *(case[factor] for factor in CALLS))
    if isinstance(call, str):
        return call
    for twin in ("jax", "torch"):
        reason = _kernel_refusal(twin, cfg, case, frozenset(call))
        if reason is not None:
            return reason
    return None


def config_of(case: Mapping[str, str]) -> AttentionConfig:
    """The config of a case."""
    return _config(*(case[factor] for factor in CONFIGURES))


def inputs_of(case: Mapping[str, str], seed: int = 0) -> Inputs:
    """Weights, sequences and arguments of a case, each drawn from its own stream and rounded to the case's dtype."""
    cfg, (B, T, S) = config_of(case), lengths_of(case)

    def rounded(array: np.ndarray) -> np.ndarray:
        return array.astype(case["dtype"]).astype(np.float64)

    def normal(name: str, *shape: int) -> np.ndarray:
        return rounded(stream(name, seed).standard_normal(shape))

    weights = {name: rounded(array) for name, array in perturbed(cfg, seed).items()}
    call = arguments_of(case, cfg.heads, seed)
    call = {name: rounded(array) if array.dtype.kind == "f" else array for name, array in call.items()}
    width = M if cfg.output == "B T M" else cfg.dim_v
    context = None if cfg.reads is None else normal("context", B, S, X)
    return Inputs(weights, normal("x", B, T, M), context, call, normal("cotangent", B, T, width))


@cache
def _config(variant: str, *levels: str) -> AttentionConfig | str:
    kind, fields = VARIANTS[variant]
    fields = dict(fields)
    *chosen, biases, widths = levels
    for factor, level in zip(OPTIONS, chosen, strict=True):
        fields |= OPTIONS[factor][level]
    heads = fields.get("heads", 1)
    fields |= {"dim_k": heads * D, "dim_v": heads * WIDTHS[widths]}
    try:
        cfg = kind(**fields)
        if biases == "some":
            return cfg.replace(bias=tuple(n % 2 == 0 for n in range(len(cfg.projections))))
        return cfg.replace(bias=True) if biases == "all" else cfg
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False)
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {first['msg']}" if where else first["msg"].removeprefix("Value error, ")


@cache
def _called(heads: int, reads: int | None, *levels: str) -> dict[str, np.ndarray] | str:
    """The arguments of a call, which `check_call` does not refuse; or why it does."""
    case = dict(zip(CALLS, levels, strict=True))
    B, T, S = lengths_of(case)
    cfg = attn.MultiHeadAttentionConfig(input_dim=M, heads=heads, dim_k=heads, dim_v=heads, context_dim=reads)
    call = arguments_of(case, heads, 0)
    context = None if case["context"] == "none" else np.zeros((B, S, X))
    try:
        check_call(cfg, np.zeros((B, T, M)), context, **call)
    except ValueError as error:
        return str(error)
    return call


def _kernel_refusal(twin: str, cfg: AttentionConfig, case: Mapping[str, str], call: frozenset[str]) -> str | None:
    name = case[f"{twin}_kernel"]
    if name == "default":
        return None
    try:
        check_form(cfg, name)
    except ValueError as error:
        return str(error)
    if name in FORMS:
        return None
    names = {"valid" if cfg.reads is None else "context_valid": "valid", "bias": "bias", "segments": "segments"}
    names |= {"positions": "positions", "allowed": "allowed"}
    given = {names[argument] for argument in call if argument in names} | ({"context"} if cfg.reads else set())
    return _forced(twin, name, cfg, *lengths_of(case)[1:], case["dtype"], frozenset(given))


def _forced(twin, name, cfg, T, S, dtype, given) -> str | None:
    """What the kernels' own table says of a forced one."""
    if twin == "jax":
        from attn_jax.kernels.choice import REFUSALS, _device

        device = _device()
    else:
        from attn_torch.kernels.choice import REFUSALS

        device = "cpu"
    facts = Facts(cfg.rule, T, S, D, D, dtype, device, twin == "torch", given, options(cfg, training=False))
    try:
        choose(REFUSALS, facts, name)
    except ValueError as error:
        return str(error)
    return None
