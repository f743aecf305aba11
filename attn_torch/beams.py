"""Beam search: the most probable continuations that a few candidates at a time can find."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attn_torch.caches.building import init_cache
from attn_torch.compiling import compiled
from attn_torch.recording import repeated
from attn_torch.tokens import last


def search(
    module: nn.Module,
    dtype: Any,
    tokens: Int[Tensor, "B T"],
    valid: Bool[Tensor, "B T"] | None,
    *,
    steps: int,
    beams: int,
    stop: int,
    compile: bool = False,
) -> Int[Tensor, "B steps"]:
    """The best of `beams` candidates by the sum of their tokens' log-probabilities; equal ones by the lowest token.

    A candidate that has met the stop token keeps its sum and repeats it. `stop` is -1 where there is none.
    """
    B, T = tokens.shape
    V, device = module.cfg.vocab_size, tokens.device
    cache = init_cache(module.cfg, B, T + steps, dtype=dtype, device=device)
    logits, cache = module(tokens, valid=valid, cache=cache)
    sums, first = _top(torch.log_softmax(last(logits, valid), dim=-1), beams)
    cache = cache.select(torch.arange(B, device=device).repeat_interleave(beams))
    new = torch.full((B, beams, steps), stop, dtype=first.dtype, device=device)
    new[:, :, 0] = first
    done = first == stop
    advance = compiled(_advance, module) if compile else repeated(_advance, module)
    for step in range(1, steps):
        if bool(done.all()):
            break
        logits, cache = advance(new[:, :, step - 1].reshape(-1, 1), cache)
        logs = torch.log_softmax(logits.reshape(B, beams, V), dim=-1)
        over = torch.where(torch.arange(V, device=device) == stop, 0, -torch.inf).to(logs.dtype)
        logs = torch.where(done[:, :, None], over, logs)
        sums, best = _top((sums[:, :, None] + logs).reshape(B, -1), beams)
        beam, token = best // V, best % V
        new = torch.gather(new, 1, beam[:, :, None].expand(-1, -1, steps))
        new[:, :, step] = token
        done = torch.gather(done, 1, beam) | (token == stop)
        cache = cache.select((beam + torch.arange(B, device=device)[:, None] * beams).reshape(-1))
    return new[:, 0]


def _advance(module, tokens, cache):
    return module(tokens, cache=cache)


def _top(values: Float[Tensor, "B N"], count: int) -> tuple[Tensor, Tensor]:
    # torch.topk does not say which of equal values it takes.
    values, places = torch.sort(values, dim=-1, descending=True, stable=True)
    return values[:, :count], places[:, :count]
