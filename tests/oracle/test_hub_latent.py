"""Checkpoints with latent attention give the logits that transformers gives, in one pass and step by step."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    MiniCPM3Config,
    MiniCPM3ForCausalLM,
    YoutuConfig,
    YoutuForCausalLM,
)

import attn
import attn_torch
from attn import hub, tensorfile
from tests.cases import in_both_for, weights_of
from tests.twins import Torch

M, H, C, Q, D, R, E, U, V, B, T = 42, 6, 22, 14, 10, 8, 12, 37, 61, 2, 67

TOKENS = np.random.default_rng(5).integers(0, V, (B, T))
"""Beyond position 50, and beyond the original length of a longrope."""

TOLERANCE = 1e-4
"""Of logits that reach 6, of which float32 leaves 1e-5."""

SIZES = {"vocab_size": V, "hidden_size": M, "intermediate_size": U, "num_hidden_layers": 2, "num_attention_heads": H}
SIZES |= {"num_key_value_heads": H, "kv_lora_rank": C, "q_lora_rank": Q, "qk_nope_head_dim": D, "qk_rope_head_dim": R}
SIZES |= {"rms_norm_eps": 1e-3, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
VALUES = SIZES | {"v_head_dim": E}
PLAIN = {"rope_type": "default", "rope_theta": 300.0}
YARN = {"rope_type": "yarn", "rope_theta": 300.0, "factor": 8.0, "original_max_position_embeddings": 64}
YARN |= {"beta_fast": 8.0, "mscale": 1.0, "mscale_all_dim": 0.707}
LONG = {"rope_type": "longrope", "rope_theta": 300.0, "factor": 3.0, "original_max_position_embeddings": 41}
LONG |= {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 4.0]}

CASES: dict[str, tuple[type, type, dict[str, Any]]] = {
    "youtu": (YoutuForCausalLM, YoutuConfig, VALUES | {"rope_parameters": PLAIN}),
    "youtu in halves": (
        YoutuForCausalLM,
        YoutuConfig,
        VALUES | {"rope_parameters": PLAIN, "rope_interleave": False, "tie_word_embeddings": False},
    ),
    "deepseek_v3": (
        DeepseekV3ForCausalLM,
        DeepseekV3Config,
        VALUES
        | {"first_k_dense_replace": 2, "max_position_embeddings": 512, "attention_bias": True, "rope_parameters": YARN},
    ),
    "deepseek_v2": (
        DeepseekV2ForCausalLM,
        DeepseekV2Config,
        VALUES
        | {"first_k_dense_replace": 2, "q_lora_rank": None, "attention_bias": True, "mlp_bias": True}
        | {"rope_parameters": YARN | {"mscale": 0.707}, "max_position_embeddings": 512},
    ),
    "minicpm3": (
        MiniCPM3ForCausalLM,
        MiniCPM3Config,
        SIZES
        | {"rope_parameters": LONG, "max_position_embeddings": 123, "attention_bias": True, "scale_emb": 5}
        | {"scale_depth": 1.4, "dim_model_base": 11},
    ),
}

every = pytest.mark.parametrize("name", CASES)


@lru_cache
def model_of(name: str) -> Any:
    """A model in which no weight has its default."""
    model, config, fields = CASES[name]
    torch.manual_seed(7)
    model = model(config(**fields)).eval()
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


@in_both_for("name", CASES, first=[name for name in CASES if name != "youtu in halves"])
def test_a_model_of_transformers_gives_its_logits(saved, twin, name):
    cfg, weights = hub.read(saved(name))
    logits = twin(cfg, weights, TOKENS, compiled=twin.name == "jax")
    np.testing.assert_allclose(logits, logits_of(model_of(name)), rtol=0, atol=TOLERANCE)


@every
def test_a_prompt_and_steps_through_the_cache_give_its_logits(saved, name):
    cfg, weights = hub.read(saved(name))
    module, cache, rows = Torch().module(cfg, weights), attn_torch.init_cache(cfg, B, T), []
    with torch.no_grad():
        for start, stop in [(0, T - 3), *((t, t + 1) for t in range(T - 3, T))]:
            logits, cache = module(torch.from_numpy(TOKENS[:, start:stop]), cache=cache)
            rows.append(logits.numpy())
    np.testing.assert_allclose(np.concatenate(rows, 1), logits_of(model_of(name)), rtol=0, atol=TOLERANCE)


@every
def test_what_we_write_we_and_transformers_read_to_the_last_bit(saved, name, tmp_path):
    cfg, weights = hub.read(saved(name))
    hub.write(tmp_path, cfg, weights)
    again, same = hub.read(tmp_path)
    assert again == cfg
    assert_same_bits(same, weights)
    files = [tensorfile.read(folder / "model.safetensors") for folder in (tmp_path, saved(name))]
    assert_same_bits(*files)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    # Where all layers are dense, DeepSeek-V3 is Youtu, which comes first.
    assert model.config.model_type == ("youtu" if name == "deepseek_v3" else CASES[name][1].model_type)
    np.testing.assert_array_equal(logits_of(model), logits_of(model_of(name)))


LATENT: dict[str, Any] = {"input_dim": M, "heads": H, "kv_lora_rank": C, "dim_k": H * D, "dim_v": H * E, "rope_dim": R}
LATENT |= {"latent_norm": {"eps": 1e-6}, "mask": {"kind": "causal"}}
OWN = {
    "deepseek_v2": ({"q_lora_rank": Q, "rope": {"kind": "default", "theta": 300.0}}, {}),
    "minicpm3": (
        {"rope": {"kind": "default", "theta": 300.0, "layout": "interleaved"}},
        {"embed_scale": 3.0, "residual_scale": 0.5, "logit_scale": 0.25},
    ),
}
"""Models in the rotary layout that their format lacks; the numbers that turn are moved, the last of each head."""


@pytest.mark.parametrize("name", OWN)
def test_a_model_of_ours_in_the_other_rotary_layout_runs_in_transformers(name, tmp_path):
    attention, scales = OWN[name]
    # A quarter of the width has to be a whole number.
    width = 48 if scales else M
    latent = attn.MultiHeadLatentAttentionConfig(**(LATENT | attention | {"input_dim": width}))
    mlp = attn.MLPConfig(input_dim=width, hidden_dim=U, bias=True)
    cfg = attn.DecoderConfig(vocab_size=V, layers=2, attention=latent, mlp=mlp, tied=False, **scales)
    weights = weights_of(cfg, "float32")
    hub.write(tmp_path, cfg, weights)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.config.model_type == name
    np.testing.assert_allclose(Torch()(cfg, weights, TOKENS), logits_of(model), rtol=0, atol=TOLERANCE)
