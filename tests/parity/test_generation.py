"""Generation: both twins say the same, whatever the batch, and go on where the other stopped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import attn
import attn_jax
import attn_torch
from attn_torch import compiling

V, B, T, STEPS = 19, 3, 7, 11
VALID = np.array([[1] * T, [0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]], bool)
"""One whole prompt, one padded on the left, one on the right."""

ATTENTION = attn.GroupedQueryAttentionConfig(input_dim=12, heads=6, kv_heads=3, mask=attn.Causal(), rope=attn.Rope())
WINDOW = ATTENTION.replace(mask=attn.SlidingWindow(width=4))
CFG = attn.DecoderConfig(
    vocab_size=V,
    layers=2,
    attention=(ATTENTION, WINDOW),
    mlp=attn.MLPConfig(input_dim=12, hidden_dim=23),
    tied=False,
)


@pytest.fixture(scope="module")
def twins():
    weights = {name: 3 * array for name, array in attn.init_weights(CFG, seed=0).items()}
    module = attn_torch.build(CFG)
    module.load_state_dict(attn_torch.from_neutral(CFG, weights))
    return module, attn_jax.build(CFG), attn_jax.from_neutral(CFG, weights)


PROMPTS = np.random.default_rng(0).integers(0, V, (B, T))
WAYS = {
    "greedy": {},
    "drawn": {"temperature": 0.9, "top_k": 11, "top_p": 0.8, "seed": 5},
    "stopped": {"temperature": 1.0, "seed": 1, "stop": 13},
    "beams": {"beams": 3},
    "stopped_beams": {"beams": 3, "stop": 13},
}


SOONER = ("greedy", "drawn", "beams")


@pytest.mark.parametrize("way", [way if way in SOONER else pytest.param(way, marks=pytest.mark.full) for way in WAYS])
def test_both_twins_say_the_same_and_a_padded_prompt_what_it_says_alone(twins, way):
    module, flax_module, variables = twins
    options = WAYS[way]
    in_torch = attn_torch.generate(
        module, torch.from_numpy(PROMPTS), STEPS, valid=torch.from_numpy(VALID), **options
    ).numpy()
    in_jax = np.asarray(attn_jax.generate(flax_module, variables, PROMPTS, STEPS, valid=VALID, **options))
    np.testing.assert_array_equal(in_torch, in_jax)
    np.testing.assert_array_equal(in_torch[:, :T], PROMPTS)
    if options.get("temperature"):
        return
    for row in range(B):
        alone = torch.from_numpy(PROMPTS[row : row + 1, VALID[row]])
        np.testing.assert_array_equal(
            attn_torch.generate(module, alone, STEPS, **options)[0, -STEPS:], in_torch[row, T:]
        )


@pytest.mark.parametrize("way", ["drawn", "stopped"])
def test_a_stream_is_the_generation_until_all_rows_have_stopped(twins, way):
    module, flax_module, variables = twins
    options = WAYS[way]
    call = {"valid": VALID} | options
    in_torch = [
        token.numpy()
        for token in attn_torch.stream(
            module, torch.from_numpy(PROMPTS), STEPS, valid=torch.from_numpy(VALID), **options
        )
    ]
    in_jax = list(map(np.asarray, attn_jax.stream(flax_module, variables, PROMPTS, STEPS, **call)))
    whole = np.asarray(attn_jax.generate(flax_module, variables, PROMPTS, STEPS, **call))[:, T:]
    np.testing.assert_array_equal(np.stack(in_torch, 1), whole[:, : len(in_torch)])
    np.testing.assert_array_equal(np.stack(in_jax, 1), np.stack(in_torch, 1))
    assert (whole[:, len(in_torch) :] == options.get("stop")).all()


@pytest.mark.parametrize("way", ["greedy", "drawn", "beams"])
def test_a_compiled_generation_is_one_graph_and_says_the_same(twins, monkeypatch, way):
    module, _, _ = twins
    counter = CompileCounterWithBackend("eager")
    monkeypatch.setattr(compiling, "BACKEND", counter)
    torch.compiler.reset()
    prompts = torch.from_numpy(PROMPTS)
    for text in (prompts, prompts.flip(1)):
        told = attn_torch.generate(module, text, STEPS, **WAYS[way], compile=True)
        assert torch.equal(told, attn_torch.generate(module, text, STEPS, **WAYS[way]))
    assert counter.frame_count == 1


def test_compiled_code_is_shared_by_models_of_one_form_and_hears_a_hook(twins, monkeypatch):
    module, _, _ = twins
    counter = CompileCounterWithBackend("eager")
    monkeypatch.setattr(compiling, "BACKEND", counter)
    torch.compiler.reset()
    prompts, other = torch.from_numpy(PROMPTS), attn_torch.build(CFG)
    other.load_state_dict({name: -array for name, array in module.state_dict().items()})
    for model in (module, other):
        told = attn_torch.generate(model, prompts, STEPS, compile=True)
        assert torch.equal(told, attn_torch.generate(model, prompts, STEPS))
    assert counter.frame_count == 1
    handle = other.head.register_forward_hook(lambda part, x, y: -y)
    hooked = attn_torch.generate(other, prompts, STEPS, compile=True)
    assert torch.equal(hooked, attn_torch.generate(other, prompts, STEPS))
    assert not torch.equal(hooked, told)
    handle.remove()
    assert torch.equal(attn_torch.generate(other, prompts, STEPS, compile=True), told)


@pytest.mark.parametrize(
    "change",
    [
        lambda module: module.to(torch.float64),
        lambda module: module.train(),
        lambda module: module.layers[1].register_forward_pre_hook(lambda *_: None),
        lambda module: setattr(module, "head", torch.nn.Sequential(module.head)),
    ],
)
def test_a_form_says_what_compiled_code_takes_for_granted(change):
    module = attn_torch.build(CFG).eval()
    before = compiling.form_of(module)
    assert compiling.form_of(attn_torch.build(CFG).eval()) == before
    change(module)
    assert compiling.form_of(module) != before


@pytest.mark.full
def test_the_compiler_of_pytorch_says_the_same(twins):
    module, _, _ = twins
    prompts = torch.from_numpy(PROMPTS)
    told = attn_torch.generate(module, prompts, STEPS, **WAYS["drawn"], compile=True)
    assert torch.equal(told, attn_torch.generate(module, prompts, STEPS, **WAYS["drawn"]))


def test_jax_traces_one_step_for_a_whole_stream_and_one_program_for_a_generation(twins, monkeypatch):
    _, flax_module, variables = twins
    traces = []
    apply = type(flax_module).apply

    def counted(module, *args, **call):
        traces.append(args[1].shape)
        return apply(module, *args, **call)

    monkeypatch.setattr(type(flax_module), "apply", counted)
    for prompts in (PROMPTS, PROMPTS[::-1]):
        # Sizes of its own, or an earlier test would have traced them.
        list(attn_jax.stream(flax_module, variables, prompts[:2, :6], 9))
        attn_jax.generate(flax_module, variables, prompts[:2, :6], 9)
    assert traces == [(2, 6), (2, 1)]


def test_a_draw_depends_on_its_row_and_step_not_on_the_batch_or_the_number_of_steps(twins):
    module, _, _ = twins
    options = {"temperature": 1.0, "seed": 3}
    prompts = torch.from_numpy(PROMPTS)
    whole = attn_torch.generate(module, prompts, STEPS, **options)
    assert torch.equal(attn_torch.generate(module, prompts[:2], 5, **options), whole[:2, : T + 5])


def test_one_beam_more_is_never_less_probable(twins):
    module, _, _ = twins

    def sums(tokens):
        logs = torch.log_softmax(module(tokens)[:, T - 1 : -1], dim=-1)
        return torch.gather(logs, 2, tokens[:, T:, None])[..., 0].sum(1)

    prompts = torch.from_numpy(PROMPTS)
    greedy, best = (attn_torch.generate(module, prompts, 5, beams=beams) for beams in (1, V))
    assert (sums(best) >= sums(greedy)).all()
    assert not torch.equal(best, greedy)


def test_after_its_stop_token_a_row_repeats_it(twins):
    module, _, _ = twins
    told = attn_torch.generate(module, torch.from_numpy(PROMPTS), STEPS, temperature=1.0, seed=1, stop=13)[:, T:]
    for row in told.tolist():
        if 13 in row:
            assert set(row[row.index(13) :]) == {13}
    assert (told == 13).any()
    assert (told[:, 0] != 13).any()


@pytest.mark.parametrize("begins", ["torch", "jax"])
def test_a_generation_begun_in_one_twin_is_finished_in_the_other(twins, begins):
    module, flax_module, variables = twins
    whole = attn_torch.generate(module, torch.from_numpy(PROMPTS), STEPS).numpy()
    half = T + 5
    read, rest = whole[:, : half - 1], whole[:, half:]
    if begins == "torch":
        with torch.no_grad():
            _, cache = module(torch.from_numpy(read), cache=attn_torch.init_cache(CFG, B, T + STEPS))
        arrays = attn_torch.cache_to_neutral(CFG, cache)
    else:
        cache = attn_jax.init_cache(CFG, B, T + STEPS)
        _, cache = jax.jit(flax_module.apply)(variables, read, cache=cache)
        arrays = attn_jax.cache_to_neutral(CFG, cache)
    told, token, apply = [], whole[:, half - 1], jax.jit(flax_module.apply)
    in_torch, in_jax = attn_torch.cache_from_neutral(CFG, arrays), attn_jax.cache_from_neutral(CFG, arrays)
    for _ in range(rest.shape[1]):
        if begins == "jax":
            with torch.no_grad():
                logits, in_torch = module(torch.from_numpy(token[:, None]), cache=in_torch)
            token = logits[:, 0].argmax(-1).numpy()
        else:
            logits, in_jax = apply(variables, jnp.asarray(token[:, None]), cache=in_jax)
            token = np.asarray(logits[:, 0].argmax(-1))
        told.append(token)
    np.testing.assert_array_equal(np.stack(told, 1), rest)


REFUSED = {
    "steps must be at least 1; got 0.": {"steps": 0},
    "beams must lie between 1 and 19; got 0.": {"beams": 0},
    "temperature must be 0 for a beam search, which draws nothing; got 0.5.": {"beams": 2, "temperature": 0.5},
    "stop must lie between 0 and 18; got 19.": {"stop": 19},
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_generated_is_refused_by_both(twins, text):
    module, flax_module, variables = twins
    options = {"steps": STEPS} | REFUSED[text]
    with pytest.raises(ValueError) as in_torch:  # noqa: PT011 (the text is compared whole)
        attn_torch.generate(module, torch.from_numpy(PROMPTS), **options)
    with pytest.raises(ValueError) as in_jax:  # noqa: PT011
        attn_jax.generate(flax_module, variables, PROMPTS, **options)
    assert str(in_torch.value) == str(in_jax.value) == text
