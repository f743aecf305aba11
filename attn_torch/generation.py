"""Generation: a prompt goes through the model at once, then one token after another through its cache."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attn.sampling import Sampling, check_generation
from attn_torch.beams import search
from attn_torch.caches.building import init_cache
from attn_torch.functional import wide
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
) -> Int[Tensor, "B T+steps"]:
    """The prompt and `steps` more tokens.

    A draw depends on the seed, the row and the step alone, and both twins draw alike. With `beams` nothing is drawn: it
    is the best of so many candidates by the sum of their log-probabilities. After its stop token a row repeats it.
    Prompts of different lengths come padded, on either side, with `valid`.

    Raises:
        ValueError: an argument is out of range, or the tokens do not fit the model; nothing is computed.
    """
    sampling = Sampling(temperature=float(temperature), top_k=top_k, top_p=float(top_p), seed=seed, stop=stop)
    B, T = tokens.shape
    check_generation(module.cfg, T, steps, sampling, beams)
    dtype = module.dtype or next(module.parameters()).dtype
    uniforms = torch.from_numpy(sampling.uniforms(B, steps)).to(tokens.device, wide(dtype))
    module.check(tokens, valid)
    ended = -1 if stop is None else stop
    if beams > 1:
        new = search(module, dtype, tokens, valid, steps=steps, beams=beams, stop=ended)
        return torch.cat([tokens, new.to(tokens.dtype)], dim=1)
    limits = (sampling.temperature or 1.0, top_k or module.cfg.vocab_size, sampling.top_p)
    new = _generate(module, dtype, temperature == 0, tokens, valid, uniforms, limits, ended)
    return torch.cat([tokens, new.to(tokens.dtype)], dim=1)


def _generate(module, dtype, greedy, tokens, valid, uniforms, limits, stop):
    B, T = tokens.shape
    steps = uniforms.shape[1]

    def pick(logits, step):
        return torch.argmax(logits, dim=-1) if greedy else draw(logits, uniforms[:, step], *limits)

    cache = init_cache(module.cfg, B, T + steps, dtype=dtype, device=tokens.device)
    logits, cache = module(tokens, valid=valid, cache=cache)
    first = pick(last(logits, valid), 0)
    new = torch.full((B, steps), stop, dtype=first.dtype, device=first.device)
    new[:, 0] = first
    done = first == stop
    for step in range(1, steps):
        if stop >= 0 and bool(done.all()):
            break
        logits, cache = module(new[:, step - 1 : step], cache=cache)
        token = torch.where(done, stop, pick(logits[:, 0], step))
        new[:, step] = token
        done = done | (token == stop)
    return new


def draw(
    logits: Float[Tensor, "B V"], uniform: Float[Tensor, "B"], temperature: float, top_k: int, top_p: float
) -> Int[Tensor, "B"]:
    """The token at which the cumulative probability, from the highest down, passes a uniform number."""
    order = torch.argsort(-logits, dim=-1, stable=True)
    probabilities = torch.softmax(torch.gather(logits, -1, order) / temperature, dim=-1)
    probabilities[:, top_k:] = 0
    cumulative = torch.cumsum(probabilities, dim=-1)
    before = cumulative - probabilities
    probabilities = torch.where(before < top_p * cumulative[:, -1:], probabilities, 0)
    cumulative = torch.cumsum(probabilities, dim=-1)
    rank = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(dim=-1)
    return torch.gather(order, -1, rank[:, None])[:, 0]
