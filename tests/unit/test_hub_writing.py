"""What is written of a config of ours, and what no format can say."""

import json

import pytest

import attn
from attn import hub, tensorfile
from attn.masks import Causal, SlidingWindow
from tests.cases import refused
from tests.checkpoints import ROPE, WIDE, D, H, K, L, M, P, U, V, grouped, llama, numbered

SCALED = [
    {"kind": "linear", "factor": 2.0},
    {"kind": "dynamic", "factor": 2.0, "original_length": 31},
    {"kind": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_length": 31},
    {"kind": "yarn", "factor": 4.0, "original_length": 31, "mscale": 0.7, "truncate": False},
    {"kind": "longrope", "factor": 4.0, "original_length": 31, "short_factor": [1.0] * 5, "long_factor": [2.0] * 5},
]
LENGTHS = {"linear": 2048, "dynamic": 31, "llama3": 248, "yarn": 124, "longrope": 124}


@pytest.mark.parametrize("rope", SCALED, ids=lambda rope: rope["kind"])
def test_scaled_rotary_positions_come_back_as_they_were(tmp_path, rope):
    cfg = llama(grouped(rope=rope))
    hub.write(tmp_path, cfg, numbered(cfg.shapes()))
    assert hub.read(tmp_path)[0] == cfg
    assert json.loads((tmp_path / "config.json").read_text())["max_position_embeddings"] == LENGTHS[rope["kind"]]


def test_a_config_is_written_with_every_field_that_matters(tmp_path):
    hub.write(tmp_path, llama(grouped(dropout=0.25)), numbered(llama().shapes()))
    assert json.loads((tmp_path / "config.json").read_text()) == {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.25,
        "bos_token_id": None,
        "dtype": "float32",
        "eos_token_id": None,
        "head_dim": D,
        "hidden_act": "silu",
        "hidden_size": M,
        "intermediate_size": U,
        "max_position_embeddings": 2048,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": H,
        "num_hidden_layers": L,
        "num_key_value_heads": K,
        "pad_token_id": None,
        "rms_norm_eps": 0.25,
        "rope_parameters": {"rope_theta": 300.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "vocab_size": V,
    }
    assert tensorfile.read(tmp_path / "model.safetensors").metadata == {"format": "pt"}
    # What matters in training alone is written, and not read.
    assert hub.read(tmp_path)[0] == llama()


ROPES = "default, linear, dynamic, llama3, yarn, longrope"
LAYERS = (grouped(), grouped(rope={"kind": "default", "theta": 5.0}))
BIASED = {"bias": (True, True, True, False)}
UNWRITABLE = {
    "layer norm": (
        llama(norm=attn.NormConfig(kind="layer", eps=0.25)),
        "llama",
        "norm.kind must be 'rms', not 'layer'",
    ),
    "learned positions": (llama(learned_positions=P), "llama", "learned_positions must be None, not 23"),
    "a plain MLP and layer norm": (
        llama(mlp=attn.MLPConfig(input_dim=M, hidden_dim=U, gated=False), norm=attn.NormConfig(kind="layer", eps=0.25)),
        "llama",
        "norm.kind must be 'rms', not 'layer'; mlp.gated must be True, not False",
    ),
    "wider values": (llama(grouped(dim_v=2 * WIDE)), "llama", "attention.dim_v must be dim_k=60, not 120"),
    "one bias": (
        llama(grouped(bias=(True, False, False, False))),
        "llama",
        "attention.bias must be one of (False, False, False, False), (True, True, True, True), "
        "not (True, False, False, False)",
    ),
    "chunks": (
        llama(grouped(mask={"kind": "chunked", "width": 3})),
        "llama",
        "attention.mask must be Causal(kind='causal'), not Chunked(kind='chunked', width=3)",
    ),
    "half-turned heads": (
        llama(grouped(rope=ROPE | {"width": 4})),
        "llama",
        "attention.rope.width must be 10, the whole head's, not 4",
    ),
    "angles rounded as a file's readers round them": (
        llama(grouped(rope=ROPE | {"float32": True})),
        "llama",
        "attention.rope.float32 must be False, a file cannot say it, not True",
    ),
    "no rope and a soft-cap": (
        llama(grouped(rope=None, softcap=5.0)),
        "llama",
        f"attention.rope must be one of {ROPES}, not None; attention.softcap must be None, not 5.0",
    ),
    "layers that differ": (llama(LAYERS), "llama", "attention.rope must be the same in every layer"),
    "two windows": (
        llama(tuple(grouped(mask=SlidingWindow(width=width), **BIASED) for width in (3, 4))),
        "qwen2",
        "attention.mask must have one width in all layers, not 3, 4",
    ),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_a_config_that_no_format_can_say_is_refused_with_its_reason(tmp_path, name):
    cfg, nearest, text = UNWRITABLE[name]
    with refused(f"config cannot be written, {nearest} comes nearest: {text}."):
        hub.write(tmp_path / "folder", cfg, numbered(cfg.shapes()))
    assert not (tmp_path / "folder").exists()


def test_a_latent_attention_is_refused(tmp_path):
    latent = attn.MultiHeadLatentAttentionConfig(input_dim=M, heads=H, kv_lora_rank=5, mask=Causal())
    with pytest.raises(ValueError, match="of grouped_query, multi_head, multi_query, not 'latent'"):
        hub.write(tmp_path / "folder", llama(latent), {})


def test_an_attention_alone_is_refused(tmp_path):
    with refused("config must be a decoder's to be written; got 'grouped_query'."):
        hub.write(tmp_path / "folder", grouped(), {})
