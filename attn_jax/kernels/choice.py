"""The kernels of this twin in their order, and the one rule that picks: when called, and when asked to explain."""

import jax
from jaxtyping import Array, Float

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
from attn_jax.kernels import blocks, cudnn, plain, splash, steps
from attn_jax.scope import Scope
from attn_jax.scoring import Scoring

KERNELS = {
    "splash": splash.attend,
    "cudnn": cudnn.attend,
    "steps": steps.attend,
    "blocks": blocks.attend,
    "plain": plain.attend,
}
REFUSALS = {
    "splash": splash.refusal,
    "cudnn": cudnn.refusal,
    "steps": steps.refusal,
    "blocks": blocks.refusal,
    "plain": plain.refusal,
}


def attend(
    rule: Rule,
    scope: Scope,
    scoring: Scoring,
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    v: Float[Array, "B S K E"],
    *,
    bias: Float[Array, "B|1 H|1 T S"] | None = None,
    kernel: str | None = None,
) -> Float[Array, "B T H E"]:
    """The attended value, by the kernel that fits or the one that is forced."""
    facts = Facts(
        rule=rule,
        queries=q.shape[1],
        keys=k.shape[1],
        dim_k=q.shape[3],
        dim_v=v.shape[3],
        dtype=q.dtype.name,
        device=_device(),
        bias_learns=False,
        given=scope.given if bias is None else scope.given | {"bias"},
        options=scoring.options,
        heads=q.shape[2],
        batch=q.shape[0],
    )
    name = next(row.kernel for row in choose(REFUSALS, facts, kernel) if row.chosen)
    return KERNELS[name](rule, scope, scoring, q, k, v, bias)


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

    `given` names what the call brings along: valid, segments, positions, allowed, bias, cache, context.
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
        device=device or _device(),
        bias_learns=training,
        given=check_given(given),
        options=options(cfg, training),
        heads=cfg.sizes()["H"],
        batch=batch,
    )
    return choose(REFUSALS, facts)


def _device() -> str:
    """cpu, tpu, cuda or rocm: JAX calls both kinds of card gpu, but cuDNN runs on one of them."""
    backend = jax.default_backend()
    if backend != "gpu":
        return backend
    return "cuda" if "cuda" in jax.devices()[0].client.platform_version else "rocm"
