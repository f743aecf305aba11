import numpy as np
import pytest

import attn
from attn.layout import leaves
from attn.weights import check_weights, from_torch, to_torch
from tests.cases import CASES, HEADS, D, E, H, K, M, decoder, refused

ALL = CASES | {"decoder": decoder(learned_positions=37)}
every = pytest.mark.parametrize("cfg", ALL.values(), ids=ALL)


def numbered(cfg) -> dict[str, np.ndarray]:
    """Weights in which no two numbers are equal."""
    total, arrays = 0, {}
    for name, shape in cfg.shapes().items():
        arrays[name] = np.arange(total, total := total + int(np.prod(shape))).reshape(shape)
    return arrays


def test_shapes_are_those_of_the_axes():
    assert CASES["grouped_query"].shapes() == {
        "q.kernel": (M, H, D),
        "q.bias": (H, D),
        "k.kernel": (M, K, D),
        "k.bias": (K, D),
        "v.kernel": (M, K, E),
        "v.bias": (K, E),
        "out.kernel": (H, E, M),
        "out.bias": (M,),
    }
    assert attn.MultiHeadLatentAttentionConfig(**HEADS | {"bias": False}, kv_lora_rank=3, context_dim=5).shapes() == {
        "q.kernel": (M, H, D),
        "kv_down.kernel": (5, 3),
        "k_up.kernel": (3, H, D),
        "v_up.kernel": (3, H, E),
        "out.kernel": (H, E, M),
    }


def test_a_bias_for_some_projections_is_there_for_those_alone():
    cfg = attn.MultiHeadAttentionConfig(**HEADS | {"bias": (True, False, False, True)})
    assert [name for name in cfg.shapes() if name.endswith("bias")] == ["q.bias", "out.bias"]


def test_a_one_head_variant_has_no_output_projection():
    assert list(attn.SelfAttentionConfig(input_dim=5).shapes()) == ["q.kernel", "k.kernel", "v.kernel"]
    assert attn.SelfAttentionConfig(input_dim=5, dim_k=3).shapes()["q.kernel"] == (5, 1, 3)


def test_torch_shapes_are_those_of_its_own_modules():
    shapes = {leaf.torch_name: leaf.torch_shape for leaf in leaves(ALL["decoder"])}
    assert shapes["embed.weight"] == (29, M)
    assert shapes["positions.weight"] == (37, M)
    assert shapes["head.weight"] == (29, M)
    assert shapes["norm.weight"] == (M,)
    assert shapes["layers.0.attention_norm.weight"] == (M,)
    assert shapes["layers.0.attention.k.weight"] == (K * D, M)
    assert shapes["layers.0.attention.k.bias"] == (K * D,)
    assert shapes["layers.0.attention.out.weight"] == (M, H * E)
    assert shapes["layers.1.attention.kv_down.weight"] == (23, M)
    assert shapes["layers.1.attention.v_up.weight"] == (H * E, 23)
    assert shapes["layers.1.mlp.down.weight"] == (M, 31)


@every
def test_every_number_arrives_where_the_kinds_say(cfg):
    neutral = numbered(cfg)
    there = to_torch(cfg, neutral)
    for leaf in leaves(cfg):
        here, tensor = neutral[leaf.name], there[leaf.torch_name]
        inputs = here.ndim - (len(leaf.part.outputs.split()) if leaf.matrix else 0)
        for index in np.ndindex(here.shape):
            if leaf.matrix:
                # y.flatten()[o] = sum over i of weight[o, i] * x.flatten()[i]
                i = int(np.ravel_multi_index(index[:inputs], here.shape[:inputs]))
                o = int(np.ravel_multi_index(index[inputs:], here.shape[inputs:]))
                assert tensor[o, i] == here[index]
            else:
                assert tensor.ravel()[np.ravel_multi_index(index, here.shape)] == here[index]


def test_named_elements_of_a_kernel_arrive_at_named_rows():
    kernel = np.zeros((M, H, D), int)
    kernel[2, 3, 5], kernel[16, 5, 6] = 235, 1656
    weights = numbered(CASES["grouped_query"]) | {"q.kernel": kernel}
    weights["out.kernel"] = np.zeros((H, E, M), int)
    weights["out.kernel"][4, 3, 11] = 4311
    there = to_torch(CASES["grouped_query"], weights)
    assert there["q.weight"][3 * D + 5, 2] == 235
    assert there["q.weight"][5 * D + 6, 16] == 1656
    assert there["out.weight"][11, 4 * E + 3] == 4311


@every
def test_there_and_back_is_the_same(cfg):
    neutral = numbered(cfg)
    back = from_torch(cfg, to_torch(cfg, neutral))
    assert list(back) == list(cfg.shapes())
    for name, array in back.items():
        np.testing.assert_array_equal(array, neutral[name])
        assert array.dtype == neutral[name].dtype
        assert array.flags.c_contiguous
        assert array.flags.owndata
        assert not np.shares_memory(array, neutral[name])


def test_a_square_kernel_is_transposed_too():
    cfg = attn.MultiHeadAttentionConfig(input_dim=6, heads=2)
    kernel = np.arange(36).reshape(6, 2, 3)
    weights = numbered(cfg) | {"q.kernel": kernel}
    np.testing.assert_array_equal(to_torch(cfg, weights)["q.weight"], kernel.reshape(6, 6).T)


REPORT = (
    "weights do not fit the self config: q.kernel is missing; v.bias is unexpected; "
    "k.kernel has shape (3, 5, 1) instead of (5, 1, 3)."
)


def damaged() -> tuple:
    cfg = attn.SelfAttentionConfig(input_dim=5, dim_k=3, dim_v=2)
    return cfg, {"k.kernel": np.zeros((3, 5, 1)), "v.kernel": np.zeros((5, 1, 2)), "v.bias": np.zeros((1, 2))}


def test_one_report_names_all_that_does_not_fit(tmp_path):
    cfg, weights = damaged()
    for use in (
        lambda: check_weights(cfg, {name: array.shape for name, array in weights.items()}),
        lambda: to_torch(cfg, weights),
        lambda: attn.save(tmp_path / "folder", cfg, weights),
        lambda: attn.reference(cfg, weights, np.zeros((1, 1, 5))),
    ):
        with refused(REPORT):
            use()
    assert not (tmp_path / "folder").exists()


def test_one_report_names_all_that_does_not_fit_in_torch():
    cfg, _ = damaged()
    tensors = {"k.weight": np.zeros((5, 3)), "v.weight": np.zeros((2, 5)), "v.bias": np.zeros(2)}
    with refused(
        "weights do not fit the self config: q.weight is missing; v.bias is unexpected; "
        "k.weight has shape (5, 3) instead of (3, 5)."
    ):
        from_torch(cfg, tensors)


@every
def test_weights_begin_the_same_each_time(cfg):
    first, again, other = (attn.init_weights(cfg, seed=seed) for seed in (3, 3, 4))
    assert list(first) == list(cfg.shapes())
    for name, array in first.items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, again[name])
        drawn = name.endswith(("kernel", "embedding"))
        assert (array != other[name]).any() == drawn
        assert len(np.unique(array)) == (array.size if drawn else 1)


def test_each_tensor_has_a_stream_of_its_own():
    # Parts that come or go leave the others as they were.
    small = attn.init_weights(decoder(layers=1, attention=CASES["grouped_query"], tied=True), seed=0)
    large = attn.init_weights(decoder(learned_positions=37, norm=attn.NormConfig(kind="layer")), seed=0)
    for name, array in small.items():
        np.testing.assert_array_equal(array, large[name])
    # Tensors of one shape under two names have nothing in common.
    gate, up = large["layers.0.mlp.gate.kernel"], large["layers.0.mlp.up.kernel"]
    assert gate.shape == up.shape
    assert abs(np.corrcoef(gate.ravel(), up.ravel())[0, 1]) < 5 / np.sqrt(gate.size)


CUT = 0.8796
"""The deviation of a standard normal that is cut at 2."""


def test_kernels_begin_with_the_deviation_of_their_fan_in_and_are_cut_at_two():
    cfg = attn.MultiHeadAttentionConfig(input_dim=191, heads=3, dim_k=213, dim_v=207)
    weights = attn.init_weights(cfg, seed=0)
    for name, fan_in in (("q.kernel", 191), ("k.kernel", 191), ("out.kernel", 207)):
        unit = weights[name].astype(float) * np.sqrt(fan_in)
        # Four deviations of a mean, and of a deviation, of that many numbers.
        assert abs(unit.mean()) < 4 * CUT / np.sqrt(unit.size)
        assert abs(unit.std() - CUT) < 4 * CUT / np.sqrt(2 * unit.size)
        assert 1.99 < abs(unit).max() <= 2


def test_tables_scales_and_biases_begin_as_the_kinds_say():
    cfg = decoder(vocab_size=1999, learned_positions=37, norm=attn.NormConfig(kind="layer"))
    weights = attn.init_weights(cfg, seed=0)
    table = weights["embed.embedding"].astype(float)
    assert abs(table.std() - 0.02) < 4 * 0.02 / np.sqrt(2 * table.size)
    assert abs(table).max() > 3 * 0.02
    assert {float(x) for name, array in weights.items() if name.endswith("scale") for x in array.ravel()} == {1.0}
    assert {float(x) for name, array in weights.items() if name.endswith("bias") for x in array.ravel()} == {0.0}


def test_a_count_is_what_a_person_would_count():
    assert attn.count(attn.MultiHeadAttentionConfig(input_dim=64, heads=8)) == 4 * 64 * 64
    assert attn.count(attn.GroupedQueryAttentionConfig(input_dim=64, heads=8, kv_heads=2)) == 2 * 64 * 64 + 2 * 64 * 16
    assert attn.count(attn.CausalAttentionConfig(input_dim=64, bias=True)) == 3 * 64 * 65
