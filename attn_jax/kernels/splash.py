"""Splash attention on TPU: the Pallas kernel that comes with JAX, its arguments made from ours."""

from functools import reduce
from operator import and_, or_
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn.kernels import Facts
from attn.masks import AllOf, AnyOf, Causal, Chunked, Full, Rule, SlidingWindow
from attn_jax.scope import Scope
from attn_jax.scoring import Scoring

LANES = 128
"""Sizes along time are multiples of it."""

LARGEST = 512
"""The largest block."""


def refusal(facts: Facts) -> str | None:
    """Why splash attention cannot run this call."""
    if facts.empty:
        return facts.empty
    if facts.device != "tpu":
        return f"splash attention is a TPU's kernel; got {facts.device}"
    if facts.dtype not in ("float32", "bfloat16"):
        return f"splash attention computes in float32 and bfloat16; got {facts.dtype}"
    lacking = sorted(facts.options & {"alibi", "t5", "dropout"} | facts.given & {"allowed", "bias"})
    if lacking:
        return f"splash attention has no {' or '.join(lacking)}"
    return _rule_refusal(facts)


def _rule_refusal(facts: Facts) -> str | None:
    """Its mask goes by index; the keys of other tokens must be whole, or a query might see none of them."""
    if "cache" in facts.given or (not facts.by_index and facts.given & {"valid", "segments"}):
        return "a query might see no key at all"
    if isinstance(facts.rule, Full):
        return None
    if not _known(facts.rule):
        return f"splash attention has no rule {facts.rule.kind!r}"
    if not facts.by_index:
        return "positions may differ from indices"
    if isinstance(facts.rule, Causal):
        return None
    # Padding stretches distances in indices; a chunk begins where its segment does.
    moving = facts.given & ({"valid"} if isinstance(facts.rule, SlidingWindow) else {"valid", "segments"})
    return f"{' and '.join(sorted(moving))} part positions and indices" if moving else None


def _known(rule: Rule) -> bool:
    if isinstance(rule, AllOf | AnyOf):
        return all(map(_known, rule.of))
    return isinstance(rule, Full | Causal | SlidingWindow | Chunked)


def attend(
    rule: Rule,
    scope: Scope,
    scoring: Scoring,
    q: Float[Array, "B T H D"],
    k: Float[Array, "B S K D"],
    v: Float[Array, "B S K E"],
    bias: Float[Array, "B|1 H|1 T S"] | None,
) -> Float[Array, "B T H E"]:
    """softmax(cap(q k^T * scale)) v over the keys that each query may see, with the sinks in the denominator."""
    del bias
    return splashed(rule, scope, scoring, q, k, v)


def splashed(
    rule: Rule, scope: Scope, scoring: Scoring, q: Array, k: Array, v: Array, interpret: bool = False
) -> Float[Array, "B T H E"]:
    """`attend`, on a TPU or by Pallas' interpreter: heads first, the scale in q, sizes filled up to whole lanes."""
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    (B, T, H, _), S, K = q.shape, k.shape[1], k.shape[2]
    q = (q.astype(jnp.float32) * scoring.scale).astype(q.dtype)
    q, k, v = (_filled(x.swapaxes(1, 2), 2) for x in (q, k, v))
    segments = segment_ids(scope, B, T, S)
    make = splash.make_splash_mqa_single_device if K == 1 else splash.make_splash_mha_single_device
    mask = splash.MultiHeadMask([mask_of(rule, (q.shape[2], k.shape[2]))] * H)
    sizes = block_sizes(q.shape[2], k.shape[2])
    kernel = make(mask, block_sizes=sizes, attn_logits_soft_cap=scoring.softcap, interpret=interpret)

    def row(q: Array, k: Array, v: Array, segments: Any) -> Any:
        segments = None if segments is None else splash.SegmentIds(*segments)
        return kernel(q, k, v, segments, scoring.sinks)

    attended = jax.vmap(row)(q, *((x[:, 0] if K == 1 else x) for x in (k, v)), segments)
    return attended[:, :, :T].swapaxes(1, 2).astype(v.dtype)


def mask_of(rule: Rule, shape: tuple[int, int]) -> Any:
    """Splash attention's own mask of a rule where positions are indices; its windows do not count the query itself."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    if isinstance(rule, AllOf | AnyOf):
        return reduce(and_ if isinstance(rule, AllOf) else or_, [mask_of(part, shape) for part in rule.of])
    if isinstance(rule, SlidingWindow):
        return masks.LocalMask(shape, (rule.width - 1, rule.width - 1 if rule.symmetric else 0), offset=0)
    if isinstance(rule, Chunked):
        return masks.ChunkedCausalMask(shape, rule.width)
    return masks.FullMask(shape) if isinstance(rule, Full) else masks.CausalMask(shape)


def segment_ids(
    scope: Scope, batch: int, queries: int, keys: int
) -> tuple[Int[Array, "B T"], Int[Array, "B S"]] | None:
    """A number for the segment of each token; 0 for what is not real. None where all are real and of one segment.

    Only equal numbers see each other. Of the tokens of one sequence each sees itself, so that no row is empty; queries
    beyond the last one go with it for the same reason.
    """
    sides = (scope.queries, queries, "edge"), (scope.keys, keys, "constant")
    if all(side.valid is None and side.segments is None and size % LANES == 0 for side, size, _ in sides):
        return None
    numbers = []
    for side, size, mode in sides:
        ids = jnp.ones((1, size), jnp.int32) if side.segments is None else side.segments.astype(jnp.int32) + 1
        ids = ids if side.valid is None else jnp.where(side.valid, ids, 0)
        numbers.append(_filled(jnp.broadcast_to(ids, (batch, size)), 1, mode))
    return numbers[0], numbers[1]


def block_sizes(queries: int, keys: int) -> Any:
    """The largest blocks that divide both sizes, for the forward and both backward passes."""
    from jax.experimental.pallas.ops.tpu.splash_attention import BlockSizes

    q, k = (next(block for block in range(LARGEST, 0, -LANES) if size % block == 0) for size in (queries, keys))
    names_q = "block_q", "block_q_dkv", "block_q_dq"
    names_k = "block_kv", "block_kv_compute", "block_kv_dkv", "block_kv_dkv_compute", "block_kv_dq"
    return BlockSizes(**dict.fromkeys(names_q, q), **dict.fromkeys(names_k, k))


def _filled(x: Array, axis: int, mode: str = "constant") -> Array:
    widths = [(0, -size % LANES if i == axis else 0) for i, size in enumerate(x.shape)]
    return jnp.pad(x, widths, mode=mode)
