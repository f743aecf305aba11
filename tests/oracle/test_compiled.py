"""Compiled code says what plain code says, and is compiled once whatever its arrays hold."""

from functools import partial

import jax
import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter

import attn
from attn.tolerance import floors, row_error
from tests.cases import CASES, B, S, T, assert_close, decoder, draw, in_both, sides_of, weights_of
from tests.twins import TWINS

JAX, TORCH = TWINS
# One case for each mechanism and direction, and a model of them.
NAMES = ["grouped_query", "multi_query", "multi_head_reading", "latent", "decoder"]


def cfg_of(name: str):
    return decoder(learned_positions=2 * T) if name == "decoder" else CASES[name]


def call_of(cfg, seed: int) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """A batch and what is said of its tokens, another for each seed."""
    rng = np.random.default_rng(seed)
    rows = {"valid": rng.random((B, T)) < 0.8, "segments": rng.integers(0, 3, (B, T)).cumsum(1)}
    if cfg.variant == "decoder":
        return [rng.integers(0, cfg.vocab_size, (B, T))], rows | {"positions": rng.integers(0, T, (B, T))}
    sides = [draw(*side.shape, seed=seed) for side in sides_of(cfg)]
    if cfg.reads is not None:
        return sides, {"valid": rows["valid"], "context_valid": rng.random((B, S)) < 0.8}
    return sides, rows | {"positions": rng.integers(0, 1000, (B, T))}


def tensors(given):
    return [torch.from_numpy(a) for a in given[0]], {name: torch.from_numpy(a) for name, a in given[1].items()}


@in_both
@pytest.mark.parametrize("name", NAMES)
def test_compiled_code_says_the_same(twin, name):
    cfg = cfg_of(name)
    sides, rows = call_of(cfg, 1)
    y = twin(cfg, weights_of(cfg), *sides, **rows, compiled=True)
    assert_close(y, attn.reference(cfg, weights_of(cfg), *sides, **rows))


def gradients_of(loss: torch.Tensor, module: torch.nn.Module) -> dict[str, np.ndarray]:
    names, parameters = zip(*module.named_parameters(), strict=True)
    return {name: array.numpy() for name, array in zip(names, torch.autograd.grad(loss, parameters), strict=True)}


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_what_the_compiler_of_pytorch_writes_says_the_same(name):
    cfg = cfg_of(name)
    module = TORCH.module(cfg, weights_of(cfg))
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True)
    sides, rows = tensors(call_of(cfg, 1))
    y, expected = compiled(*sides, **rows), module(*sides, **rows)
    assert_close(y.detach().numpy(), expected.detach().numpy())
    direction = torch.from_numpy(draw(*y.shape, seed=9))
    found, gradients = (gradients_of((out * direction).sum(), module) for out in (y, expected))
    # A bias of the keys has no gradient but rounding, which is measured against its kernel's.
    least = floors(gradients, {name: float(np.linalg.norm(gradient)) for name, gradient in gradients.items()})
    errors = {name: row_error(found[name], gradients[name], least[name]) for name in found}
    assert {name: error for name, error in errors.items() if error > 1e-12} == {}


@pytest.mark.parametrize("name", NAMES)
def test_pytorch_compiles_one_graph_whatever_the_arrays_hold(name):
    cfg = cfg_of(name)
    module, counter = TORCH.module(cfg, weights_of(cfg)), CompileCounter()
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    for seed in range(4):
        sides, rows = tensors(call_of(cfg, seed))
        with torch.no_grad():
            assert_close(compiled(*sides, **rows).numpy(), module(*sides, **rows).numpy())
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", NAMES)
def test_jax_traces_once_whatever_the_arrays_hold(name):
    cfg, traces = cfg_of(name), []
    with jax.enable_x64():
        module, variables = JAX.module(cfg, weights_of(cfg))

        @jax.jit
        def apply(variables, sides, rows):
            traces.append(1)
            return module.apply(variables, *sides, **rows)

        for seed in range(4):
            apply(variables, *jax.tree.map(np.asarray, call_of(cfg, seed)))
    assert len(traces) == 1


@pytest.mark.parametrize("name", ["grouped_query", "multi_query", "decoder"])
def test_pytorch_compiles_one_step_for_all(name):
    cfg = cfg_of(name)
    module, counter = TORCH.module(cfg, weights_of(cfg)), CompileCounter()
    (x,), _ = call_of(cfg, 1)
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    with torch.no_grad():
        whole = module(torch.from_numpy(x)).numpy()
        y, cache = module(torch.from_numpy(x[:, :4]), cache=TORCH.init_cache(cfg, B, T))
        for t in range(4, T):
            y, cache = compiled(torch.from_numpy(x[:, t : t + 1]), cache=cache)
            assert_close(y[:, 0].numpy(), whole[:, t])
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", ["grouped_query", "multi_query", "decoder"])
def test_jax_traces_one_step_for_all(name):
    cfg, traces = cfg_of(name), []
    (x,), _ = call_of(cfg, 1)
    with jax.enable_x64():
        module, variables = JAX.module(cfg, weights_of(cfg))

        @partial(jax.jit, donate_argnums=2)
        def step(variables, x, cache):
            traces.append(1)
            return module.apply(variables, x, cache=cache)

        whole = attn.reference(cfg, weights_of(cfg), x)
        cache = JAX.init_cache(cfg, B, T)
        for t in range(T):
            y, cache = step(variables, x[:, t : t + 1], cache)
            assert_close(np.asarray(y[:, 0]), whole[:, t])
    assert len(traces) == 1
