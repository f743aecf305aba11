"""The kernels of the JAX twin that need a CUDA card or a TPU: who is chosen, and what they are given.

cuDNN is stood in for by the XLA form of the same function; splash attention runs in Pallas' interpreter.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
import attn_jax
from attn.kernels import Facts
from attn.masks import Causal, Chunked, Full, Prefix, SlidingWindow
from attn.tolerance import bound, floors, row_error
from attn_jax.functional import attention_weights
from attn_jax.kernels import cudnn, plain, splash
from attn_jax.scope import survey
from attn_jax.scoring import Scoring
from tests import terms
from tests.cases import draw, refused

B, T, S, H, K, D, E = 2, 131, 67, 6, 3, 7, 5
CFG = attn.GroupedQueryAttentionConfig(input_dim=1, heads=H, kv_heads=K, dim_k=H * D, dim_v=H * E)


def facts_of(device: str, **facts: Any) -> Facts:
    """A call that every kernel of that device can run, but for what is said."""
    usual = {"rule": Causal(), "queries": 1024, "keys": 1024, "dim_k": 64, "dim_v": 64, "dtype": "bfloat16"}
    usual |= {"device": device, "bias_learns": False, "given": frozenset(), "options": frozenset()}
    return Facts(**(usual | {name: frozenset(fact) if isinstance(fact, set) else fact for name, fact in facts.items()}))


WINDOW, BOTH_SIDES = SlidingWindow(width=300), SlidingWindow(width=300, symmetric=True)

CUDNN = [
    ({}, None),
    ({"dtype": "float16"}, None),
    ({"rule": WINDOW}, None),
    ({"rule": Full(), "keys": 77, "given": {"context", "positions"}}, None),
    ({"dim_k": 96, "dim_v": 60}, None),
    ({"device": "cpu"}, "cuDNN needs a CUDA device; got cpu"),
    ({"dtype": "float32"}, "cuDNN computes in float16 and bfloat16; got float32"),
    ({"options": {"sinks", "softcap"}}, "cuDNN has no sinks or softcap"),
    ({"options": {"dropout"}}, "cuDNN has no dropout"),
    ({"options": {"alibi"}}, "cuDNN has no alibi"),
    ({"given": {"bias"}}, "cuDNN's gradient of a bias is wrong for a batch"),
    ({"given": {"valid", "segments"}}, "segments and valid must enter a mask, which cuDNN takes for a bias"),
    ({"given": {"cache"}}, "cache must enter a mask, which cuDNN takes for a bias"),
    ({"dim_k": 192, "dim_v": 128}, "cuDNN takes heads of at most 128 numbers; got 192"),
    ({"rule": BOTH_SIDES}, "cuDNN has no symmetric window"),
    ({"rule": Chunked(width=9)}, "cuDNN has no rule 'chunked'"),
    ({"rule": WINDOW & Causal()}, "cuDNN has no rule 'all'"),
    ({"given": {"positions"}}, "positions may differ from indices"),
    ({"given": {"context"}}, "positions may differ from indices"),
    ({"keys": 1023}, "positions may differ from indices"),
]

SPLASH = [
    ({}, None),
    ({"dtype": "float32", "options": {"sinks", "softcap"}}, None),
    ({"given": {"valid", "segments"}}, None),
    ({"rule": Full(), "given": {"valid", "segments"}}, None),
    ({"rule": Full(), "keys": 77, "given": {"context", "positions"}}, None),
    ({"rule": WINDOW, "given": {"segments"}}, None),
    ({"rule": BOTH_SIDES | Chunked(width=9)}, None),
    ({"device": "cuda"}, "splash attention is a TPU's kernel; got cuda"),
    ({"dtype": "float64"}, "splash attention computes in float32 and bfloat16; got float64"),
    ({"options": {"dropout", "alibi"}}, "splash attention has no alibi or dropout"),
    ({"given": {"bias"}}, "splash attention has no bias"),
    ({"given": {"allowed"}}, "splash attention has no allowed"),
    ({"given": {"cache"}}, "a query might see no key at all"),
    ({"rule": Full(), "given": {"context", "valid"}}, "a query might see no key at all"),
    ({"rule": Prefix(length=9)}, "splash attention has no rule 'prefix'"),
    ({"rule": Prefix(length=9) & Causal()}, "splash attention has no rule 'all'"),
    ({"given": {"positions"}}, "positions may differ from indices"),
    ({"keys": 1023}, "positions may differ from indices"),
    ({"rule": WINDOW, "given": {"valid"}}, "valid part positions and indices"),
    ({"rule": Chunked(width=9), "given": {"valid", "segments"}}, "segments and valid part positions and indices"),
]


@pytest.mark.parametrize(("facts", "reason"), CUDNN)
def test_what_cudnn_refuses_and_why(facts, reason):
    assert cudnn.refusal(facts_of(**({"device": "cuda"} | facts))) == reason


@pytest.mark.parametrize(("facts", "reason"), SPLASH)
def test_what_splash_attention_refuses_and_why(facts, reason):
    assert splash.refusal(facts_of(**({"device": "tpu"} | facts))) == reason


@pytest.mark.parametrize(
    ("device", "dtype", "length", "chosen"),
    [
        ("cpu", "float32", 418, "plain"),
        ("cpu", "float32", 419, "blocks"),
        ("cuda", "bfloat16", 17, "cudnn"),
        ("gpu", "bfloat16", 17, "cudnn"),
        ("cuda", "float32", 1024, "blocks"),
        ("tpu", "bfloat16", 17, "splash"),
        ("rocm", "bfloat16", 1024, "blocks"),
    ],
)
def test_each_device_gets_its_kernel(device, dtype, length, chosen):
    cfg = CFG.replace(mask={"kind": "causal"})
    rows = attn_jax.explain(cfg, batch=B, queries=length, keys=length, dtype=dtype, device=device)
    assert [row.kernel for row in rows] == ["splash", "cudnn", "steps", "blocks", "plain"]
    assert [row.kernel for row in rows if row.chosen] == [chosen]


@pytest.mark.parametrize(
    ("rule", "batch", "length", "chosen"),
    [
        ({"kind": "full"}, 1, 591, "plain"),
        ({"kind": "full"}, 1, 592, "blocks"),
        ({"kind": "full"}, 64, 73, "plain"),
        ({"kind": "full"}, 64, 74, "blocks"),
        ({"kind": "sliding_window", "width": 64}, 1, 255, "plain"),
        ({"kind": "sliding_window", "width": 64}, 1, 256, "blocks"),
        ({"kind": "sliding_window", "width": 256}, 1, 256, "plain"),
        ({"kind": "chunked", "width": 64}, 1, 256, "blocks"),
    ],
)
def test_blocks_are_for_many_scores_or_for_those_that_they_skip(rule, batch, length, chosen):
    cfg = CFG.replace(mask=rule)
    rows = attn_jax.explain(cfg, batch=batch, queries=length, keys=length, dtype="float32", device="cpu")
    assert [row.kernel for row in rows if row.chosen] == [chosen]


def test_explain_says_in_a_clause_why_each_kernel_is_not_the_one():
    rows = attn_jax.explain(CFG, batch=B, queries=16, keys=128, dtype="float32", device="cpu", given=("context",))
    assert rows == (
        ("splash", False, "splash attention is a TPU's kernel; got cpu"),
        ("cudnn", False, "cuDNN needs a CUDA device; got cpu"),
        ("steps", False, "other forms are faster for more than one query; got 16"),
        ("blocks", False, "the plain form is faster up to 2097152 scores; got 24576"),
        ("plain", True, "the first that can run this call"),
    )


def test_a_slower_kernel_may_be_forced_and_an_impossible_one_may_not():
    x = draw(B, 13, 1, dtype="float32")
    variables = attn_jax.from_neutral(CFG, attn.init_weights(CFG, seed=0))
    y = attn_jax.build(CFG).apply(variables, x)
    forced = attn_jax.build(CFG, kernel="blocks").apply(variables, x)
    assert row_error(forced, y) <= bound(CFG, 13, 13, "float32")
    with refused("kernel 'cudnn' cannot run this call: cuDNN needs a CUDA device; got cpu."):
        attn_jax.build(CFG, kernel="cudnn").apply(variables, x)


def arrays_of(queries: int, keys: int, heads: int = H, kv_heads: int = K) -> tuple[np.ndarray, ...]:
    """q, k and v."""
    shapes = (B, queries, heads, D), (B, keys, kv_heads, D), (B, keys, kv_heads, E)
    return tuple(draw(*shape, seed=seed, dtype="float32") for seed, shape in enumerate(shapes))


@pytest.mark.parametrize(
    ("rule", "keys", "given"),
    [
        (Full(), T, {}),
        (Full(), S, {"context_length": S, "positions": np.arange(T) + 5}),
        (Causal(), T, {}),
        (SlidingWindow(width=1), T, {}),
        (SlidingWindow(width=10), T, {}),
    ],
)
def test_cudnn_is_given_what_makes_it_the_plain_form(monkeypatch, rule, keys, given):
    called = {}
    real = jax.nn.dot_product_attention

    def stand_in(q, k, v, *, implementation, **call):
        called.update(call, implementation=implementation, widths={x.shape[-1] for x in (q, k, v)})
        return real(q, k, v, implementation="xla", **call)

    monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
    call = rule, survey(B, T, **given), Scoring(0.3), *map(jnp.array, arrays_of(T, keys)), None
    assert row_error(cudnn.attend(*call), plain.attend(*call)) <= bound(CFG, T, keys, "float32")
    # The window counts how far back a query looks, itself not included, and is blind to the future only when causal.
    window = (rule.width - 1, 0) if isinstance(rule, SlidingWindow) else None
    assert called == {
        "implementation": "cudnn",
        "scale": 0.3,
        "is_causal": not isinstance(rule, Full),
        "local_window_size": window,
        "widths": {8},
    }


RUNS = np.array([[0] * 50 + [1] * 40 + [2] * 41, [0] * 3 + [1] * 128])
VALID = np.arange(T) < np.array([[T], [77]])


@pytest.mark.parametrize(
    ("rule", "keys", "given", "options", "heads"),
    [
        (Causal(), T, {"valid": VALID, "segments": RUNS}, {"softcap": 1.5, "sinks": True}, (H, K)),
        (Full(), S, {"context_length": S}, {"sinks": True}, (H, 1)),
        pytest.param(Full(), T, {"valid": VALID}, {}, (H, H), marks=pytest.mark.full),
        pytest.param(SlidingWindow(width=20), T, {"segments": RUNS}, {}, (H, 1), marks=pytest.mark.full),
        pytest.param(SlidingWindow(width=9, symmetric=True), T, {}, {}, (H, K), marks=pytest.mark.full),
        pytest.param(Chunked(width=30), T, {}, {"softcap": 2.0}, (H, K), marks=pytest.mark.full),
        pytest.param(SlidingWindow(width=20) & Chunked(width=30), T, {}, {}, (H, K), marks=pytest.mark.full),
        pytest.param(SlidingWindow(width=20) | Chunked(width=30), T, {}, {}, (H, 1), marks=pytest.mark.full),
    ],
)
def test_splash_attention_is_given_what_makes_it_the_plain_form(rule, keys, given, options, heads):
    scope, softcap, sunk = survey(B, T, **given), options.get("softcap"), "sinks" in options
    real = 1 if scope.queries.valid is None else scope.queries.valid[:, :, None, None]
    direction = draw(B, T, heads[0], E, seed=8, dtype="float32") * real
    arrays = (*arrays_of(T, keys, *heads), draw(heads[0], seed=9, dtype="float32"))

    def run(attended, *arrays):
        def loss(q, k, v, sinks):
            scoring = Scoring(0.3, softcap, sinks=sinks if sunk else None)
            y = attended(rule, scope, scoring, q, k, v) * real
            return (y * direction).sum(), y

        gradients, y = jax.jit(jax.grad(loss, (0, 1, 2, 3), has_aux=True))(*arrays)
        return y, *gradients

    def written_out(*call):
        return plain.attend(*call, None)

    def interpreted(*call):
        return splash.splashed(*call, interpret=True)

    kernel = run(interpreted, *map(jnp.array, arrays))
    with jax.enable_x64(True):
        exact = run(written_out, *(jnp.array(array, "float64") for array in arrays))
        q, k, v, sinks = (jnp.array(array, "float64") for array in arrays)
        scoring = Scoring(0.3, softcap, sinks=sinks if sunk else None)
        weights = attention_weights(q, k, scoring, allowed=scope.mask(rule))
    names = ("y", "q", "k", "v", "sinks")
    gradients = {name: np.array(array) for name, array in zip(names[1:], exact[1:], strict=True)}
    small = floors(gradients, {name: float(np.linalg.norm(array)) for name, array in gradients.items()})
    least = terms.least(np.array(weights), *map(np.array, (q, k, v)), direction, scoring.scale)
    small |= {name: np.maximum(small[name], rows) for name, rows in least.items()}
    for name, found, expected in zip(names, kernel, exact, strict=True):
        limit = bound(CFG, T, keys, "float32", gradient=name != "y", batch=B)
        assert row_error(found, expected, small.get(name)) <= limit, name


@pytest.mark.parametrize(
    ("queries", "keys", "q", "kv"), [(512, 1024, 512, 512), (768, 640, 384, 128), (128, 256, 128, 256)]
)
def test_splash_attention_gets_the_largest_blocks_that_divide_its_sizes(queries, keys, q, kv):
    sizes = splash.block_sizes(queries, keys)
    assert {sizes.block_q, sizes.block_q_dkv, sizes.block_q_dq} == {q}
    assert {sizes.block_kv, sizes.block_kv_dkv, sizes.block_kv_dq, sizes.block_kv_compute} == {kv}
    assert sizes.has_backward_blocks
