"""Generation: a prompt goes through the model at once, then one token after another through its cache."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attn.sampling import Sampling, check_generation
from attn_torch.beams import search
from attn_torch.caches.building import init_cache
from attn_torch.compiling import compiled
from attn_torch.functional import wide
from attn_torch.recording import repeated
from attn_torch.tokens import last


@torch.no_grad()
def generate(
    module: nn.Module,
    tokens: Int[Tensor, "B T"],
    steps: int,
    *,
    valid: Bool[Tensor, "B T"] | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int = 0,
    stop: int | None = None,
    beams: int = 1,
    compile: bool = False,
) -> Int[Tensor, "B T+steps"]:
    """The prompt and `steps` more tokens.

    A draw depends on the seed, the row and the step alone, and both twins draw alike. With `beams` nothing is drawn: it
    is the best of so many candidates by the sum of their log-probabilities. After its stop token a row repeats it.
    Prompts of different lengths come padded, on either side, with `valid`.

    What the first step calls of PyTorch is repeated for the others without the modules around it, unless one of them
    has hooks. `compile` compiles the step instead, once for a model: the first call waits for it, those that follow are
    several times faster.

    Raises:
        ValueError: an argument is out of range, or the tokens do not fit the model; nothing is computed.
    """
    sampling = Sampling(temperature=float(temperature), top_k=top_k, top_p=float(top_p), seed=seed, stop=stop)
    given = _given(module, tokens, steps, valid, sampling, beams)
    if beams > 1:
        new = search(module, given.dtype, tokens, valid, steps=steps, beams=beams, stop=given.stop, compile=compile)
        return torch.cat([tokens, new.to(tokens.dtype)], dim=1)
    new = torch.stack([*_stream(module, given, tokens, valid, compile)], dim=1).to(tokens.dtype)
    # Where every row has met its stop token, it fills the rest.
    return torch.cat([tokens, F.pad(new, (0, steps - new.shape[1]), value=given.stop)], dim=1)


@torch.no_grad()
def stream(
    module: nn.Module,
    tokens: Int[Tensor, "B T"],
    steps: int,
    *,
    valid: Bool[Tensor, "B T"] | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int = 0,
    stop: int | None = None,
    compile: bool = False,
) -> Iterator[Int[Tensor, "B"]]:
    """What `generate` adds to the prompt, one token for each row at a time, until every row has met its stop token.

    Raises:
        ValueError: as `generate` does, when the first token is asked for.
    """
    sampling = Sampling(temperature=float(temperature), top_k=top_k, top_p=float(top_p), seed=seed, stop=stop)
    given = _given(module, tokens, steps, valid, sampling)
    for token in _stream(module, given, tokens, valid, compile):
        yield token.to(tokens.dtype, copy=True)


class _Given(NamedTuple):
    """What a generation is given beside the model and its prompt; stop is -1 where there is none."""

    dtype: torch.dtype
    greedy: bool
    uniforms: Float[Tensor, "B steps"]
    limits: tuple[float, int, float]
    stop: int


def _given(module, tokens, steps, valid, sampling, beams=1):
    B, T = tokens.shape
    check_generation(module.cfg, T, steps, sampling, beams)
    module.check(tokens, valid)
    dtype = module.dtype or next(module.parameters()).dtype
    uniforms = torch.from_numpy(sampling.uniforms(B, steps)).to(tokens.device, wide(dtype))
    limits = sampling.temperature or 1.0, sampling.top_k or module.cfg.vocab_size, sampling.top_p
    return _Given(dtype, sampling.temperature == 0, uniforms, limits, -1 if sampling.stop is None else sampling.stop)


def _stream(module, given, tokens, valid, compile):
    (B, T), steps = tokens.shape, given.uniforms.shape[1]
    advance = compiled(_advance, module) if compile else repeated(_advance, module)
    cache = init_cache(module.cfg, B, T + steps, dtype=given.dtype, device=tokens.device)
    logits, cache = module(tokens, valid=valid, cache=cache)
    uniform = given.uniforms[:, 0].clone()
    token = _pick(given.greedy, last(logits, valid), uniform, given.limits)
    done = token == given.stop
    yield token
    for step in range(1, steps):
        if given.stop >= 0 and bool(done.all()):
            return
        # A view would be another kind of tensor for each step, and compiled once more.
        uniform = uniform if given.greedy else given.uniforms[:, step].clone()
        token, cache, done = advance(given.greedy, token, cache, done, uniform, given.limits, given.stop)
        yield token


def _advance(module, greedy, token, cache, done, uniform, limits, stop):
    logits, cache = module(token[:, None], cache=cache)
    token = _pick(greedy, logits[:, 0], uniform, limits)
    if stop < 0:
        return token, cache, done
    token = torch.where(done, stop, token)
    return token, cache, done | (token == stop)


def _pick(greedy, logits, uniform, limits):
    return torch.argmax(logits, dim=-1) if greedy else draw(logits, uniform, *limits)


def draw(
    logits: Float[Tensor, "B V"], uniform: Float[Tensor, "B"], temperature: float, top_k: int, top_p: float
) -> Int[Tensor, "B"]:
    """The token at which the cumulative probability, from the highest down, passes a uniform number."""
    order = torch.argsort(-logits, dim=-1, stable=True)
    probabilities = torch.softmax(torch.gather(logits, -1, order) / temperature, dim=-1)
    probabilities = torch.where(torch.arange(logits.shape[-1], device=logits.device) < top_k, probabilities, 0)
    cumulative = torch.cumsum(probabilities, dim=-1)
    before = cumulative - probabilities
    probabilities = torch.where(before < top_p * cumulative[:, -1:], probabilities, 0)
    cumulative = torch.cumsum(probabilities, dim=-1)
    rank = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(dim=-1)
    return torch.gather(order, -1, rank[:, None])[:, 0]
