"""A step that is repeated from its recording says what the module says, for every variant; what cannot be is called."""

import pytest
import torch

import attn_torch
from attn_torch.recording import repeated
from tests.cases import CASES, CAUSAL, WINDOW, WITHIN, decoder, under, weights_of
from tests.twins import TWINS

TORCH = TWINS[1]
B, T, STEPS = 3, 5, 6
OPTIONS = {
    "qk_norm": {"qk_norm": {"kind": "rms"}},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": True},
    "gate": {"output_gate": "headwise"},
    "alibi": {"rope": None, "position_bias": {"kind": "alibi"}},
    "t5": {"rope": None, "position_bias": {"kind": "t5", "buckets": 8, "max_distance": 16}},
    "interleaved": {"rope": {"kind": "default", "theta": 100.0, "width": 4, "layout": "interleaved"}},
    "dynamic": {"rope": {"kind": "dynamic", "width": 4, "factor": 2.0, "original_length": 6}},
    "float32": {"rope": {"kind": "default", "theta": 100.0, "width": 4, "float32": True}},
    "chunks": {"mask": {"kind": "chunked", "width": 3}},
}
BLOCKS = [name for name in WITHIN if "out" in CASES[name].layout()]
ATTENTIONS = {f"{name}-{rule['kind']}": under(rule, name) for name in BLOCKS for rule in (CAUSAL, WINDOW)}
ATTENTIONS |= {name: CASES["grouped_query"].replace(**options) for name, options in OPTIONS.items()}
CFGS = {name: decoder(attention=(attention, attention)) for name, attention in ATTENTIONS.items()}
CFGS |= {"learned": decoder(learned_positions=T + STEPS + 1), "tied": decoder(tied=True)}
VALID = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 0, 0, 0]], dtype=torch.bool)
SEGMENTS = torch.tensor([[0, 0, 1, 1, 1], [7, 7, 7, 7, 7], [2, 2, 3, 4, 4]])


def step(module, tokens, cache):
    logits, cache = module(tokens, cache=cache)
    return logits.argmax(-1), logits, cache


@torch.no_grad()
def said(module, advance, call):
    """The logits of a prompt's continuation."""
    cache = attn_torch.init_cache(module.cfg, B, T + STEPS + 1, dtype=module.dtype or torch.float64)
    tokens = torch.arange(B * T).reshape(B, T) % module.cfg.vocab_size
    logits, cache = module(tokens, cache=cache, **call)
    tokens, every = logits[:, -1:].argmax(-1), []
    for _ in range(STEPS):
        tokens, logits, cache = advance(tokens, cache)
        every.append(logits)
    return torch.stack(every)


@pytest.mark.parametrize("call", [{}, {"valid": VALID}, {"segments": SEGMENTS}], ids=["whole", "valid", "segments"])
@pytest.mark.parametrize("name", CFGS)
def test_a_repeated_step_computes_the_same(name, call):
    module = TORCH.module(CFGS[name], weights_of(CFGS[name]))
    advance = repeated(step, module)
    torch.testing.assert_close(
        said(module, advance, call), said(module, lambda *args: step(module, *args), call), rtol=0, atol=0
    )
    assert advance.step is not advance.function


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_cast_once(dtype):
    cfg = decoder()
    module = attn_torch.build(cfg, dtype=dtype)
    module.load_state_dict(attn_torch.from_neutral(cfg, weights_of(cfg)))
    advance = repeated(step, module)
    torch.testing.assert_close(
        said(module, advance, {}), said(module, lambda *args: step(module, *args), {}), rtol=0, atol=0
    )
    assert advance.step is not advance.function


def test_a_generation_repeats_its_step_and_searches_beams_with_it():
    cfg = decoder()
    module = TORCH.module(cfg, weights_of(cfg))
    prompt = torch.arange(B * T).reshape(B, T) % cfg.vocab_size
    ways = ({}, {"beams": 3}, {"temperature": 1.0, "top_k": 7, "stop": 3})
    calls = [0]
    fast = [attn_torch.generate(module, prompt, STEPS, valid=VALID, **way) for way in ways]
    module.register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    slow = [attn_torch.generate(module, prompt, STEPS, valid=VALID, **way) for way in ways]
    assert all(torch.equal(a, b) for a, b in zip(fast, slow, strict=True))
    # A hook sees the prompt and every step.
    assert calls[0] == len(ways) * STEPS
    # So does one that is registered for all modules there are.
    calls[0], other = 0, TORCH.module(cfg, weights_of(cfg))
    everywhere = torch.nn.modules.module.register_module_forward_hook(
        lambda called, *_: calls.__setitem__(0, calls[0] + (called is other))
    )
    try:
        assert torch.equal(attn_torch.generate(other, prompt, STEPS, valid=VALID), fast[0])
    finally:
        everywhere.remove()
    assert calls[0] == STEPS
    # What a user gets is an ordinary tensor, which may be embedded and learned from.
    module = TORCH.module(cfg, weights_of(cfg))
    tokens = [*fast, *attn_torch.stream(module, prompt, STEPS)]
    assert not any(given.is_inference() for given in tokens)
    assert all(given.dtype == prompt.dtype for given in tokens)


OUTSIDE = torch.ones(2)


def by_sum(module, x):
    return module(x) if x.sum() > 0 else -module(x)


def by_item(module, x):
    return module(x) * x[0].item()


def by_list(module, x):
    return torch.stack([module(x) * number for number in x.tolist()])


def with_something_from_outside(module, x):
    return module(x) + OUTSIDE


def counting_in_a_weight(module, x):
    module.bias.data.add_(1)
    return module(x)


def into_an_argument(module, x):
    y = module(x)
    torch.mul(y, 2, out=y)
    return torch.nn.functional.relu(y, inplace=True)


REFUSED = [by_sum, by_item, by_list, with_something_from_outside, counting_in_a_weight, into_an_argument]


@torch.no_grad()
@pytest.mark.parametrize("function", REFUSED)
def test_a_step_that_cannot_be_repeated_is_called(function):
    module = torch.nn.Linear(2, 2)
    advance = repeated(function, module)
    for numbers in ([1.0, 2.0], [-1.0, -2.0], [3.0, -7.0]):
        x = torch.tensor(numbers)
        before = module.bias.clone()
        y = advance(x)
        module.bias.copy_(before)
        assert torch.equal(y, function(module, x))
    assert advance.step is advance.function


@torch.no_grad()
def test_what_is_not_used_is_not_computed_and_what_is_written_is():
    def function(module, x, buffer):
        x.exp()
        view = buffer[1:]
        view.mul_(2)
        buffer[0] = x[0]
        buffer += 1
        return module(x), buffer

    module = torch.nn.Linear(2, 2)
    advance, buffer, expected = repeated(function, module), torch.ones(3), torch.ones(3)
    for numbers in ([1.0, 2.0], [-1.0, -2.0], [3.0, -7.0]):
        x = torch.tensor(numbers)
        y, kept = advance(x, buffer)
        z, _ = function(module, x, expected)
        assert torch.equal(y, z)
        assert kept is buffer
        assert torch.equal(buffer, expected)
    assert advance.step is not advance.function


@torch.no_grad()
def test_an_attribute_that_is_a_tensor_is_repeated():
    def function(module, x):
        return x.mT @ module.weight.T

    module = torch.nn.Linear(2, 2)
    advance = repeated(function, module)
    for x in (torch.ones(2, 2), torch.eye(2), torch.tensor([[1.0, 2.0], [3.0, 4.0]])):
        assert torch.equal(advance(x), x.mT @ module.weight.T)
    assert advance.step is not advance.function


@torch.no_grad()
def test_random_numbers_are_drawn_at_each_step():
    def function(module, x):
        return module(x) + torch.rand(2) + torch.nn.functional.dropout(module.bias, 0.5)

    module = torch.nn.Linear(2, 2)
    said = []
    for advance in (repeated(function, module), lambda x: function(module, x)):
        torch.manual_seed(0)
        said.append(torch.stack([advance(torch.full((2,), float(step))) for step in range(4)]))
    assert torch.equal(*said)


def test_two_arguments_that_are_one_are_not_told_apart():
    def function(module, x, y):
        return module(x) - module(y)

    with torch.no_grad():
        module, x = torch.nn.Linear(2, 2), torch.ones(2)
        advance = repeated(function, module)
        assert torch.equal(advance(x, x), torch.zeros(2))
        assert torch.equal(advance(x, 2 * x), function(module, x, 2 * x))
