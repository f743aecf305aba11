"""What attention costs: published counts of DeepSeek-V3's layer, and the table of the variants side by side."""

import pytest

import attn
from attn.caching import numbers_per_token
from attn.comparison import compare, siblings
from attn.costs import attention_flops, expanded_numbers, projection_flops
from attn.presets import DEEPSEEK_V3 as V3
from tests.cases import refused


def test_a_layer_of_deepseek_v3_caches_576_numbers_a_token_and_not_40960():
    assert numbers_per_token(V3) == 512 + 64 == 576
    assert expanded_numbers(V3) == 128 * (128 + 64 + 128) == 40960
    assert round(expanded_numbers(V3) / numbers_per_token(V3)) == 71


@pytest.mark.parametrize(
    ("queries", "keys", "expanded", "absorbed"),
    [
        (1, 1024, 34.4, 0.319),
        (1, 4096, 137.8, 1.174),
        (1, 32768, 1102, 9.16),
        (64, 4096, 158.9, 75.2),
        (128, 4096, 180.4, 150.3),
        (512, 4096, 309, 601),
        (4096, 4096, 1512, 4810),
    ],
)
def test_the_operations_of_deepseek_v3_are_the_published_ones(queries, keys, expanded, absorbed):
    # GFLOP of one layer, queries over a cache of latents.
    assert attention_flops(V3, queries, keys) / 1e9 == pytest.approx(expanded, rel=2e-3)
    assert attention_flops(V3, queries, keys, "absorbed") / 1e9 == pytest.approx(absorbed, rel=2e-3)
    assert V3.absorbs(queries, keys) == (absorbed < expanded)


def test_absorbing_pays_for_fewer_than_171_new_tokens():
    # S* = C (D + E) / ((2 C + R) - (D + R + E)) = 170.7 over any long context.
    assert [V3.absorbs(queries, 10**7) for queries in (170, 171)] == [True, False]


def test_at_4096_tokens_the_absorbed_form_needs_more_than_30_times_fewer_operations():
    assert attention_flops(V3, 1, 4096) > 117 * attention_flops(V3, 1, 4096, "absorbed")


def test_projections_cost_two_operations_for_each_weight():
    cfg = attn.GroupedQueryAttentionConfig(input_dim=10, heads=6, kv_heads=3, dim_k=42, dim_v=30)
    kernels = 10 * 42 + 10 * 21 + 10 * 15 + 30 * 10
    assert projection_flops(cfg, 7) == 2 * 7 * kernels
    assert attention_flops(cfg, 7, 11) == 2 * 7 * 11 * 6 * (7 + 5)
    with refused("form must be expanded where nothing can be absorbed; got 'absorbed'."):
        attention_flops(cfg, 7, 11, "absorbed")


def test_the_four_variants_side_by_side():
    cfg = attn.GroupedQueryAttentionConfig(input_dim=64, heads=8, kv_heads=2)
    mha, gqa, mqa, mla = compare(cfg, 4096)
    assert mha == ("MHA", 4 * 64 * 64, 128, 2 * 4 * 64 * 64 + 2 * 4096 * 8 * 16, None)
    assert gqa[:3] == ("GQA, 2 key/value heads", 64 * (64 + 16 + 16 + 64), 32)
    assert mqa[:3] == ("MQA", 64 * (64 + 8 + 8 + 64), 16)
    assert mla[:3] == ("MLA, latent of 32 + 4", 64 * (96 + 32 + 4) + 32 * 128 + 64 * 64, 36)
    projections = 2 * (64 * (96 + 32 + 4) + 64 * 64)
    assert mla.absorbed == projections + 2 * 8 * 32 * 16 + 2 * 4096 * 8 * (2 * 32 + 4)
    assert mla.expanded == projections + 2 * 4096 * 8 * 32 * 16 + 2 * 4096 * 8 * (8 + 4 + 8)


def test_what_a_config_says_itself_is_kept():
    assert siblings(V3)["MLA, latent of 512 + 64"] is V3
    assert "GQA, 32 key/value heads" in siblings(V3)
    with refused("CONFIG must have several heads to be compared; got 'self'."):
        siblings(attn.SelfAttentionConfig(input_dim=3))
    with refused("context must be at least 1; got 0."):
        compare(V3, 0)
