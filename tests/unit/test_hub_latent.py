"""What is read of and written to config.json where attention is latent, and what is refused."""

from typing import Any

import numpy as np
import pytest

import attn
from attn import hub
from attn.config import Config
from attn.hub.configs import read_config, write_config
from attn.hub.engine import Linked, plan
from tests.cases import refused
from tests.checkpoints import numbered

V, M, H, C, Q, D, R, E, U, L = 17, 12, 6, 5, 7, 10, 8, 9, 19, 3

SIZES = {"vocab_size": V, "hidden_size": M, "intermediate_size": U, "num_hidden_layers": L, "num_attention_heads": H}
SIZES |= {"kv_lora_rank": C, "q_lora_rank": Q, "qk_nope_head_dim": D, "qk_rope_head_dim": R, "v_head_dim": E}
YARN = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707}
YARN |= {"original_max_position_embeddings": 4096}
LONG = {"type": "longrope", "original_max_position_embeddings": 32768}
LONG |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
# As in the published files, whatever has no meaning without experts included.
EXPERTS = {"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 23}
EXPERTS |= {"n_group": 1, "topk_group": 1, "topk_method": "greedy", "scoring_func": "softmax", "norm_topk_prob": False}
EXPERTS |= {"routed_scaling_factor": 1.0, "moe_layer_freq": 1, "ep_size": 1, "aux_loss_alpha": 0.001, "seq_aux": True}
EXPERTS |= {"auto_map": {"AutoModel": "modeling.Model"}, "pretraining_tp": 1, "num_key_value_heads": H}

FILES: dict[str, dict[str, Any]] = {
    "youtu": SIZES
    | {"rope_theta": 1600000, "rope_scaling": None, "rope_interleave": True, "attention_bias": False, "head_dim": R}
    | {"mlp_bias": False, "embedding_initializer_range": 0.02, "qk_head_dim": D + R, "num_key_value_heads": H},
    "deepseek_v3": SIZES
    | EXPERTS
    | {"first_k_dense_replace": L, "num_nextn_predict_layers": 1, "rope_theta": 50000.0, "attention_bias": True}
    | {"rope_scaling": YARN, "tie_word_embeddings": False, "max_position_embeddings": 163840},
    "deepseek_v2": SIZES
    | EXPERTS
    | {"first_k_dense_replace": L, "q_lora_rank": None, "rope_theta": 10000, "rope_scaling": YARN, "mlp_bias": True},
    "minicpm3": {name: value for name, value in SIZES.items() if name != "v_head_dim"}
    | {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 3, "rope_scaling": LONG, "rms_norm_eps": 1e-5}
    | {"max_position_embeddings": 32768, "num_key_value_heads": H},
}

LATENT: dict[str, Any] = {"input_dim": M, "heads": H, "kv_lora_rank": C, "dim_k": 60, "dim_v": 54, "rope_dim": R}
LATENT |= {"latent_norm": {"eps": 1e-6}, "mask": {"kind": "causal"}}
OURS_YARN = {"kind": "yarn", "factor": 40.0, "original_length": 4096, "mscale": 0.707, "mscale_all_dim": 0.707}
OURS_YARN |= {"layout": "interleaved"}
OURS_LONG = {"kind": "longrope", "factor": 1.0, "original_length": 32768}
OURS_LONG |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


def decoder(attention: dict[str, Any], **options: Any) -> attn.DecoderConfig:
    given = {"vocab_size": V, "layers": L, "attention": attn.MultiHeadLatentAttentionConfig(**(LATENT | attention))}
    given |= {"mlp": attn.MLPConfig(input_dim=M, hidden_dim=U), "norm": attn.NormConfig(eps=1e-6), "tied": False}
    return attn.DecoderConfig(**(given | options))


PLAIN = {"kind": "default", "theta": 1600000.0, "layout": "interleaved"}
OURS: dict[str, Config] = {
    "youtu": decoder({"q_lora_rank": Q, "rope": PLAIN}, tied=True),
    "deepseek_v3": decoder(
        {"q_lora_rank": Q, "rope": OURS_YARN | {"theta": 50000.0}}
        | {"bias": (True, False, True, True, False, False, True)},
    ),
    "deepseek_v2": decoder({"rope": OURS_YARN}, mlp=attn.MLPConfig(input_dim=M, hidden_dim=U, bias=True)),
    "minicpm3": decoder(
        {"q_lora_rank": Q, "dim_v": M, "rope": OURS_LONG},
        embed_scale=12.0,
        residual_scale=1.4 / 3**0.5,
        logit_scale=0.25,
        norm=attn.NormConfig(eps=1e-5),
        tied=True,
    ),
}

every = pytest.mark.parametrize("name", FILES)


@every
def test_a_config_is_read_in_its_published_form(name):
    assert read_config(hub.PAGES[name], FILES[name]) == OURS[name]


@every
def test_a_config_is_written_so_that_it_reads_as_it_was(name):
    page = hub.PAGES[name]
    fields, problems = write_config(page, OURS[name])
    assert problems == []
    assert read_config(page, fields) == OURS[name]
    said = FILES[name].keys() & {*SIZES, "attention_bias", "scale_emb", "scale_depth", "dim_model_base"}
    assert {field: fields[field] for field in said} == {field: FILES[name][field] for field in said}


def test_a_dense_deepseek_v3_is_written_as_one_without_experts_or_further_heads():
    fields, _ = write_config(hub.PAGES["deepseek_v3"], OURS["deepseek_v3"])
    assert (fields["first_k_dense_replace"], fields["num_nextn_predict_layers"]) == (L, 0)
    assert fields["rope_interleave"] is True
    assert fields["attention_bias"] is True


def test_fields_that_are_not_there_have_the_defaults_of_their_format():
    for name, rank in {"youtu": 1536, "deepseek_v3": 1536, "deepseek_v2": 1536, "minicpm3": 768}.items():
        file = {field: value for field, value in FILES[name].items() if field not in ("q_lora_rank", "rms_norm_eps")}
        file.pop("tie_word_embeddings", None)
        cfg = read_config(hub.PAGES[name], file)
        assert cfg.attention.q_lora_rank == rank
        assert cfg.norm.eps == (1e-5 if name == "minicpm3" else 1e-6)
        assert cfg.tied is (name in ("youtu", "minicpm3"))


def test_rotary_pairs_are_where_the_format_or_the_file_says():
    layouts = {name: read_config(hub.PAGES[name], file).attention.rope.layout for name, file in FILES.items()}
    assert layouts == dict.fromkeys(FILES, "interleaved") | {"minicpm3": "half"}
    for name in ("youtu", "deepseek_v3"):
        cfg = read_config(hub.PAGES[name], FILES[name] | {"rope_interleave": False})
        assert cfg.attention.rope.layout == "half"
        assert write_config(hub.PAGES[name], cfg)[0]["rope_interleave"] is False


def test_without_routed_experts_every_layer_is_dense():
    file = FILES["deepseek_v2"] | {"n_routed_experts": None, "first_k_dense_replace": 0}
    assert read_config(hub.PAGES["deepseek_v2"], file) == OURS["deepseek_v2"]


def test_scales_that_are_null_are_one():
    cfg = read_config(hub.PAGES["minicpm3"], FILES["minicpm3"] | {"scale_depth": None, "dim_model_base": None})
    assert (cfg.residual_scale, cfg.logit_scale) == (1.0, 1.0)


def test_scales_come_back_as_they_stood_in_the_file():
    for depth in (1.4, 0.7, 3, 1.6):
        for layers in (7, 40, 62):
            file = FILES["minicpm3"] | {"num_hidden_layers": layers, "scale_depth": depth}
            fields, _ = write_config(hub.PAGES["minicpm3"], read_config(hub.PAGES["minicpm3"], file))
            assert fields["scale_depth"] == depth


DENSE = "first_k_dense_replace must be at least num_hidden_layers=3, as experts are not implemented, not"
MISREAD = {
    "experts": ("deepseek_v3", {"first_k_dense_replace": 2}, f"{DENSE} 2"),
    "experts by default": (
        "deepseek_v3",
        {"first_k_dense_replace": None, "num_hidden_layers": 4},
        DENSE.replace("=3", "=4") + " 3",
    ),
    "experts by the other default": ("deepseek_v2", {"first_k_dense_replace": None}, f"{DENSE} 0"),
    "experts in youtu": ("youtu", {"n_routed_experts": 64}, "n_routed_experts is unknown and may matter, it is 64"),
    "sizes": ("youtu", {"v_head_dim": None}, "v_head_dim is missing"),
    "no rank": ("deepseek_v2", {"q_lora_rank": 0}, "q_lora_rank must be a positive integer, not 0"),
    "a bias that is a number": ("youtu", {"attention_bias": 1}, "attention_bias must be true or false, not 1"),
    "a layout that is null": ("youtu", {"rope_interleave": None}, "rope_interleave must be true or false, not None"),
    "a layout where it is fixed": (
        "minicpm3",
        {"rope_interleave": True},
        "rope_interleave is unknown and may matter, it is True",
    ),
    "quantised": (
        "deepseek_v3",
        {"quantization_config": {"fmt": "e4m3"}},
        "quantization_config is unknown and may matter, it is {'fmt': 'e4m3'}",
    ),
    "scales": (
        "minicpm3",
        {"scale_emb": None, "scale_depth": "1", "dim_model_base": 0},
        "scale_emb is missing; scale_depth must be a positive number, not '1'; "
        "dim_model_base must be a positive integer, not 0",
    ),
}


@pytest.mark.parametrize("name", MISREAD)
def test_a_config_that_cannot_be_read_is_refused_with_its_reason(name):
    model_type, changes, text = MISREAD[name]
    with refused(f"config cannot be read as {model_type}: {text}."):
        read_config(hub.PAGES[model_type], FILES[model_type] | changes)


def test_scales_that_are_not_there_are_missing():
    file = {name: value for name, value in FILES["minicpm3"].items() if not name.startswith(("scale", "dim"))}
    with refused(
        "config cannot be read as minicpm3: scale_emb is missing; scale_depth is missing; dim_model_base is missing."
    ):
        read_config(hub.PAGES["minicpm3"], file)


ROPED = {"rope": {"kind": "default", "layout": "interleaved"}}
UNWRITABLE = {
    "another eps in the latents": (
        decoder(ROPED | {"latent_norm": {"eps": 1e-5}}),
        "youtu",
        "attention.latent_norm must be LatentNorm(eps=1e-06), not LatentNorm(eps=1e-05)",
    ),
    "one bias": (
        decoder(ROPED | {"bias": (True, False, False, False, False, False)}),
        "youtu",
        "attention.bias must be one of (False, False, False, False, False, False), "
        "(False, True, True, False, False, True), not (True, False, False, False, False, False)",
    ),
    "fewer numbers that turn": (
        decoder({"rope": ROPED["rope"] | {"width": 4}}),
        "youtu",
        "attention.rope.width must be 8, all of rope_dim, not 4",
    ),
    "a residual scale between two numbers": (
        decoder(ROPED, residual_scale=0.9, embed_scale=2.0, layers=5),
        "minicpm3",
        "residual_scale must be a scale_depth / sqrt(layers), such as 0.9000000000000001, not 0.9",
    ),
    "a logit scale between two whole numbers": (
        decoder(ROPED, logit_scale=0.3, embed_scale=2.0),
        "minicpm3",
        "logit_scale must be a whole number / input_dim, such as 0.3333333333333333, not 0.3",
    ),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_a_config_that_no_format_can_say_is_refused_with_its_reason(tmp_path, name):
    cfg, nearest, text = UNWRITABLE[name]
    with refused(f"config cannot be written, {nearest} comes nearest: {text}."):
        hub.write(tmp_path / "folder", cfg, numbered(cfg.shapes()))
    assert not (tmp_path / "folder").exists()


def test_what_must_be_latent_and_turn_is_said():
    cfg = decoder({"rope_dim": None})
    problems = write_config(hub.PAGES["deepseek_v2"], cfg)[1]
    assert "attention.rope_dim must be a positive integer, not None" in problems
    grouped = attn.GroupedQueryAttentionConfig(input_dim=M, heads=H, kv_heads=3, mask={"kind": "causal"})
    problems = write_config(hub.PAGES["deepseek_v2"], cfg.replace(attention=grouped))[1]
    assert "attention.variant must be 'latent', not 'grouped_query'" in problems
    cfg = decoder(ROPED | {"input_dim": 11}, mlp=attn.MLPConfig(input_dim=11, hidden_dim=U))
    assert write_config(hub.PAGES["youtu"], cfg)[1] == []
    assert write_config(hub.PAGES["deepseek_v2"], cfg)[1] == ["attention.heads must divide input_dim=11, not 6"]


def test_the_fused_matrices_are_split_between_rows_and_within_heads():
    cfg, page = OURS["deepseek_v3"], hub.PAGES["deepseek_v3"]
    links = plan(page, cfg)
    shapes = {name: shape for link in links for name, shape in link.sources.items()}
    part = "model.layers.1.self_attn."
    assert shapes[f"{part}kv_a_proj_with_mqa.weight"] == (C + R, M)
    assert shapes[f"{part}kv_b_proj.weight"] == (H * (D + E), C)
    assert shapes[f"{part}q_b_proj.weight"] == (H * (D + R), Q)
    arrays = numbered(shapes)
    ours = Linked(links, arrays)
    fused = arrays[f"{part}kv_a_proj_with_mqa.weight"]
    np.testing.assert_array_equal(ours["layers.1.attention.kv_down.kernel"], fused[:C].T)
    np.testing.assert_array_equal(ours["layers.1.attention.k_rope.kernel"], fused[C:].T)
    fused = arrays[f"{part}kv_a_proj_with_mqa.bias"]
    np.testing.assert_array_equal(ours["layers.1.attention.k_rope.bias"], fused[C:])
    fused = arrays[f"{part}kv_b_proj.weight"]
    for head in range(H):
        rows = fused[head * (D + E) : (head + 1) * (D + E)]
        np.testing.assert_array_equal(ours["layers.1.attention.k_up.kernel"][:, head], rows[:D].T)
        np.testing.assert_array_equal(ours["layers.1.attention.v_up.kernel"][:, head], rows[D:].T)
