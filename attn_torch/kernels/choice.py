"""The kernels of this twin in their order, and the one rule that picks: when called, and when asked to explain."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attn.config import Config
from attn.kernels import (
    FORMS,
    Facts,
    Row,
    check_attention,
    check_form,
    check_given,
    check_name,
    choose,
    options,
)
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
_Kernel = Callable[..., Tensor]
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
    known: dict[tuple[Any, ...], _Kernel] | None = None,
) -> Float[Tensor, "B T H E"]:
    """The attended value, by the kernel that fits or the one that is forced.

    A choice takes as long as a small call: `known` keeps those of a caller whose rule, widths and options stay as they
    are, dropout apart.
    """
    given = scope.given if bias is None else scope.given | {"bias"}
    learns = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (bias, scoring.relative))
    if known is None or torch.compiler.is_compiling():
        return _choose(rule, scoring, q, k, v, learns, given, kernel)(rule, scope, scoring, q, k, v, bias)
    call = (q.shape[1], k.shape[1], q.dtype, q.device, learns, given, scoring.dropout > 0, kernel)
    run = known.get(call)
    if run is None:
        run = known[call] = _choose(rule, scoring, q, k, v, learns, given, kernel)
    return run(rule, scope, scoring, q, k, v, bias)


def _choose(rule, scoring, q, k, v, learns, given, forced):
    facts = Facts(
        rule=rule,
        queries=q.shape[1],
        keys=k.shape[1],
        dim_k=q.shape[3],
        dim_v=v.shape[3],
        dtype=_NAMES[q.dtype],
        device=q.device.type,
        bias_learns=learns,
        given=given,
        options=scoring.options,
        heads=q.shape[2],
        batch=q.shape[0],
    )
    return KERNELS[next(row.kernel for row in choose(REFUSALS, facts, forced) if row.chosen)]


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
    """Which kernel a call would run and why each other would not: rows (kernel, chosen, reason); of one attention.

    `given` names what the call brings along: valid, segments, positions, allowed, bias, cache, context. In training a
    bias is taken for one that learns.
    """
    check_attention(cfg)
    dim_k, dim_v = cfg.score_widths(queries, keys)
    facts = Facts(
        rule=cfg.rule,
        queries=queries,
        keys=keys,
        dim_k=dim_k,
        dim_v=dim_v,
        dtype=dtype,
        device=device or "cpu",
        bias_learns=training,
        given=check_given(given),
        options=options(cfg, training),
        heads=cfg.sizes()["H"],
        batch=batch,
    )
    return choose(REFUSALS, facts)
