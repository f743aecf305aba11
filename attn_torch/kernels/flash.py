"""PyTorch's flash kernel for the CPU, called by its own name because that returns the log-sum-exp of the scores too.

With it come blocks of queries, each with only the keys it can see, and sinks. Blocks of one shape are a batch: views of
the same arrays, each a step further. A sink is one more key whose value is 0:

    y = softmax(s) v * sigmoid(lse - sink)        lse' = logaddexp(lse, sink)

so exp(s - lse') are the weights beside the sink, and with lse' and y the kernel's own backward pass,

    ds = exp(s - lse') * (dy v^T - sum(dy * y))   dsink = -exp(sink - lse') * sum(dy * y)

gives the gradients of queries, keys and values. Masks and distances are made again there rather than kept.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attn_torch.functional import distance_bias, relative_bias, wide
from attn_torch.kernels.runs import Run

_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_attend_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    seen: Tensor | None,
    bias: Tensor | None,
    relative: Tensor | None,
    slopes: list[float],
    q_positions: Tensor | None,
    k_positions: Tensor | None,
    edges: list[int],
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """softmax(q k^T * scale + bias - slope |p_q - p_k|) v with sinks, and the log-sum-exp, in blocks of queries.

    Args:
        q: [B H T D].
        k: [B K S D].
        v: [B K S D].
        sinks: one more logit a head in the denominator, [H].
        seen: which query of a block may see which of its keys, the blocks behind one another, [B|1 H|1 N].
        bias: added to the scores, [B|1 H|1 T S]; it has no gradient.
        relative: T5's numbers by distance, [H 2F+1]; they have no gradient.
        slopes: ALiBi's, one a head; empty for none.
        q_positions: [B|1 T], read with slopes or T5's numbers only.
        k_positions: [B|1 S], read with slopes or T5's numbers only.
        edges: of each run of blocks how many they are and how many masks they have, and of the first of them the first
            query, the query after the last, the first key and the key after the last.
        causal: each block is square, and a query sees the keys up to its own index in it.
        scale: the multiplier of the scores.
    """
    out, lse = _empty(q)
    added = _added(seen, bias, relative, slopes, q_positions, k_positions, edges, q.dtype)
    for run, extra in zip(_runs(edges), added, strict=True):
        for row, mask in run.batches(len(q), extra):
            taken = run.queries(q, row), run.keys(k, row), run.keys(v, row)
            found = _attend(*taken, 0.0, causal, attn_mask=mask, scale=scale)
            run.queries(out, row).copy_(found[0])
            run.queries(lse, row).copy_(found[1])
    if sinks is not None:
        sinks = sinks.to(lse.dtype)[:, None]
        out *= torch.sigmoid(lse - sinks)[..., None]
        torch.logaddexp(lse, sinks, out=lse)
    return out, lse


def flash_backward(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    seen: Tensor | None,
    bias: Tensor | None,
    relative: Tensor | None,
    q_positions: Tensor | None,
    k_positions: Tensor | None,
    out: Tensor,
    lse: Tensor,
    slopes: list[float],
    edges: list[int],
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v and sinks (empty without sinks); `dy` is that of `out`."""
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    added = _added(seen, bias, relative, slopes, q_positions, k_positions, edges, q.dtype)
    for run, extra in zip(_runs(edges), added, strict=True):
        for row, mask in run.batches(len(q), extra):
            taken = run.queries(dy, row), run.queries(q, row), run.keys(k, row), run.keys(v, row)
            taken += run.queries(out, row), run.queries(lse, row)
            found = _attend_backward(*taken, 0.0, causal, attn_mask=mask, scale=scale)
            run.queries(dq, row).copy_(found[0])
            run.add_to_keys(dk, row, found[1])
            run.add_to_keys(dv, row, found[2])
    if sinks is None:
        return dq, dk, dv, q.new_empty(0)
    weights = torch.exp(sinks.to(lse.dtype)[:, None] - lse)
    dsinks = -(weights * (dy.to(lse.dtype) * out.to(lse.dtype)).sum(-1)).sum((0, 2))
    return dq, dk, dv, dsinks.to(sinks.dtype)


def _runs(edges: list[int]) -> Iterator[Run]:
    return (Run(*edges[start : start + 6]) for start in range(0, len(edges), 6))


def _empty(q):
    """Room for y and the log-sum-exp, time before heads in memory."""
    B, H, T, E = q.shape
    return q.new_empty(B, T, H, E).transpose(1, 2), q.new_empty(B, T, H, dtype=wide(q.dtype)).transpose(1, 2)


def _added(
    seen: Bool[Tensor, "B|1 H|1 N"] | None,
    bias: Float[Tensor, "B|1 H|1 T S"] | None,
    relative: Float[Tensor, "H 2F+1"] | None,
    slopes: list[float],
    q_positions: Int[Tensor, "B|1 T"] | None,
    k_positions: Int[Tensor, "B|1 S"] | None,
    edges: list[int],
    dtype: torch.dtype,
) -> Iterator[Float[Tensor, "B|1 N|1 H|1 n m"] | None]:
    """What is added to the scores of each block of a run: -inf where a key may not be seen."""
    start = 0
    for _, masks, i, j, low, high in _runs(edges):
        extra = None if bias is None else bias[:, None, :, i:j, low:high].to(wide(dtype))
        if slopes or relative is not None:
            positions = q_positions[:, i:j], k_positions[:, low:high]
            distances = (
                distance_bias(tuple(slopes), *positions, wide(dtype)) if slopes else relative_bias(relative, *positions)
            )
            extra = distances[:, None] if extra is None else extra + distances[:, None]
        if seen is not None:
            size = masks * (j - i) * (high - low)
            part = seen[..., start : start + size].unflatten(-1, (masks, j - i, high - low)).movedim(2, 1)
            start += size
            zero = torch.zeros(part.shape, dtype=dtype, device=part.device) if extra is None else extra
            extra = zero.masked_fill(~part, -torch.inf)
        yield extra


def _keep(ctx, inputs, output):
    q, k, v, sinks, seen, bias, relative, slopes, q_positions, k_positions, *rest = inputs
    ctx.save_for_backward(q, k, v, sinks, seen, bias, relative, q_positions, k_positions, *output)
    ctx.rest = slopes, *rest


def _gradients(ctx, dy, function):
    *found, dsinks = function(dy, *ctx.saved_tensors, *ctx.rest)
    return *found, dsinks if ctx.needs_input_grad[3] else None, *(None,) * 9


class _OneByOne(torch.autograd.Function):
    """Under `torch.func.vmap` the kernel, which writes into its results, takes one entry of the hidden axis a time."""

    @classmethod
    def vmap(cls, info, in_dims, *inputs):
        """Every result of every entry, stacked along a new first axis."""
        axes = list(zip(inputs, in_dims, strict=True))
        entries = ([x.select(d, i) if isinstance(d, int) else x for x, d in axes] for i in range(info.batch_size))
        found = zip(*(cls.apply(*entry) for entry in entries), strict=True)
        return tuple(map(torch.stack, found)), (0,) * cls.results


class _Flash(_OneByOne):
    results = 2

    @staticmethod
    def forward(*inputs):
        return flash(*inputs)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _keep(ctx, inputs, output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, dy, _):
        return _gradients(ctx, dy, _FlashBackward.apply)


class _FlashBackward(_OneByOne):
    results = 4

    @staticmethod
    def forward(*inputs):
        return flash_backward(*inputs)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError("PyTorch's flash kernel has no second derivative; kernel='plain' has one.")


def attended(*inputs):
    """`flash` with gradients."""
    return _op(*inputs) if torch.compiler.is_compiling() else _Flash.apply(*inputs)


# Compiled code takes both passes as operators of their own; called one by one, they would cost a small call its speed.
_op = torch.library.custom_op("attn::flash", flash, mutates_args=())
_op_backward = torch.library.custom_op("attn::flash_backward", flash_backward, mutates_args=())
_op.register_fake(lambda q, *_: _empty(q))
_op.register_autograd(lambda ctx, dy, _: _gradients(ctx, dy, _op_backward), setup_context=_keep)


@_op_backward.register_fake
def _(dy, q, k, v, sinks, *_):
    return tuple(torch.empty_like(t) for t in (q, k, v, q.new_empty(0) if sinks is None else sinks))
