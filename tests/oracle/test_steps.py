"""The JAX twin's kernel for a few queries over many keys against the plain form: values, gradients, and the choice."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
import attn_jax
from attn.kernels import Facts, Slower
from attn.masks import Causal, Full, SlidingWindow
from attn.tolerance import bound, floors, row_error
from attn_jax.kernels import choice, plain, steps
from attn_jax.scope import survey
from attn_jax.scoring import Scoring
from tests.cases import draw, weights_of

B, M, H, K, D, E = 2, 11, 6, 3, 7, 5
CFG = attn.GroupedQueryAttentionConfig(input_dim=M, heads=H, kv_heads=K, dim_k=H * D, dim_v=H * E)
SLOPES = (0.5, 0.3, 0.2, 0.1, 0.05, 0.02)


def call_of(S: int, T: int, options: tuple[str, ...]) -> dict[str, Any]:
    """What a call over S keys brings: its queries are the last tokens of rows that may be short."""
    ends = {"ragged": (S, S // 3 + 1), "early": (S // 8 + 1, S // 5 + 1)}
    lengths = np.array(next((rows for name, rows in ends.items() if name in options), (S, S)))[:, None]
    call: dict[str, Any] = {"positions": np.maximum(lengths - T + np.arange(T), 0)}
    if (lengths < S).any():
        call["context_valid"] = np.arange(S) < lengths
    if "allowed" in options:
        call["allowed"] = np.random.default_rng(S).random((1, H, T, S)) < 0.7
    return call


def run(kernel, rule, T, S, options, arrays, direction):
    """The values, and the gradients of q, k, v, bias and sinks."""
    scope = survey(B, T, S, **call_of(S, T, options))
    softcap, slopes = 1.5 if "softcap" in options else None, SLOPES if "alibi" in options else None

    def loss(arrays):
        scoring = Scoring(D**-0.5, softcap, slopes, arrays.get("relative"), arrays.get("sinks"))
        y = kernel.attend(rule, scope, scoring, arrays["q"], arrays["k"], arrays["v"], arrays.get("bias"))
        return (y * direction).sum(), y

    found, y = jax.jit(jax.grad(loss, has_aux=True))(arrays)
    assert {x.dtype for x in (y, *found.values())} == {direction.dtype}
    return {name: np.array(x, "float64") for name, x in (found | {"y": y}).items()}


def assert_steps_are_plain(rule, S, T=1, options=(), dtype="float64", kv_heads=K):
    """Under the bound of the plain form in float64, from the same numbers."""
    shapes = {"q": (B, T, H, D), "k": (B, S, kv_heads, D), "v": (B, S, kv_heads, E), "direction": (B, T, H, E)}
    shapes |= {"bias": (1, H, T, S)} if "bias" in options else {}
    shapes |= {"relative": (H, 31)} if "t5" in options else {}
    shapes |= {"sinks": (H,)} if "sinks" in options else {}
    drawn = {name: draw(*shape, seed=n, dtype=dtype) for n, (name, shape) in enumerate(shapes.items())}
    with jax.enable_x64(True):
        arrays = {name: jnp.asarray(x) for name, x in drawn.items()}
        found = run(steps, rule, T, S, options, arrays, arrays.pop("direction"))
        arrays = {name: jnp.asarray(x, "float64") for name, x in drawn.items()}
        expected = run(plain, rule, T, S, options, arrays, arrays.pop("direction"))
    assert row_error(found.pop("y"), expected.pop("y")) <= bound(CFG, T, S, dtype)
    floor = floors(expected, {name: float(np.linalg.norm(gradient)) for name, gradient in expected.items()})
    for name, gradient in expected.items():
        limit = bound(CFG, T, S, dtype, gradient=True, batch=B)
        assert row_error(found[name], gradient, floor[name]) <= limit, name


@pytest.mark.parametrize(
    ("rule", "S", "T", "options", "dtype", "kv_heads"),
    [
        (Causal(), 1, 1, (), "float64", K),
        (Full(), 31, 1, ("sinks", "bias"), "float64", K),
        (Causal(), 127, 1, ("ragged", "softcap"), "float32", H),
        (Causal(), 129, 1, ("early", "alibi"), "bfloat16", K),
        (SlidingWindow(width=50), 129, 3, ("allowed", "sinks"), "float64", K),
        (Causal(), 1000, 2, ("ragged", "bias", "sinks"), "float32", 1),
        (Causal(), 129, 1, ("ragged", "t5"), "float64", K),
    ],
)
def test_steps_give_the_values_and_gradients_of_the_plain_form(rule, S, T, options, dtype, kv_heads):
    assert_steps_are_plain(rule, S, T, options, dtype, kv_heads)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("S", [1, 31, 127, 129, 1000])
@pytest.mark.parametrize("options", [(), ("ragged",), ("early", "softcap", "alibi"), ("allowed", "bias", "sinks")])
def test_no_size_is_special(options, S, dtype):
    for kv_heads, T in ((K, 1), (1, 2), (H, 3)):
        assert_steps_are_plain(Causal(), S, T, options, dtype, kv_heads)


@pytest.mark.parametrize("sunk", [False, True])
def test_queries_that_see_nothing_give_0_and_move_nothing(sunk):
    S = 129
    with jax.enable_x64(True):
        arrays = [jnp.asarray(draw(B, n, heads, D, seed=n)) for n, heads in ((1, H), (S, K), (S, K))]
        scope = survey(B, 1, S, context_valid=np.arange(S) < np.array([[S // 2], [0]]))
        sinks = jnp.asarray(draw(H)) if sunk else None

        def value(*arrays):
            return steps.attend(Full(), scope, Scoring(0.3, sinks=arrays[3]), *arrays[:3], None)

        y, pull = jax.vjp(value, *arrays, sinks)
        assert np.array(y[0]).all()
        assert not np.array(y[1]).any()
        for gradient in jax.tree.leaves(
            pull(jnp.where(np.array([False, True])[:, None, None, None], 1.0, 0.0) + 0 * y)
        ):
            assert not np.array(gradient).any()
        assert all(np.isfinite(np.array(gradient)).all() for gradient in jax.tree.leaves(pull(jnp.ones_like(y))))


def test_slots_behind_the_part_in_use_are_never_read():
    # 160 keys in parts of 40: of the first 41 two parts are read, and what lies behind may be anything.
    S = 160
    q, k, v = (draw(B, n, heads, D, seed=n, dtype="float32") for n, heads in ((1, H), (S, K), (S, K)))
    scope = survey(B, 1, S, context_valid=np.arange(S) < np.array([[41], [7]]))

    def loss(q, k, v):
        return (steps.attend(Full(), scope, Scoring(0.3), q, k, v, None) ** 2).sum()

    spoilt = [np.where(np.arange(S)[:, None, None] < 80, x, np.nan) for x in (k, v)]
    y, gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(q, *spoilt)
    expected, slopes = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(q, k, v)
    assert np.isfinite(y)
    np.testing.assert_array_equal(y, expected)
    for gradient, slope in zip(gradients, slopes, strict=True):
        np.testing.assert_array_equal(gradient, slope)


def test_nan_in_a_hidden_key_reaches_no_value():
    S = 31
    q, k, v = (draw(1, n, heads, D, seed=n, dtype="float32") for n, heads in ((1, H), (S, K), (S, K)))
    scope = survey(1, 1, S, context_valid=np.arange(S)[None] != 5)
    spoilt = np.where(np.arange(S)[:, None, None] == 5, np.nan, k)
    found, expected = (steps.attend(Full(), scope, Scoring(0.3), q, k, v, None) for k in (spoilt, k))
    np.testing.assert_array_equal(found, expected)


def test_dropout_drops_weights_and_scales_the_others():
    S, rate = 31, 0.3
    q, k = (draw(B, n, heads, D, seed=n, dtype="float32") for n, heads in ((1, H), (S, K)))
    one = jnp.broadcast_to(jnp.eye(S)[:, None], (B, S, K, S))

    def weights(**dropout):
        return np.array(steps.attend(Full(), survey(B, 1, S), Scoring(0.3, **dropout), q, k, one, None))

    whole, thinned = weights(), weights(dropout=rate, rng=jax.random.key(3))
    kept = thinned != 0
    assert row_error(thinned, np.where(kept, whole / (1 - rate), 0)) <= bound(CFG, 1, S, "float32")
    assert abs(kept.mean() - (1 - rate)) < 5 * np.sqrt(rate * (1 - rate) / kept.size)


@pytest.mark.parametrize("width", [None, 6])
def test_a_prompt_and_steps_on_a_cache_are_the_whole(width):
    cfg = CFG.replace(mask={"kind": "causal"} if width is None else {"kind": "sliding_window", "width": width})
    x = draw(B, 13, M)
    valid = np.arange(13) < np.array([[13], [8]])
    with jax.enable_x64(True):
        variables = attn_jax.from_neutral(cfg, weights_of(cfg))
        module = attn_jax.build(cfg, kernel="steps")
        whole = attn_jax.build(cfg, kernel="plain").apply(variables, x, valid=valid)
        cache, found = attn_jax.init_cache(cfg, B, 17, dtype="float64"), []
        for start, stop in ((0, 7), (7, 8), (8, 9), (9, 13)):
            y, cache = module.apply(variables, x[:, start:stop], valid=valid[:, start:stop], cache=cache)
            found.append(y)
        assert row_error(np.concatenate(found, axis=1), whole) <= bound(cfg, 13, 17, "float64")


# The choice.


def facts_of(**facts: Any) -> Facts:
    """One query over a cache, of which steps refuse nothing but for what is said."""
    usual = {"rule": Causal(), "queries": 1, "keys": 201, "dim_k": 8, "dim_v": 8, "dtype": "float32"}
    usual |= {"device": "cpu", "bias_learns": False, "given": frozenset({"cache"}), "heads": 8}
    return Facts(**(usual | facts))


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({}, None),
        ({"dtype": "float64", "heads": 32, "keys": 128}, None),
        ({"keys": 1_000_000}, None),
        ({"options": frozenset({"softcap", "alibi", "sinks", "dropout"})}, None),
        ({"device": "cuda"}, "steps are a CPU's form; got cuda"),
        ({"dtype": "bfloat16"}, "the plain form is faster in half types; got bfloat16"),
        ({"queries": 2}, "other forms are faster for more than one query; got 2"),
        ({"heads": 33}, "the plain form is faster for more than 32 heads; got 33"),
        ({"keys": 127}, "the plain form is faster below 128 keys; got 127"),
    ],
)
def test_when_steps_are_the_better_form(facts, reason):
    refused = steps.refusal(facts_of(**facts))
    assert refused == reason
    assert reason is None or isinstance(refused, Slower)


def test_explain_says_that_a_step_on_a_cache_runs_them():
    cfg = CFG.replace(mask={"kind": "causal"})
    sizes = {"batch": B, "keys": 201, "dtype": "float32", "device": "cpu", "given": ("cache",)}
    assert attn_jax.explain(cfg, queries=1, **sizes) == (
        ("splash", False, "splash attention is a TPU's kernel; got cpu"),
        ("cudnn", False, "cuDNN needs a CUDA device; got cpu"),
        ("steps", True, "the first that can run this call"),
        ("blocks", False, "the plain form is faster up to 2097152 scores; got 2412"),
        ("plain", False, "a faster kernel can run this call"),
    )
    rows = {row.kernel: row for row in attn_jax.explain(cfg, queries=2, **sizes)}
    assert rows["steps"].reason == "other forms are faster for more than one query; got 2"
    assert rows["plain"].chosen


def test_a_step_on_a_cache_runs_what_explain_says(monkeypatch):
    cfg, called = CFG.replace(mask={"kind": "causal"}), []
    for name, kernel in tuple(choice.KERNELS.items()):
        noting = lambda *call, name=name, kernel=kernel: (called.append(name), kernel(*call))[1]  # noqa: E731
        monkeypatch.setitem(choice.KERNELS, name, noting)
    variables = attn_jax.from_neutral(cfg, weights_of(cfg, "float32"))
    module, cache = attn_jax.build(cfg), attn_jax.init_cache(cfg, B, 131)
    for length in (3, 1):
        _, cache = module.apply(variables, draw(B, length, M, dtype="float32"), cache=cache)
    assert called == ["plain", "steps"]
