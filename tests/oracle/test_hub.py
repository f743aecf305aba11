"""Checkpoints of others give the logits of others: the published ones of a real Llama, and those of transformers."""

import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

import attn
from attn import hub, tensorfile
from attn.masks import Causal, SlidingWindow
from tests.cases import in_both, weights_of
from tests.twins import TWINS, Torch

STORIES = Path(__file__).parents[2] / "examples" / "data" / "stories260K"
FILES = {"safetensors": STORIES, "bin": STORIES / "stories260K.bin"}

TORCH = Torch()

TOKENS = np.random.default_rng(5).integers(0, 61, (2, 67))
"""Beyond position 50, and beyond every window and every rope's original length."""

TOLERANCE = 1e-4
"""Of logits that reach 6. Float32 leaves up to 6e-6; a theta wrong by 1 %, an eps by 10 % or the other GELU move them
by 1e-3 and more."""

LLAMA = {"vocab_size": 61, "hidden_size": 24, "num_attention_heads": 6, "intermediate_size": 37, "rms_norm_eps": 1e-3}
LLAMA |= {"num_hidden_layers": 2, "bos_token_id": None, "eos_token_id": None}
GROUPED = LLAMA | {"num_key_value_heads": 3}
PLAIN = {"rope_type": "default", "rope_theta": 300.0}


@dataclass(frozen=True)
class Case:
    """A tiny model of transformers."""

    model: type
    config: type
    fields: dict[str, Any] = field(hash=False)


CASES = {
    "llama": Case(
        LlamaForCausalLM,
        LlamaConfig,
        GROUPED | {"attention_bias": True, "mlp_bias": True, "head_dim": 10, "rope_parameters": PLAIN},
    ),
    "llama, tied, heads of its own": Case(LlamaForCausalLM, LlamaConfig, LLAMA | {"tie_word_embeddings": True}),
    "mistral": Case(MistralForCausalLM, MistralConfig, GROUPED | {"sliding_window": 5, "hidden_act": "gelu"}),
    "mistral without a window": Case(
        MistralForCausalLM, MistralConfig, GROUPED | {"sliding_window": None, "head_dim": 14}
    ),
    "qwen2": Case(
        Qwen2ForCausalLM,
        Qwen2Config,
        GROUPED | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "gpt2": Case(
        GPT2LMHeadModel,
        GPT2Config,
        {"vocab_size": 61, "n_embd": 24, "n_head": 6, "n_layer": 2, "n_positions": 71, "layer_norm_epsilon": 1e-3}
        | {"bos_token_id": None, "eos_token_id": None},
    ),
}

every = pytest.mark.parametrize("name", CASES)


@lru_cache
def model_of(name: str, **changes: Any) -> Any:
    """A model in which no weight has its default, and every layer matters."""
    case = CASES[name]
    torch.manual_seed(7)
    model = case.model(case.config(**case.fields, **changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            if parameter.ndim < 2:
                parameter.add_(0.3 * noise)
            else:
                parameter.copy_(1.3 * noise / parameter.shape[-1] ** 0.5)
    return model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a model, saved once by transformers."""

    @lru_cache
    def save(name: str) -> Path:
        folder = tmp_path_factory.mktemp("saved")
        model_of(name).save_pretrained(folder)
        return folder

    return save


def logits_of(model: Any) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(TOKENS), attention_mask=torch.ones(TOKENS.shape, dtype=torch.long)).logits.numpy()


def assert_same_bits(actual, expected) -> None:
    assert set(actual) == set(expected)
    for name in expected:
        assert (actual[name].dtype, actual[name].shape) == (expected[name].dtype, expected[name].shape)
        assert actual[name].tobytes() == expected[name].tobytes(), name


def assert_reads_as(folder: Path, model: Any) -> None:
    """Both twins make of a folder what transformers makes of its model."""
    cfg, weights = hub.read(folder)
    for twin in TWINS:
        np.testing.assert_allclose(twin(cfg, weights, TOKENS), logits_of(model), rtol=0, atol=TOLERANCE)


@lru_cache
def stories(file: str, twin: Any) -> np.ndarray:
    """The logits of the real Llama in float32."""
    cfg, weights = hub.read(FILES[file])
    return twin(cfg, weights, np.load(STORIES / "golden_logits.npz")["ids"][None], compiled=twin.name == "jax")[0]


@in_both
@pytest.mark.parametrize("file", FILES)
def test_a_real_llama_gives_its_published_logits(file, twin):
    golden = np.load(STORIES / "golden_logits.npz")["logits"]
    np.testing.assert_allclose(stories(file, twin), golden, rtol=0, atol=1e-4)


@in_both
def test_the_two_files_of_a_model_give_equal_logits_though_their_rotary_layouts_differ(twin):
    assert [hub.read(path)[0].attention.rope.layout for path in FILES.values()] == ["half", "interleaved"]
    one, other = (stories(file, twin) for file in FILES)
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * np.abs(one).max())


def test_in_float64_the_two_files_of_a_model_give_logits_equal_to_ten_digits():
    tokens = np.load(STORIES / "golden_logits.npz")["ids"][None]
    wide = []
    for path in FILES.values():
        cfg, weights = hub.read(path)
        wide.append(TORCH(cfg, {name: weights[name].astype(np.float64) for name in weights}, tokens))
    np.testing.assert_allclose(*wide, rtol=0, atol=1e-10)


def test_the_bin_file_written_as_a_folder_is_the_safetensors_file(tmp_path):
    hub.write(tmp_path, *hub.read(FILES["bin"]))
    assert_same_bits(tensorfile.read(tmp_path / "model.safetensors"), tensorfile.read(STORIES / "model.safetensors"))
    assert hub.read(tmp_path)[0] == hub.read(STORIES)[0]
    model = LlamaForCausalLM.from_pretrained(tmp_path)
    golden = np.load(STORIES / "golden_logits.npz")
    with torch.no_grad():
        logits = model(torch.from_numpy(golden["ids"][None])).logits[0].numpy()
    np.testing.assert_allclose(logits, golden["logits"], rtol=0, atol=1e-4)


@in_both
@every
def test_a_model_of_transformers_gives_its_logits(saved, name, twin):
    cfg, weights = hub.read(saved(name))
    logits = twin(cfg, weights, TOKENS, compiled=twin.name == "jax")
    np.testing.assert_allclose(logits, logits_of(model_of(name)), rtol=0, atol=TOLERANCE)


@every
def test_what_we_write_transformers_loads_to_the_last_bit(saved, name, tmp_path):
    hub.write(tmp_path, *hub.read(saved(name)))
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    # Without a window it is a Llama, which comes first.
    assert model.config.model_type == ("llama" if "without" in name else CASES[name].config.model_type)
    np.testing.assert_array_equal(logits_of(model), logits_of(model_of(name)))


@every
def test_what_we_write_we_read_to_the_last_bit(saved, name, tmp_path):
    cfg, weights = hub.read(saved(name))
    hub.write(tmp_path, cfg, weights)
    again, same = hub.read(tmp_path)
    assert again == cfg
    assert_same_bits(same, weights)
    assert_same_bits(
        tensorfile.read(tmp_path / "model.safetensors"), tensorfile.read(saved(name) / "model.safetensors")
    )


def test_a_config_in_the_form_of_transformers_4_reads_as_the_new_one(saved, tmp_path):
    new = json.loads((saved("llama") / "config.json").read_text())
    old = {key: value for key, value in new.items() if key not in ("rope_parameters", "dtype")}
    old |= {"rope_theta": 300.0, "rope_scaling": None, "torch_dtype": "float32", "transformers_version": "4.46.0"}
    (tmp_path / "config.json").write_text(json.dumps(old))
    (tmp_path / "model.safetensors").write_bytes((saved("llama") / "model.safetensors").read_bytes())
    assert hub.read(tmp_path)[0] == hub.read(saved("llama"))[0]
    assert transformers.AutoConfig.from_pretrained(tmp_path).rope_parameters == PLAIN


def test_a_sharded_folder_reads_as_the_single_file(saved, tmp_path):
    model_of("llama").save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert not (tmp_path / "model.safetensors").exists()
    assert_same_bits(hub.read(tmp_path)[1], hub.read(saved("llama"))[1])


def test_gpt2_saved_without_its_head_has_names_without_the_prefix(saved, tmp_path):
    model_of("gpt2").transformer.save_pretrained(tmp_path)
    assert "wte.weight" in tensorfile.read(tmp_path / "model.safetensors")
    assert_same_bits(hub.read(tmp_path)[1], hub.read(saved("gpt2"))[1])
    assert isinstance(model_of("gpt2").transformer, GPT2Model)


def test_bfloat16_stays_bfloat16(tmp_path):
    model = model_of("gpt2")
    states = {name: tensor.to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    narrow = GPT2LMHeadModel(model.config).to(torch.bfloat16)
    narrow.load_state_dict(states)
    narrow.save_pretrained(tmp_path / "theirs")
    cfg, weights = hub.read(tmp_path / "theirs")
    assert {weights[name].dtype for name in weights} == {np.dtype(ml_dtypes.bfloat16)}
    hub.write(tmp_path / "ours", cfg, weights)
    theirs, ours = (tensorfile.read(tmp_path / side / "model.safetensors") for side in ("theirs", "ours"))
    assert_same_bits(ours, theirs)
    assert GPT2LMHeadModel.from_pretrained(tmp_path / "ours").dtype == torch.bfloat16


SCALED = {
    "linear": {"factor": 3.0},
    "dynamic": {"factor": 3.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 41},
    "yarn": {"factor": 3.0, "original_max_position_embeddings": 41, "beta_fast": 4.0, "truncate": False},
    "longrope": {
        "factor": 3.0,
        "original_max_position_embeddings": 41,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4],
        "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0],
    },
}


@pytest.mark.parametrize("kind", SCALED)
def test_scaled_rotary_positions_are_read_and_written(kind, tmp_path):
    parameters = {"rope_type": kind, "rope_theta": 300.0} | SCALED[kind]
    longest = 41 if kind == "dynamic" else 123
    fields = CASES["llama"].fields | {"rope_parameters": parameters, "max_position_embeddings": longest}
    model = LlamaForCausalLM(LlamaConfig(**fields)).eval()
    model.load_state_dict(model_of("llama").state_dict())
    model.save_pretrained(tmp_path / "theirs")
    assert_reads_as(tmp_path / "theirs", model)
    hub.write(tmp_path / "ours", *hub.read(tmp_path / "theirs"))
    np.testing.assert_array_equal(logits_of(LlamaForCausalLM.from_pretrained(tmp_path / "ours")), logits_of(model))
    assert hub.read(tmp_path / "ours")[0] == hub.read(tmp_path / "theirs")[0]


OWN = {
    "multi-query, interleaved": (
        attn.MultiQueryAttentionConfig(
            input_dim=24, heads=6, dim_k=60, dim_v=60, mask=Causal(), rope={"kind": "default", "layout": "interleaved"}
        ),
        "llama",
    ),
    "heads that do not divide the width": (
        attn.GroupedQueryAttentionConfig(
            input_dim=23, heads=6, kv_heads=3, dim_k=60, dim_v=60, mask=Causal(), rope={"kind": "default"}
        ),
        "mistral",
    ),
    "a window in one layer, biases as in Qwen2": (
        tuple(
            attn.GroupedQueryAttentionConfig(
                input_dim=24,
                heads=6,
                kv_heads=3,
                bias=(True, True, True, False),
                mask=mask,
                rope={"kind": "default", "layout": "interleaved"},
            )
            for mask in (SlidingWindow(width=5), Causal())
        ),
        "qwen2",
    ),
}


@in_both
@pytest.mark.parametrize("name", OWN)
def test_a_model_of_ours_runs_in_transformers(name, twin, tmp_path):
    attention, model_type = OWN[name]
    width = attention[0].input_dim if isinstance(attention, tuple) else attention.input_dim
    mlp = attn.MLPConfig(input_dim=width, hidden_dim=37)
    cfg = attn.DecoderConfig(vocab_size=61, layers=2, attention=attention, mlp=mlp, tied=False)
    weights = weights_of(cfg, "float32")
    hub.write(tmp_path, cfg, weights)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.config.model_type == model_type
    logits = twin(cfg, weights, TOKENS, compiled=twin.name == "jax")
    np.testing.assert_allclose(logits, logits_of(model), rtol=0, atol=TOLERANCE)
