import json
from pathlib import Path

import pytest
from pydantic import ValidationError

import attn
from tests.cases import CASES, HEADS, ONE_HEAD, ROPE, decoder

ROOT = Path(__file__).parents[2]
ALL = CASES | {"decoder": decoder(), "decoder_of_one": decoder(attention=CASES["grouped_query"], tied=True)}
every = pytest.mark.parametrize("cfg", ALL.values(), ids=ALL)
GROUPED = {"variant": "grouped_query", "input_dim": 64, "heads": 8, "kv_heads": 2, "dim_k": 64, "dim_v": 64}


def without(values: dict, name: str) -> dict:
    return {key: value for key, value in values.items() if key != name}


def problems(make, *args, **kwargs) -> list[tuple[str, str]]:
    """Where and why a config is refused."""
    with pytest.raises(ValidationError) as refusal:
        make(*args, **kwargs)
    return [(".".join(map(str, e["loc"])), e["msg"].removeprefix("Value error, ")) for e in refusal.value.errors()]


def reasons(**changes) -> list[str]:
    """Why a grouped-query config with these fields is refused."""
    made = problems(attn.GroupedQueryAttentionConfig, **(without(GROUPED, "variant") | changes))
    read = problems(attn.load_config, GROUPED | changes)
    assert [text for _, text in made] == [text for _, text in read]
    return [text for _, text in made]


@pytest.mark.parametrize("name", ["input_dim", "heads", "kv_heads", "dim_k", "dim_v", "context_dim"])
@pytest.mark.parametrize("value", ["8", 8.0, True, [8]])
def test_a_neighbouring_type_is_not_taken_for_a_size(name, value):
    assert reasons(**{name: value}) == ["Input should be a valid integer"]


@pytest.mark.parametrize("name", ["input_dim", "heads", "kv_heads", "dim_k", "dim_v", "context_dim"])
@pytest.mark.parametrize("value", [0, -8])
def test_a_size_is_positive(name, value):
    assert reasons(**{name: value}) == ["Input should be greater than 0"]


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan"), "1.0", True])
def test_a_scale_is_a_positive_number(value):
    assert problems(attn.GroupedQueryAttentionConfig, **without(GROUPED, "variant"), scale=value)


@pytest.mark.parametrize("value", [1, 0, "true", [True, True, True], [True, 1, True, True], {"q": True}])
def test_a_bias_is_a_boolean_or_one_for_each_projection(value):
    assert problems(attn.load_config, GROUPED | {"bias": value})


def test_an_unknown_key_is_refused():
    assert problems(attn.load_config, GROUPED | {"num_heads": 8}) == [
        ("grouped_query.num_heads", "Extra inputs are not permitted")
    ]
    with pytest.raises(ValidationError):
        attn.SlidingWindow(width=3, size=3)
    with pytest.raises(ValidationError):
        attn.load_config(GROUPED | {"rope": ROPE | {"base": 3}})


@pytest.mark.parametrize("name", ["input_dim", "heads", "kv_heads"])
def test_a_size_without_a_default_is_required(name):
    assert problems(attn.load_config, without(GROUPED, name)) == [(f"grouped_query.{name}", "Field required")]


def test_an_unknown_variant_is_refused():
    text = problems(attn.load_config, GROUPED | {"variant": "grouped"})[0][1]
    assert "'grouped'" in text
    assert all(f"'{variant}'" in text for variant in [*attn.VARIANTS, *attn.MODELS])
    assert problems(attn.load_config, without(GROUPED, "variant"))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"heads": 3, "kv_heads": 3}, "heads must divide dim_k; got heads=3 and dim_k=64."),
        ({"heads": 16, "dim_v": 40}, "heads must divide dim_v; got heads=16 and dim_v=40."),
        ({"kv_heads": 3}, "kv_heads must divide heads; got kv_heads=3 and heads=8."),
        ({"kv_heads": 16}, "kv_heads must divide heads; got kv_heads=16 and heads=8."),
        (
            {"bias": [True, False]},
            "bias must have one entry for each of q, k, v, out; got (True, False).",
        ),
        (
            {"dim_k": 40, "rope": {"kind": "default"}},
            "rope must rotate an even number of at most D=5 numbers a head; got 5.",
        ),
        (
            {"rope": {"kind": "default", "width": 3}},
            "rope must rotate an even number of at most D=8 numbers a head; got 3.",
        ),
        (
            {"rope": {"kind": "default", "width": 10}},
            "rope must rotate an even number of at most D=8 numbers a head; got 10.",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes, text):
    assert reasons(**changes) == [text]


LLAMA3 = {"kind": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_length": 64}
YARN = {"kind": "yarn", "factor": 8.0, "original_length": 64}
LONG = {"kind": "longrope", "factor": 8.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"rope": LLAMA3 | {"low_freq_factor": 4.0}},
            "low_freq_factor must be less than high_freq_factor; got 4.0 and 4.0.",
        ),
        ({"rope": YARN | {"beta_slow": 33.0}}, "beta_slow must be less than beta_fast; got 33.0 and 32.0."),
        ({"rope": YARN | {"theta": 1.0}}, "theta of a yarn rope must be greater than 1; got 1.0."),
        ({"rope": YARN | {"mscale_all_dim": -1.0}}, "Input should be greater than or equal to 0"),
        ({"rope": LONG | {"original_length": 1}}, "Input should be greater than 1"),
        ({"position_bias": {"kind": "t5", "buckets": 1}}, "buckets must be at least 2; got 1."),
        ({"position_bias": {"kind": "t5", "buckets": 3, "bidirectional": True}}, "buckets must be at least 4; got 3."),
        (
            {"position_bias": {"kind": "t5", "buckets": 32, "max_distance": 16}},
            "max_distance must be greater than 16, the distances with a bucket of their own; got 16.",
        ),
        ({"mask": {"kind": "chunked", "width": 2**29 + 1}}, "Input should be less than or equal to 536870912"),
        ({"position_bias": {"kind": "t5", "max_distance": 2**21}}, "Input should be less than or equal to 1048576"),
        ({"rope": {"kind": "default", "theta": 1e-320}}, "Input should be greater than or equal to 1"),
        ({"qk_norm": {"eps": 0.0}}, "eps must be at least 1e-30; got 0.0."),
        ({"qk_norm": {"learned": False, "offset": True}}, "offset needs a learned scale; got learned=False."),
    ],
)
def test_options_without_a_meaning_are_refused(changes, text):
    assert reasons(**changes) == [text]


def test_each_variant_checks_its_own_sizes():
    assert problems(attn.MultiHeadAttentionConfig, input_dim=13, heads=5)[0][1] == (
        "heads must divide dim_k; got heads=5 and dim_k=13."
    )
    assert problems(attn.MultiHeadLatentAttentionConfig, input_dim=15, heads=5, kv_lora_rank=3, dim_v=7)[0][1] == (
        "heads must divide dim_v; got heads=5 and dim_v=7."
    )
    assert problems(attn.SelfAttentionConfig, input_dim=13, bias=(True,) * 4)[0][1] == (
        "bias must have one entry for each of q, k, v; got (True, True, True, True)."
    )
    assert problems(attn.MultiHeadLatentAttentionConfig, input_dim=15, heads=5, kv_lora_rank=3, bias=(True,) * 4)[0][
        1
    ] == ("bias must have one entry for each of q, kv_down, k_up, v_up, out; got (True, True, True, True).")


@pytest.mark.parametrize("option", [{"context_dim": 13}, {"mask": {"kind": "full"}}, {"heads": 1}])
def test_causal_has_no_context_no_other_rule_and_one_head(option):
    assert problems(attn.load_config, {"variant": "causal", "input_dim": 13} | option) == [
        (f"causal.{next(iter(option))}", "Extra inputs are not permitted")
    ]


def test_cross_always_reads_a_context():
    assert problems(attn.load_config, {"variant": "cross", "input_dim": 13, "context_dim": None})
    assert attn.CrossAttentionConfig(input_dim=13).context_dim == 13


def test_widths_default_to_the_input():
    cfg = attn.SelfAttentionConfig(input_dim=13)
    assert (cfg.dim_k, cfg.dim_v) == (13, 13)
    assert attn.SelfAttentionConfig(input_dim=13, dim_v=5).dim_k == 13


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"layers": 3}, "attention must have one config for each of 3 layers; got 2."),
        (
            {"mlp": attn.MLPConfig(input_dim=18, hidden_dim=5)},
            "attention must map the MLP's input_dim=18 to itself; got 17 -> 17 in layer 0.",
        ),
        (
            {"attention": attn.CausalAttentionConfig(**ONE_HEAD)},
            "attention must map the MLP's input_dim=17 to itself; got 17 -> 4 in layer 0.",
        ),
        (
            {"attention": attn.MultiHeadAttentionConfig(**HEADS, mask={"kind": "causal"}, context_dim=17)},
            "attention of a decoder reads no context; got context_dim=17 in layer 0.",
        ),
        (
            {"attention": (CASES["grouped_query"], CASES["multi_head"])},
            "attention of a decoder must be causal; got mask 'full' in layer 1.",
        ),
    ],
)
def test_a_decoder_refuses_layers_that_do_not_fit(changes, text):
    assert [why for _, why in problems(decoder, **changes)] == [text]


@every
def test_configs_are_values(cfg):
    same = type(cfg)(**{name: getattr(cfg, name) for name in cfg.model_fields_set})
    other = cfg.replace(bias=False) if hasattr(cfg, "bias") else cfg.replace(vocab_size=31)
    assert same == cfg
    assert hash(same) == hash(cfg)
    assert other != cfg
    assert {cfg: 1, other: 2}[same] == 1
    with pytest.raises(ValidationError, match="frozen"):
        cfg.variant = "other"


def test_a_value_may_be_given_as_json_or_as_an_object():
    window = attn.SlidingWindow(width=3)
    both = attn.AllOf(of=(attn.Causal(), attn.Chunked(width=5)))
    as_objects = attn.MultiHeadAttentionConfig(**HEADS | {"bias": (True, False, False, True)}, mask=window | both)
    mask = {
        "kind": "any",
        "of": [
            {"kind": "sliding_window", "width": 3},
            {"kind": "all", "of": [{"kind": "causal"}, {"kind": "chunked", "width": 5}]},
        ],
    }
    as_json = attn.MultiHeadAttentionConfig(**HEADS | {"bias": [True, False, False, True]}, mask=mask)
    assert as_json == as_objects
    assert as_json.to_json() == as_objects.to_json()
    assert attn.load_config(json.loads(as_json.to_json())) == as_json
    inside = {"variant": "multi_head", "bias": (True, False, False, True), "mask": attn.AnyOf(of=as_objects.mask.of)}
    assert attn.load_config(HEADS | inside) == as_objects


@pytest.mark.parametrize(
    "mask",
    [
        {"kind": "sliding"},
        {"width": 3},
        {"kind": "sliding_window"},
        {"kind": "sliding_window", "width": 0},
        {"kind": "sliding_window", "width": 3.0},
        {"kind": "sliding_window", "width": 3, "symmetric": 1},
        {"kind": "causal", "width": 3},
        {"kind": "all", "of": []},
        {"kind": "all", "of": [{"kind": "nothing"}]},
        {"kind": "all", "of": {"kind": "causal"}},
        "causal",
    ],
)
def test_a_mask_that_means_nothing_is_refused(mask):
    assert problems(attn.load_config, GROUPED | {"mask": mask})
    assert problems(attn.MultiHeadAttentionConfig, **HEADS, mask=mask)


def test_replacing_validates_again():
    cfg = attn.load_config(GROUPED)
    assert cfg.replace(kv_heads=4).kv_heads == 4
    assert cfg.kv_heads == 2
    assert problems(cfg.replace, kv_heads=3)[0][1] == "kv_heads must divide heads; got kv_heads=3 and heads=8."
    assert problems(cfg.replace, heads=8.0)[0][1] == "Input should be a valid integer"
    assert problems(cfg.replace, experts=3)[0][1] == "Extra inputs are not permitted"


def test_replacing_lets_derived_defaults_follow():
    cfg = attn.MultiHeadAttentionConfig(input_dim=12, heads=3, dim_v=15).replace(input_dim=18)
    assert (cfg.dim_k, cfg.dim_v) == (18, 15)


def test_a_field_that_was_read_from_json_is_given():
    cfg = attn.load_config(json.loads(attn.SelfAttentionConfig(input_dim=13).to_json()))
    assert cfg.replace(input_dim=17).dim_k == 13


@every
def test_a_config_counts_what_its_layout_holds(cfg):
    assert attn.count(cfg) == sum(array.size for array in attn.init_weights(cfg, seed=0).values())
    assert {name: array.shape for name, array in attn.init_weights(cfg, seed=0).items()} == cfg.shapes()
