"""What is read of config.json, in its old form and in its new one, and what is refused."""

import pytest

import attn
from attn import hub
from attn.masks import Causal, SlidingWindow
from tests.cases import refused
from tests.checkpoints import LLAMA_CONFIG, H, L, M, folder_of, grouped, llama, llama_folder, llama_shapes, numbered

DEFAULT = {"kind": "default", "theta": 300.0}
FORMS = {
    "new": ({"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}}, DEFAULT),
    "new, beside an old theta that says something else": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}, "rope_theta": 5.0},
        DEFAULT,
    ),
    "new, theta beside it": ({"rope_parameters": {"rope_type": "default"}, "rope_theta": 300}, DEFAULT),
    "new, without a type": ({"rope_parameters": {"rope_theta": 300.0}}, DEFAULT),
    "new, with a factor of the width that is 1": (
        {"rope_parameters": {"rope_theta": 300.0, "partial_rotary_factor": 1.0}},
        DEFAULT,
    ),
    "old": ({"rope_theta": 300.0, "rope_scaling": None}, DEFAULT),
    "old, theta alone": ({"rope_theta": 300.0}, DEFAULT),
    "older, no theta": ({"rope_scaling": None}, {"kind": "default", "theta": 10000.0}),
    "both, the same": (
        {"rope_scaling": {"rope_type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "linear", "factor": 2}}
        | {"rope_theta": 300.0},
        {"kind": "linear", "theta": 300.0, "factor": 2.0},
    ),
    "old, type": (
        {"rope_theta": 300.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"kind": "linear", "theta": 300.0, "factor": 2.0},
    ),
    "dynamic": (
        {"rope_theta": 300.0, "rope_scaling": {"type": "dynamic", "factor": 2.0}, "max_position_embeddings": 31},
        {"kind": "dynamic", "theta": 300.0, "factor": 2.0, "original_length": 31},
    ),
    "yarn, lengths beside it and no factor": (
        {"rope_theta": 300.0, "rope_scaling": {"type": "yarn", "factor": None}, "max_position_embeddings": 62}
        | {"original_max_position_embeddings": 31},
        {"kind": "yarn", "theta": 300.0, "factor": 2.0, "original_length": 31},
    ),
    "longrope under its old name": (
        {
            "rope_theta": 300.0,
            "rope_scaling": {"type": "su", "short_factor": [1.0] * 5, "long_factor": [2.0] * 5},
            "max_position_embeddings": 62,
            "original_max_position_embeddings": 31,
        },
        {"kind": "longrope", "theta": 300.0, "factor": 2.0, "original_length": 31}
        | {"short_factor": [1.0] * 5, "long_factor": [2.0] * 5},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_rotary_positions_are_read_in_every_form(tmp_path, form):
    fields, rope = FORMS[form]
    config = {name: value for name, value in LLAMA_CONFIG.items() if name != "rope_parameters"} | fields
    cfg, _ = hub.read(folder_of(tmp_path, config, numbered(llama_shapes())))
    assert cfg.attention.rope == grouped(rope=rope).rope


def test_fields_that_are_not_there_have_the_defaults_of_their_format(tmp_path):
    absent = ("num_key_value_heads", "head_dim", "rms_norm_eps", "hidden_act", "tie_word_embeddings")
    config = {name: value for name, value in LLAMA_CONFIG.items() if name not in absent}
    shapes = {name: shape for name, shape in llama_shapes().items() if "self_attn" not in name}
    shapes |= {f"model.layers.{i}.self_attn.{part}_proj.weight": (M, M) for i in range(L) for part in "qkvo"}
    cfg, _ = hub.read(folder_of(tmp_path, config, numbered(shapes)))
    attention = grouped(kv_heads=H, dim_k=M, dim_v=M)
    assert cfg == llama(attention, norm=attn.NormConfig(eps=1e-6))


SILENT = {
    "llama": {
        "is_llama_config": True,
        "rope_interleaved": False,
        "pretraining_tp": 2,
        "transformers.js_config": {"a": 1},
    }
    | {"attention_dropout": 0.1, "bos_token_id": 1, "eos_token_id": [2, 3], "max_position_embeddings": 8192},
    "qwen2": {"use_mrope": False, "torch_dtype": "bfloat16", "do_sample": True, "temperature": 0.7},
    "mistral": {"attention_bias": False, "layer_types": None, "id2label": {"0": "LABEL_0"}, "sliding_window": None},
}


@pytest.mark.parametrize("model_type", SILENT)
def test_fields_that_say_nothing_of_the_logits_are_passed_over(tmp_path, model_type):
    shapes = {name: shape for name, shape in llama_shapes(bias=model_type == "qwen2").items() if "o_proj.b" not in name}
    config = LLAMA_CONFIG | {"model_type": model_type} | SILENT[model_type]
    cfg, _ = hub.read(folder_of(tmp_path, config, numbered(shapes)))
    assert cfg == llama(grouped(bias=(True, True, True, False)) if model_type == "qwen2" else grouped())


WINDOWS = {
    "mistral, no field": ("mistral", {}, SlidingWindow(width=4096)),
    "mistral, null": ("mistral", {"sliding_window": None}, Causal()),
    "mistral, a width": ("mistral", {"sliding_window": 5}, SlidingWindow(width=5)),
    "qwen2, not used": ("qwen2", {"use_sliding_window": False, "sliding_window": 5, "max_window_layers": 0}, Causal()),
    "qwen2, no field": ("qwen2", {}, Causal()),
    "qwen2, null": ("qwen2", {"use_sliding_window": None, "max_window_layers": None, "layer_types": None}, Causal()),
    "qwen2, used in all": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0},
        SlidingWindow(width=5),
    ),
    "qwen2, used in the last": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
        (Causal(), SlidingWindow(width=5)),
    ),
    "qwen2, layer by layer": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
        (SlidingWindow(width=5), Causal()),
    ),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_read_as_each_format_means_them(tmp_path, name):
    model_type, fields, expected = WINDOWS[name]
    shapes = llama_shapes(bias=model_type == "qwen2")
    shapes = {name: shape for name, shape in shapes.items() if not name.endswith("o_proj.bias")}
    config = LLAMA_CONFIG | {"model_type": model_type} | fields
    cfg, weights = hub.read(folder_of(tmp_path / "theirs", config, numbered(shapes)))
    masks = tuple(attention.mask for attention in cfg.attentions)
    assert masks == (expected if isinstance(expected, tuple) else (expected,) * L)
    assert isinstance(cfg.attention, tuple) is isinstance(expected, tuple)
    hub.write(tmp_path / "ours", cfg, weights)
    assert hub.read(tmp_path / "ours")[0] == cfg


ROPES = "default, linear, dynamic, llama3, yarn, longrope"
MISREAD = {
    "sizes": (
        {"hidden_size": None, "num_attention_heads": "6", "num_hidden_layers": 0},
        "hidden_size is missing; num_attention_heads must be a positive integer, not '6'",
    ),
    "heads": ({"head_dim": None, "num_attention_heads": 5}, "num_attention_heads must divide hidden_size=12, not 5"),
    "values": (
        {"hidden_act": "relu6", "attention_bias": 1},
        "hidden_act must be one of 'silu', 'relu', 'gelu', 'gelu_pytorch_tanh', 'gelu_new', not 'relu6'; "
        "attention_bias must be one of False, True, not 1",
    ),
    "unknown": ({"query_pre_attn_scalar": 144}, "query_pre_attn_scalar is unknown and may matter, it is 144"),
    "quantised": (
        {"quantization_config": {"bits": 4}},
        "quantization_config is unknown and may matter, it is {'bits': 4}",
    ),
    "harmful": (
        {"sliding_window": 5, "is_decoder": True},
        "sliding_window must be None, not 5; is_decoder must be False, not True",
    ),
    "no rope": (
        {"rope_parameters": None},
        "it says nothing of rotary positions, neither rope_parameters nor rope_theta is there",
    ),
    "a kind that we lack": (
        {"rope_parameters": {"rope_type": "proportional"}},
        f"rope_type must be one of {ROPES}, not 'proportional'",
    ),
    "a kind without its factor": (
        {"rope_parameters": {"rope_type": "linear"}},
        "rope_type 'linear' needs factor, it has {'rope_type': 'linear'}",
    ),
    "a factor without its kind": (
        {"rope_parameters": {"rope_theta": 5.0, "factor": 2}},
        "rope_type 'default' takes no factor, it has {'rope_theta': 5.0, 'factor': 2}",
    ),
    "two kinds": (
        {"rope_parameters": {"rope_type": "linear", "type": "default"}},
        "rope_type and type must agree, they are 'linear' and 'default'",
    ),
    "two forms": (
        {"rope_scaling": {"type": "linear", "factor": 2}},
        "rope_parameters and rope_scaling must agree, they are {'rope_type': 'default', 'rope_theta': 300.0} "
        "and {'type': 'linear', 'factor': 2}",
    ),
    "a list": ({"rope_parameters": [1]}, "rope_parameters must be an object, not [1]"),
    "dynamic without a length": (
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2}},
        "max_position_embeddings is missing",
    ),
    "llama3 without a length": (
        {"rope_parameters": {"rope_type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 4}},
        "original_max_position_embeddings is missing",
    ),
}


@pytest.mark.parametrize("name", MISREAD)
def test_a_config_that_cannot_be_read_is_refused_with_its_reason(tmp_path, name):
    fields, text = MISREAD[name]
    folder = llama_folder(tmp_path, **fields)
    with refused(f"{folder / 'config.json'} cannot be read as llama: {text}."):
        hub.read(folder)


QWEN_MISREAD = {
    "layer_types must name full_attention or sliding_attention for each of 2 layers, not ['full_attention']": {
        "layer_types": ["full_attention"]
    },
    "layer_types must name full_attention alone where no window is used, not ['sliding_attention', 'full_attention']": {
        "layer_types": ["sliding_attention", "full_attention"]
    },
    "use_sliding_window must be true or false, not 1": {"use_sliding_window": 1},
    "sliding_window must be a positive integer, not 0": {"use_sliding_window": True, "sliding_window": 0},
    "max_window_layers must be an integer, not '1'": {"use_sliding_window": True, "max_window_layers": "1"},
}


@pytest.mark.parametrize("text", QWEN_MISREAD)
def test_windows_that_cannot_be_read_are_refused_with_their_reason(tmp_path, text):
    folder = llama_folder(tmp_path, model_type="qwen2", **QWEN_MISREAD[text])
    with refused(f"{folder / 'config.json'} cannot be read as qwen2: {text}."):
        hub.read(folder)


def test_a_folder_of_an_unknown_or_damaged_kind_is_refused(tmp_path):
    config = tmp_path / "config.json"
    wrong = {'{"model_type": "bert"}': "'bert'", '{"model_type": [1]}': "[1]", "{}": "None", "[1]": "None"}
    for text, received in wrong.items():
        config.write_text(text)
        with refused(f"{config} must have a model_type among {', '.join(hub.PAGES)}; got {received}."):
            hub.read(tmp_path)
    config.write_text("{")
    with refused(f"{config} is damaged: its JSON cannot be parsed; received b'{{'."):
        hub.read(tmp_path)
    config.unlink()
    with pytest.raises(FileNotFoundError):
        hub.read(tmp_path)
