"""Laws 5, 6 and 8, each said by a sentence: the order of scores, dtypes, grouping, rotation."""

from itertools import product

import ml_dtypes
import numpy as np
import pytest

import attn
from attn.positions import LONGEST
from tests.cases import (
    CASES,
    ROPE,
    B,
    D,
    H,
    K,
    M,
    T,
    assert_close,
    draw,
    in_both,
    in_both_for,
    keys_of,
    refused,
    sides_of,
    weights_of,
)
from tests.twins import by_every_kernel

BF16 = np.dtype(ml_dtypes.bfloat16)

# Law 5: scores, scale, bias, mask, softmax, in this order; parameters keep their dtype, computing has one.


def softmax(scores: np.ndarray, allowed: np.ndarray | bool = True) -> np.ndarray:
    exponentials = np.where(allowed, np.exp(scores - scores.max(-1, keepdims=True)), 0)
    return exponentials / exponentials.sum(-1, keepdims=True)


@in_both_for(
    "name axes", product(["cross", "grouped_query", "latent"], ["T S", "B T S", "1 H T S"]), [("latent", "T S")]
)
def test_a_bias_is_added_to_what_is_scaled_already(twin, name, axes):
    cfg = CASES[name].replace(scale=0.37, mask={"kind": "full"})
    sizes = {"B": B, "H": cfg.heads, "1": 1, "T": T, "S": keys_of(cfg)}
    bias = draw(*(sizes[axis] for axis in axes.split()), seed=5)
    see = {"method": "attention_weights"}
    flat, biased, doubled = (
        twin(cfg.replace(scale=scale), weights_of(cfg), *sides_of(cfg), **see, **given)
        for scale, given in ((0.37, {}), (0.37, {"bias": bias}), (0.74, {}))
    )
    per_head = bias[:, None] if bias.ndim == 3 else bias
    # The logarithm of a weight is its score, but for a number that is the same for the whole row.
    assert_close(biased, softmax(np.log(flat) + per_head))
    assert_close(doubled, softmax(2 * np.log(flat)))


@in_both_for("name", CASES)
def test_what_is_masked_has_no_bias(twin, name):
    cfg, sides = CASES[name], sides_of(CASES[name])
    allowed = np.arange(keys_of(cfg)) % 3 != 1
    allowed = np.tile(allowed, (T, 1))
    bias = draw(T, keys_of(cfg), seed=5)
    # Larger than every score: in front of the mask it would win, or turn into NaN.
    loud = np.where(allowed, bias, 1e30)
    quiet, heard = (by_every_kernel(twin, cfg, weights_of(cfg), *sides, allowed=allowed, bias=b) for b in (bias, loud))
    for kernel, y in quiet.items():
        np.testing.assert_array_equal(heard[kernel], y)


@in_both_for("name", CASES, ["grouped_query"])
def test_scores_as_large_as_float32_can_hold_are_not_too_large(twin, name):
    cfg = CASES[name]
    sides = [side * 1e15 for side in sides_of(cfg, "float32")]
    for y in by_every_kernel(twin, cfg, weights_of(cfg, "float32"), *sides).values():
        assert np.isfinite(y).all()


@in_both_for("dtype", ["float64", "float32", "bfloat16"], ["bfloat16"])
def test_what_is_computed_has_the_dtype_of_the_parameters(twin, dtype):
    cfg, kind = CASES["grouped_query"], np.dtype({"bfloat16": BF16}.get(dtype, dtype))
    y = twin(cfg, weights_of(cfg, kind), *sides_of(cfg, kind))
    assert y.dtype == kind
    seen = twin(cfg, weights_of(cfg, kind), *sides_of(cfg, kind), method="attention_weights")
    assert seen.dtype == np.promote_types(np.float32, np.float32 if kind == BF16 else kind)


@in_both
@pytest.mark.parametrize(("given", "kept"), [("float32", "bfloat16"), ("float32", "float64"), ("bfloat16", "float32")])
def test_an_input_of_another_dtype_is_refused(twin, given, kept):
    kinds = {"float32": np.float32, "float64": np.float64, "bfloat16": BF16}
    cfg = CASES["multi_head_reading"]
    weights = weights_of(cfg, kinds[kept])
    x, context = sides_of(cfg, kinds[kept])
    with refused(f"x of q has dtype {given}; expected {kept}, the dtype of its parameters."):
        twin(cfg, weights, x.astype(kinds[given]), context)
    with refused(f"x of k has dtype {given}; expected {kept}, the dtype of its parameters."):
        twin(cfg, weights, x, context.astype(kinds[given]))


@in_both
def test_a_bias_that_is_kept_wider_than_its_kernel_is_cast_on_use(twin):
    cfg = attn.MultiHeadAttentionConfig(input_dim=M, heads=2, dim_k=6, dim_v=10, bias=True)
    narrow, wide = weights_of(cfg, "float32"), weights_of(cfg)
    mixed = {name: wide[name] if name.endswith("bias") else array for name, array in narrow.items()}
    y = twin(cfg, mixed, draw(B, T, M, dtype="float32"))
    assert y.dtype == "float32"
    assert_close(y, attn.reference(cfg, narrow, draw(B, T, M, dtype="float32")), cfg, "float32")


@in_both_for(
    "kept used", [("float32", "bfloat16"), ("float64", "float32"), ("bfloat16", "float32")], [("float32", "bfloat16")]
)
def test_a_dtype_that_is_asked_for_is_the_one_that_is_used(twin, kept, used):
    kinds = {"float32": np.dtype(np.float32), "float64": np.dtype(np.float64), "bfloat16": BF16}
    cfg = CASES["grouped_query"]
    weights, sides = weights_of(cfg, kinds[kept]), sides_of(cfg, kinds[kept])
    asked = twin(cfg, weights, *sides, options={"dtype": used})
    cast = twin(
        cfg, {n: w.astype(kinds[used]) for n, w in weights.items()}, *(side.astype(kinds[used]) for side in sides)
    )
    assert asked.dtype == kinds[used]
    np.testing.assert_array_equal(asked, cast)


def test_float64_does_not_reach_jax_unseen():
    import attn_jax

    cfg = CASES["self"]
    variables = attn_jax.from_neutral(cfg, weights_of(cfg, "float32"))
    with refused("x of q has dtype float64; expected float32, the dtype of its parameters."):
        attn_jax.build(cfg).apply(variables, *sides_of(cfg, "float64"))


# Law 6: query head h reads key/value head h // G.


@in_both_for("heads kv_heads", [(6, 3), (6, 2), (6, 1), (6, 6), (40, 2), (48, 2)], [(6, 3)])
def test_query_head_h_reads_key_value_head_h_over_g(twin, heads, kv_heads):
    # The value of key/value head k is k + 1 whatever the token, and `out` shows each head in a place of its own.
    cfg = attn.GroupedQueryAttentionConfig(
        input_dim=53, heads=heads, kv_heads=kv_heads, dim_k=heads * D, dim_v=heads, bias=(False, False, True, False)
    )
    weights = weights_of(cfg) | {"v.kernel": np.zeros((53, kv_heads, 1))}
    weights["v.bias"] = np.arange(1.0, kv_heads + 1)[:, None]
    weights["out.kernel"] = np.eye(heads, 53)[:, None, :]
    expected = [h // (heads // kv_heads) + 1 for h in range(heads)]
    if (heads, kv_heads) == (6, 3):
        assert expected == [1, 1, 2, 2, 3, 3]
    for y in by_every_kernel(twin, cfg, weights, draw(B, T, 53)).values():
        np.testing.assert_allclose(y[..., :heads], np.broadcast_to(expected, (B, T, heads)), rtol=1e-14)
        assert not y[..., heads:].any()


@in_both_for("name", ["grouped_query"])
def test_query_head_h_scores_key_head_h_over_g(twin, name):
    # One key head points somewhere: the query heads of its group, and only they, look at where it points.
    cfg = CASES[name].replace(rope=None, mask={"kind": "full"})
    for k in range(K):
        kernel = np.zeros((M, K, D))
        kernel[:, k] = draw(M, D, seed=k)
        weights = weights_of(cfg) | {"k.kernel": kernel, "k.bias": np.zeros((K, D))}
        seen = twin(cfg, weights, *sides_of(cfg), method="attention_weights")
        uneven = seen.std(-1).max((0, 2)) > 1e-6
        assert uneven.tolist() == [h // (H // K) == k for h in range(H)]


# Law 8: rotary tables are data; both layouts, partial widths.


@in_both_for("layout", ["half", "interleaved"], ["half"])
def test_a_pair_turns_by_its_position_times_its_frequency(twin, layout):
    rope = {"kind": "default", "theta": 100.0, "width": 4, "layout": layout}
    cfg = attn.SelfAttentionConfig(input_dim=M, dim_k=5, dim_v=3, bias=True, rope=rope, scale=1.0)
    q, k = np.array([0.3, -0.7, 1.1, 0.9, 0.5]), np.array([0.8, 0.2, -0.6, 1.3, -0.4])
    weights = {name: np.zeros(shape) for name, shape in cfg.shapes().items()} | {"q.bias": q[None], "k.bias": k[None]}
    positions = np.array([0, 1, 2, 53, 64, 1023, 1024, 1025, 5000, 99_999, LONGEST - 1])
    seen = twin(cfg, weights, draw(1, T, M), positions=positions, method="attention_weights")[0, 0]
    pairs = [(0, 2), (1, 3)] if layout == "half" else [(0, 1), (2, 3)]
    turned = np.exp(1j * np.multiply.outer(positions, [1.0, 0.1]))
    queries, keys = (np.stack([side[a] + 1j * side[b] for a, b in pairs]) * turned for side in (q, k))
    scores = (queries[:, None] * keys[None].conj()).sum(-1).real + q[4] * k[4]
    # An angle of a million has lost six of its sixteen digits.
    np.testing.assert_allclose(seen, softmax(scores), rtol=1e-9)
    np.testing.assert_allclose(
        seen[:5, :5], softmax(scores[:, :5])[:5] * seen[:5, :5].sum(-1, keepdims=True), rtol=1e-12
    )


@in_both
def test_both_layouts_are_one_permutation_apart(twin):
    cfg = CASES["grouped_query"].replace(rope=ROPE | {"layout": "half"})
    order = [0, 2, 1, 3, 4, 5, 6]
    weights = weights_of(cfg)
    permuted = {name: array[..., order] if name[0] in "qk" else array for name, array in weights.items()}
    call = {"positions": np.arange(T) + 50}
    half = twin(cfg, weights, *sides_of(cfg), **call)
    other = cfg.replace(rope=ROPE | {"layout": "interleaved"})
    assert_close(twin(other, permuted, *sides_of(cfg), **call), half)
    assert abs(twin(other, weights, *sides_of(cfg), **call) - half).max() > 0.1


@in_both
def test_angles_are_not_rounded_to_the_dtype_of_the_computation(twin):
    # At position 5000 bfloat16 knows angles to within 16, which would leave nothing of the scores.
    cfg = CASES["grouped_query"]
    weights, (x,) = weights_of(cfg, BF16), sides_of(cfg, BF16)
    positions = np.arange(T) + 5000
    y = twin(cfg, weights, x, positions=positions)
    expected = attn.reference(cfg, weights, x, positions=positions)
    size = np.linalg.norm(expected, axis=-1)
    assert (np.linalg.norm(y.astype(float) - expected, axis=-1) < 0.03 * size).all()
