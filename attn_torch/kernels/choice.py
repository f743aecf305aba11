"""The kernels of this twin in their order, and the one rule that picks: when called, and when asked to explain."""

from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

from attn.config import Config
from attn.kernels import FORMS, Facts, Row, biased, check_form, check_given, check_name, choose, options
from attn.masks import Rule
from attn.variants.base import AttentionConfig
from attn_torch.kernels import blocks, chunked, flex, plain, sdpa
from attn_torch.scope import Scope
from attn_torch.scoring import Scoring

KERNELS = {
    "sdpa_full": sdpa.full,
    "sdpa_causal": sdpa.causal,
    "blocks": blocks.attend,
    "flex": flex.attend,
    "chunked": chunked.attend,
    "sdpa_masked": sdpa.masked,
    "plain": plain.attend,
}
REFUSALS = {
    "sdpa_full": sdpa.full_refusal,
    "sdpa_causal": sdpa.causal_refusal,
    "blocks": blocks.refusal,
    "flex": flex.refusal,
    "chunked": chunked.refusal,
    "sdpa_masked": sdpa.masked_refusal,
    "plain": plain.refusal,
}
_NAMES = {torch.float64: "float64", torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def attend(
    rule: Rule,
    scope: Scope,
    scoring: Scoring,
    q: Float[Tensor, "B T H D"],
    k: Float[Tensor, "B S K D"],
    v: Float[Tensor, "B S K E"],
    *,
    bias: Float[Tensor, "B|1 H|1 T S"] | None = None,
    kernel: str | None = None,
) -> Float[Tensor, "B T H E"]:
    """The attended value, by the kernel that fits or the one that is forced."""
    (_, T, _, D), S, E = q.shape, k.shape[1], v.shape[3]
    given = scope.given if bias is None else scope.given | {"bias"}
    learns = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or _learns(bias))
    facts = Facts(rule, T, S, D, E, _NAMES[q.dtype], q.device.type, learns, given, scoring.options)
    chosen = _choose(facts, kernel) if torch.compiler.is_compiling() else _remembered(facts, kernel)
    return KERNELS[chosen](rule, scope, scoring, q, k, v, bias)


def _learns(bias: Tensor | None) -> bool:
    return bias is not None and bias.requires_grad


def _choose(facts: Facts, forced: str | None) -> str:
    return next(row.kernel for row in choose(REFUSALS, facts, forced) if row.chosen)


_remembered = lru_cache(maxsize=1024)(_choose)


def check_kernel(cfg: Config, kernel: str | None) -> None:
    """Refuse the name of a kernel that this twin does not have, and a form where nothing is latent."""
    check_name((*REFUSALS, *FORMS), kernel)
    check_form(cfg, kernel)


def explain(
    cfg: AttentionConfig,
    *,
    batch: int,
    queries: int,
    keys: int,
    dtype: str,
    device: str | None = None,
    training: bool = False,
    given: tuple[str, ...] = (),
) -> tuple[Row, ...]:
    """Which kernel a call would run and why each other would not: rows (kernel, chosen, reason).

    `given` names what the call brings along: valid, segments, positions, allowed, bias, cache, context.
    """
    facts = Facts(
        rule=cfg.rule,
        queries=queries,
        keys=keys,
        dim_k=cfg.sizes()["D"],
        dim_v=cfg.sizes()["E"],
        dtype=dtype,
        device=device or "cpu",
        training=training,
        given=check_given(given) | biased(cfg),
        options=options(cfg, training),
    )
    return choose(REFUSALS, facts)
