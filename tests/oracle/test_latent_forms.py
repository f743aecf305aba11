"""The two forms of latent attention are one function: values, gradients, cached steps; and what its cache holds."""

from importlib import import_module

import ml_dtypes
import numpy as np
import pytest

import attn
from attn.costs import expanded_numbers
from attn.presets import DEEPSEEK_V3
from attn.rope import YarnRope
from attn.tolerance import bound, by_row, floors, row_error
from tests.cases import B, T, draw, in_both, in_both_for, weights_of
from tests.twins import is_wide

SIMPLE = attn.MultiHeadLatentAttentionConfig(
    input_dim=13, heads=3, kv_lora_rank=7, dim_k=15, dim_v=33, bias=True, mask=attn.Causal()
)
YARN = YarnRope(theta=100.0, factor=4.0, original_length=8, mscale=1.0, mscale_all_dim=1.0)
DEEPSEEK = SIMPLE.replace(
    bias=(False, True, True, False, False, True, True),
    q_lora_rank=5,
    rope_dim=6,
    rope=YARN,
    latent_norm={"eps": 1e-5},
    sinks=True,
)
FORMS = {"simple": SIMPLE, "deepseek": DEEPSEEK, "window": DEEPSEEK.replace(mask=attn.SlidingWindow(width=3))}
ROWS = {"valid": np.arange(T) % 5 != 3, "segments": np.arange(T) // 6}

LIMITS = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 1e-2}
"""How far the forms may part, relative to all that they say."""

KINDS = {"bfloat16": ml_dtypes.bfloat16}


def assert_alike(cfg, actual, expected, dtype):
    """Under the limit as a whole; and each row under the bound of two computations that round apart."""
    assert np.linalg.norm(actual - expected) <= LIMITS[dtype] * np.linalg.norm(expected)
    assert row_error(actual, expected) <= 2 * bound(cfg, T, T, dtype)


def in_form(twin, cfg, form, dtype, x, **call):
    """y of one form in numbers of float64."""
    kind = np.dtype(KINDS.get(dtype, dtype))
    weights = {name: array.astype(kind) for name, array in weights_of(cfg).items()}
    found = twin(cfg, weights, x.astype(kind), options={"kernel": form}, compiled=twin.name == "jax", **call)
    return (found[0].astype(float), found[1]) if isinstance(found, tuple) else found.astype(float)


@in_both_for("name dtype", [(name, dtype) for name in FORMS for dtype in LIMITS], [("deepseek", d) for d in LIMITS])
def test_the_forms_say_the_same(twin, name, dtype):
    cfg, x = FORMS[name], draw(B, T, 13)
    expanded, absorbed = (in_form(twin, cfg, form, dtype, x, **ROWS) for form in ("expanded", "absorbed"))
    assert_alike(cfg, absorbed, expanded, dtype)
    assert dtype == "float64" or not np.array_equal(absorbed, expanded)  # two computations, not one


@in_both_for(
    "name dtype", [(name, dtype) for name in FORMS for dtype in ("float64", "float32")], [("deepseek", "float64")]
)
def test_so_do_their_gradients(twin, name, dtype):
    cfg = FORMS[name]
    weights, x, direction = weights_of(cfg, dtype), draw(B, T, 13, dtype=dtype), draw(B, T, 13, seed=5, dtype=dtype)
    assert is_wide(weights) == (dtype == "float64")
    expanded, absorbed = (
        by_row(cfg, twin.gradients(cfg, weights, direction, x, options={"kernel": form}, **ROWS))
        for form in ("expanded", "absorbed")
    )
    floor = floors(expanded, {name: float(np.linalg.norm(gradient)) for name, gradient in expanded.items()})
    for part, gradient in expanded.items():
        assert row_error(absorbed[part], gradient, floor[part]) <= LIMITS[dtype], part


@in_both_for("name dtype", [(name, dtype) for name in FORMS for dtype in LIMITS], [("deepseek", "float32")])
def test_absorbed_steps_over_a_cache_say_what_the_whole_says_expanded(twin, name, dtype):
    cfg, x = FORMS[name], draw(B, T, 13)
    whole = in_form(twin, cfg, "expanded", dtype, x)
    cache, told = twin.init_cache(cfg, B, T, dtype), []
    for piece in (x[:, :4], *(x[:, t : t + 1] for t in range(4, T))):
        y, cache = in_form(twin, cfg, "absorbed", dtype, piece, cache=cache)
        told.append(y)
    assert_alike(cfg, np.concatenate(told, axis=1), whole, dtype)


@in_both
def test_the_cache_of_a_deepseek_v3_layer_holds_576_numbers_a_token(twin):
    length = 7
    module = pytest.importorskip(f"attn_{twin.name}")
    arrays = module.cache_to_neutral(DEEPSEEK_V3, twin.init_cache(DEEPSEEK_V3, 1, length, "bfloat16"))
    kept = {name: array.size for name, array in arrays.items() if name.startswith("layers.")}
    assert sum(kept.values()) / length == 576
    assert expanded_numbers(DEEPSEEK_V3) // 576 == 71


@in_both
@pytest.mark.parametrize("name", ["simple", "deepseek"])
def test_the_widths_that_are_explained_are_those_that_a_kernel_gets(twin, name, monkeypatch):
    cfg, kernels, seen = FORMS[name].replace(kv_lora_rank=90), import_module(f"attn_{twin.name}.kernels"), []
    attend = kernels.attend

    def spy(rule, scope, scoring, q, k, v, **more):
        seen.append((q.shape[-1], v.shape[-1]))
        return attend(rule, scope, scoring, q, k, v, **more)

    monkeypatch.setattr(kernels, "attend", spy)
    twin(cfg, weights_of(cfg), draw(2, 29, 13))
    twin(cfg, weights_of(cfg), draw(2, 1, 13), cache=twin.init_cache(cfg, 2, 37))
    assert seen == [cfg.score_widths(29, 29), cfg.score_widths(1, 37)]
    assert seen[0] != seen[1]
