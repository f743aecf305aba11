"""Every variant in both twins against the float64 reference, and the twins against one another, under the bound."""

import re
from itertools import product

import numpy as np
import pytest

import attn
from attn import parity
from attn.parity import checking
from attn.parity.founding import FOUNDING, X
from tests.cases import refused

BY_NAME = {cfg.variant: cfg for cfg in FOUNDING}
ALL = ("valid", "segments", "positions", "allowed", "bias")

GPT = attn.DecoderConfig(
    vocab_size=23,
    layers=2,
    attention=attn.MultiHeadAttentionConfig(input_dim=29, heads=3, dim_k=33, dim_v=39, bias=True, mask=attn.Causal()),
    mlp=attn.MLPConfig(input_dim=29, hidden_dim=37, activation="gelu_tanh", gated=False, bias=True),
    norm=attn.NormConfig(kind="layer"),
    tied=False,
    learned_positions=71,
)
"""What the founding decoder is not: layer norms, learned positions, biases, a plain MLP and a head of its own."""

CONFIGS = {
    **BY_NAME,
    **{
        f"{name}_reading": cfg.replace(context_dim=X)
        for name, cfg in BY_NAME.items()
        if "mask" in type(cfg).model_fields
    },
    "plain": attn.MultiHeadAttentionConfig(input_dim=29, heads=3, dim_k=33, dim_v=39, bias=(False, True, False, True)),
    "chunked": BY_NAME["grouped_query"].replace(
        mask={"kind": "any", "of": [{"kind": "chunked", "width": 5}, {"kind": "prefix", "length": 3}]}, scale=0.7
    ),
    "gpt": GPT,
    "gelu": GPT.replace(mlp=attn.MLPConfig(input_dim=29, hidden_dim=37, activation="gelu")),
}
del CONFIGS["cross_reading"]


def arguments_of(name: str) -> tuple[str, ...]:
    return ALL[:3] if isinstance(CONFIGS[name], attn.DecoderConfig) else ALL


def assert_under_bound(report: parity.Report) -> None:
    assert report.ok, report.worst
    assert report.notes == ()
    compared = {(row.quantity, row.comparison) for row in report.rows}
    quantities = {row.quantity for row in report.rows}
    assert compared == set(product(quantities, ("torch / reference", "jax / reference", "torch / jax")))


def named(case) -> str:
    return "-".join((case.cfg.variant, str(getattr(case.cfg, "reads", None)), *case.arguments))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=named(case), marks=() if case.arguments == ("valid",) else pytest.mark.full)
        for case in parity.cases()
    ],
)
def test_float32(case):
    report = parity.check(case.cfg, "float32", arguments=case.arguments)
    assert_under_bound(report)
    inputs = {"x"} if case.cfg.variant != "decoder" else set()
    inputs |= {"context"} if getattr(case.cfg, "reads", None) else set()
    expected = {f"gradient of {name}" for name in inputs | set(case.cfg.shapes())}
    assert {row.quantity for row in report.rows} == {"y"} | expected


@pytest.mark.parametrize("name", CONFIGS)
def test_float64_with_everything_a_call_may_bring(name):
    report = parity.check(CONFIGS[name], "float64", arguments=arguments_of(name))
    assert_under_bound(report)
    assert any(row.quantity == "gradient of bias" for row in report.rows) == ("bias" in report.arguments)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("arguments", [(), *((name,) for name in ALL), ("valid", "segments"), ALL], ids="-".join)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_in_every_call(name, arguments, dtype):
    arguments = tuple(argument for argument in arguments if argument in arguments_of(name))
    assert_under_bound(parity.check(CONFIGS[name], dtype, arguments=arguments, seed=1))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2, 12))
@pytest.mark.parametrize("name", ["cross", "causal", "grouped_query", "latent", "decoder"])
def test_float32_over_many_draws(name, seed):
    assert_under_bound(parity.check(CONFIGS[name], "float32", seed=seed, arguments=arguments_of(name)[:2]))


@pytest.mark.parametrize("keys", [1, 3])
def test_a_context_may_be_shorter_than_x_and_of_one_token(keys):
    """Over a single key the gradients of q and k vanish, and are measured against those that do not."""
    report = parity.check(BY_NAME["cross"], "float32", queries=7, keys=keys)
    assert report.ok, report.worst


def test_a_single_token():
    report = parity.check(BY_NAME["causal"], "float64", batch=1, queries=1)
    assert report.ok, report.worst


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.full)])
@pytest.mark.parametrize("name", ["cross", "grouped_query", "decoder"])
def test_half_types(name, dtype):
    assert_under_bound(parity.check(CONFIGS[name], dtype, arguments=("valid",)))


@pytest.fixture
def torch_gradients():
    return pytest.importorskip("attn_torch.gradients")


def planted(monkeypatch, module, change):
    """Parity of the causal variant when a twin's answer is changed on its way."""
    original = module.value_and_gradients

    def changed(*arguments):
        y, gradients = original(*arguments)
        return change(y, dict(gradients))

    monkeypatch.setattr(module, "value_and_gradients", changed)
    return parity.check(BY_NAME["causal"], "float32", queries=7)


@pytest.mark.parametrize("factor", [1 + 1e-4, np.nan])
def test_a_wrong_output_is_found(monkeypatch, torch_gradients, factor):
    report = planted(monkeypatch, torch_gradients, lambda y, gradients: (y * np.float32(factor), gradients))
    assert not report.ok
    wrong = {(row.quantity, row.comparison) for row in report.rows if row.error > row.bound}
    assert wrong == {("y", "torch / reference"), ("y", "torch / jax")}


@pytest.mark.parametrize("name", ["x", "v.kernel", "q.bias", "k.bias"])
def test_a_wrong_gradient_is_found(monkeypatch, torch_gradients, name):
    """Also one that should vanish: it must stay small beside the gradient of its kernel."""
    report = planted(
        monkeypatch, torch_gradients, lambda y, gradients: (y, gradients | {name: gradients[name] + np.float32(1e-3)})
    )
    wrong = {(row.quantity, row.comparison) for row in report.rows if row.error > row.bound}
    assert wrong == {(f"gradient of {name}", "torch / reference"), (f"gradient of {name}", "torch / jax")}


def test_a_gradient_that_is_lost_is_found(monkeypatch, torch_gradients):
    report = planted(
        monkeypatch, torch_gradients, lambda y, gradients: (y, gradients | {"v.kernel": 0 * gradients["v.kernel"]})
    )
    assert not report.ok
    assert report.worst.quantity == "gradient of v.kernel"


def test_coarse_products_are_refused(monkeypatch, torch_gradients):
    monkeypatch.setattr(torch_gradients, "matmul_error", lambda: 3.2e-4)
    with refused("float32 products of torch must be within 1e-05 here to compare anything; got 3.2e-04."):
        parity.check(BY_NAME["causal"])


@pytest.mark.parametrize("name", attn.BACKENDS)
def test_products_are_measured_and_fine_here(name):
    module = pytest.importorskip(f"attn_{name}.gradients")
    assert 1e-9 < module.matmul_error() < 1e-6


def test_with_one_twin_the_other_is_compared_with_the_reference_alone(monkeypatch):
    def backend(name):
        if name == "jax":
            raise ModuleNotFoundError("backend 'jax' needs its framework.")
        return attn.backend(name)

    monkeypatch.setattr(checking, "backend", backend)
    report = parity.check(BY_NAME["causal"], queries=7)
    assert report.ok
    assert {row.comparison for row in report.rows} == {"torch / reference"}
    assert report.notes == ("backend 'jax' needs its framework. Only torch and the reference are compared.",)


def test_without_any_twin_there_is_nothing_to_compare(monkeypatch):
    def backend(name):
        raise ModuleNotFoundError(f"backend {name!r} needs its framework.")

    monkeypatch.setattr(checking, "backend", backend)
    with pytest.raises(ModuleNotFoundError, match=re.escape("backend 'torch' needs its framework.")):
        parity.check(BY_NAME["causal"])


@pytest.mark.full
def test_all():
    reports = list(parity.check_all("float64"))
    assert len(reports) == len(parity.cases())
    assert all(report.ok for report in reports)
