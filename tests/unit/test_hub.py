"""Where the tensors of others land among ours, and what is refused of them."""

import json

import ml_dtypes
import numpy as np
import pytest

import attn
from attn import hub, tensorfile
from attn.masks import Causal
from attn.tensorfile import TensorFile
from tests.cases import refused
from tests.checkpoints import (
    ATTENTION,
    GPT2_CONFIG,
    LLAMA_CONFIG,
    NARROW,
    ROPE,
    WIDE,
    D,
    H,
    K,
    L,
    M,
    P,
    V,
    folder_of,
    gpt2_shapes,
    grouped,
    llama,
    llama_folder,
    llama_shapes,
    numbered,
)


def test_every_number_of_a_llama_lands_in_its_place(tmp_path):
    cfg, weights = hub.read(llama_folder(tmp_path, attention_bias=True))
    theirs = numbered(llama_shapes(bias=True))
    assert cfg == llama(grouped(bias=True))
    assert set(weights) == set(cfg.shapes())
    for layer in range(L):
        own, other = f"layers.{layer}.attention.", f"model.layers.{layer}.self_attn."
        for part, heads in (("q", H), ("k", K), ("v", K)):
            kernel, weight = weights[f"{own}{part}.kernel"], theirs[f"{other}{part}_proj.weight"]
            bias = theirs[f"{other}{part}_proj.bias"]
            for h in range(heads):
                np.testing.assert_array_equal(kernel[:, h], weight[h * D : (h + 1) * D].T)
                np.testing.assert_array_equal(weights[f"{own}{part}.bias"][h], bias[h * D : (h + 1) * D])
        out = theirs[f"{other}o_proj.weight"]
        for h in range(H):
            np.testing.assert_array_equal(weights[f"{own}out.kernel"][h], out[:, h * D : (h + 1) * D].T)
        np.testing.assert_array_equal(weights[f"{own}out.bias"], theirs[f"{other}o_proj.bias"])
        for ours, name in (("gate", "gate"), ("up", "up"), ("down", "down")):
            expected = theirs[f"model.layers.{layer}.mlp.{name}_proj.weight"].T
            np.testing.assert_array_equal(weights[f"layers.{layer}.mlp.{ours}.kernel"], expected)
        for ours, name in (("attention_norm", "input_layernorm"), ("mlp_norm", "post_attention_layernorm")):
            expected = theirs[f"model.layers.{layer}.{name}.weight"]
            np.testing.assert_array_equal(weights[f"layers.{layer}.{ours}.scale"], expected)
    np.testing.assert_array_equal(weights["embed.embedding"], theirs["model.embed_tokens.weight"])
    np.testing.assert_array_equal(weights["norm.scale"], theirs["model.norm.weight"])
    np.testing.assert_array_equal(weights["head.kernel"], theirs["lm_head.weight"].T)


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_every_number_of_a_gpt2_lands_in_its_place(tmp_path, prefix):
    theirs = numbered(gpt2_shapes())
    masks = {f"h.{layer}.attn.bias": np.ones((1, 1, P, P), np.float32) for layer in range(L)}
    masks |= {f"h.{layer}.attn.masked_bias": np.array(-1e4, np.float32) for layer in range(L)}
    stored = {prefix + name: array for name, array in (theirs | masks).items()}
    cfg, weights = hub.read(folder_of(tmp_path, GPT2_CONFIG, stored))
    assert cfg == attn.DecoderConfig(
        vocab_size=V,
        layers=L,
        attention=attn.MultiHeadAttentionConfig(input_dim=M, heads=H, bias=True, mask=Causal()),
        mlp=attn.MLPConfig(input_dim=M, hidden_dim=4 * M, activation="gelu_tanh", gated=False, bias=True),
        norm=attn.NormConfig(kind="layer", eps=1e-5),
        learned_positions=P,
    )
    assert set(weights) == set(cfg.shapes())
    head = M // H
    for layer in range(L):
        fused, bias = theirs[f"h.{layer}.attn.c_attn.weight"], theirs[f"h.{layer}.attn.c_attn.bias"]
        for i, part in enumerate("qkv"):
            for h in range(H):
                columns = slice(i * M + h * head, i * M + (h + 1) * head)
                np.testing.assert_array_equal(
                    weights[f"layers.{layer}.attention.{part}.kernel"][:, h], fused[:, columns]
                )
                np.testing.assert_array_equal(weights[f"layers.{layer}.attention.{part}.bias"][h], bias[columns])
        out = theirs[f"h.{layer}.attn.c_proj.weight"].reshape(H, head, M)
        np.testing.assert_array_equal(weights[f"layers.{layer}.attention.out.kernel"], out)
        for ours, name in (("up", "c_fc"), ("down", "c_proj")):
            for leaf, kind in (("kernel", "weight"), ("bias", "bias")):
                expected = theirs[f"h.{layer}.mlp.{name}.{kind}"]
                np.testing.assert_array_equal(weights[f"layers.{layer}.mlp.{ours}.{leaf}"], expected)
        for ours, name in (("attention_norm", "ln_1"), ("mlp_norm", "ln_2")):
            np.testing.assert_array_equal(weights[f"layers.{layer}.{ours}.scale"], theirs[f"h.{layer}.{name}.weight"])
            np.testing.assert_array_equal(weights[f"layers.{layer}.{ours}.bias"], theirs[f"h.{layer}.{name}.bias"])
    np.testing.assert_array_equal(weights["embed.embedding"], theirs["wte.weight"])
    np.testing.assert_array_equal(weights["positions.embedding"], theirs["wpe.weight"])


def test_interleaved_pairs_are_written_as_halves(tmp_path):
    cfg = llama(grouped(bias=True, rope=ROPE | {"layout": "interleaved"}))
    weights = numbered(cfg.shapes())
    hub.write(tmp_path, cfg, weights)
    written = tensorfile.read(tmp_path / "model.safetensors")
    for part, heads in (("q", H), ("k", K)):
        kernel, bias = weights[f"layers.1.attention.{part}.kernel"], weights[f"layers.1.attention.{part}.bias"]
        weight = written[f"model.layers.1.self_attn.{part}_proj.weight"]
        for h in range(heads):
            for i in range(D // 2):
                np.testing.assert_array_equal(weight[h * D + i], kernel[:, h, 2 * i])
                np.testing.assert_array_equal(weight[h * D + D // 2 + i], kernel[:, h, 2 * i + 1])
        halves = np.concatenate([bias[:, 0::2], bias[:, 1::2]], axis=1).reshape(-1)
        np.testing.assert_array_equal(written[f"model.layers.1.self_attn.{part}_proj.bias"], halves)
    values = weights["layers.1.attention.v.kernel"].reshape(M, NARROW).T
    np.testing.assert_array_equal(written["model.layers.1.self_attn.v_proj.weight"], values)
    assert hub.read(tmp_path)[0] == llama(grouped(bias=True))


def test_a_folder_is_opened_without_reading_a_tensor(tmp_path, monkeypatch):
    folder = llama_folder(tmp_path)
    asked = []
    read = TensorFile.__getitem__
    monkeypatch.setattr(TensorFile, "__getitem__", lambda file, name: asked.append(name) or read(file, name))
    _, weights = hub.read(folder)
    assert asked == []
    weights["norm.scale"]
    assert asked == ["model.norm.weight"]


def test_one_report_names_every_tensor_that_does_not_fit(tmp_path):
    tensors = numbered(llama_shapes())
    for name in ("model.norm.weight", "model.layers.1.mlp.up_proj.weight"):
        del tensors[name]
    tensors["model.layers.2.input_layernorm.weight"] = np.zeros(M, np.float32)
    tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(WIDE, np.float32)
    tensors["lm_head.weight"] = np.zeros((M, V), np.float32)
    folder = folder_of(tmp_path, LLAMA_CONFIG, tensors)
    text = (
        f"weights in {folder} do not fit their config: model.layers.1.mlp.up_proj.weight is missing; "
        "model.norm.weight is missing; model.layers.0.self_attn.q_proj.bias is unexpected; "
        f"model.layers.2.input_layernorm.weight is unexpected; lm_head.weight has shape {(M, V)} instead of {(V, M)}."
    )
    with refused(text):
        hub.read(folder)


def test_buffers_that_are_no_weights_are_passed_over(tmp_path):
    tensors = numbered(llama_shapes())
    tensors |= {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": np.zeros(D // 2, np.float32) for i in range(L)}
    cfg, weights = hub.read(folder_of(tmp_path, LLAMA_CONFIG, tensors))
    assert set(weights) == set(cfg.shapes())
    tensors[f"model.layers.{L}.self_attn.rotary_emb.inv_freq"] = np.zeros(D // 2, np.float32)
    folder = folder_of(tmp_path, LLAMA_CONFIG, tensors)
    extra = f"model.layers.{L}.self_attn.rotary_emb.inv_freq is unexpected"
    with refused(f"weights in {folder} do not fit their config: {extra}."):
        hub.read(folder)


TIED = [(tied, head) for tied in (True, False) for head in ("none", "equal", "other")]


@pytest.mark.parametrize(("tied", "head"), TIED)
def test_a_head_is_there_exactly_when_the_config_says_so(tmp_path, tied, head):
    tensors = numbered(llama_shapes(head=False))
    embedding = tensors["model.embed_tokens.weight"]
    tensors |= {} if head == "none" else {"lm_head.weight": embedding + (head == "other")}
    folder = folder_of(tmp_path, LLAMA_CONFIG | {"tie_word_embeddings": tied}, tensors)
    if tied and head == "other":
        with refused(
            "tie_word_embeddings must be false where lm_head.weight and model.embed_tokens.weight differ, not true."
        ):
            hub.read(folder)
    elif not tied and head == "none":
        with refused(f"weights in {folder} do not fit their config: lm_head.weight is missing."):
            hub.read(folder)
    else:
        cfg, weights = hub.read(folder)
        assert cfg.tied is tied
        assert ("head.kernel" in weights) is not tied


def test_a_nan_in_a_tied_head_is_the_same_nan(tmp_path):
    tensors = numbered(llama_shapes(head=False))
    tensors["model.embed_tokens.weight"][3, 5] = np.nan
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    assert hub.read(folder_of(tmp_path, LLAMA_CONFIG | {"tie_word_embeddings": True}, tensors))[0].tied


def test_tensors_of_two_dtypes_are_not_joined(tmp_path):
    cfg, weights = hub.read(folder_of(tmp_path / "theirs", GPT2_CONFIG, numbered(gpt2_shapes())))
    weights = dict(weights) | {"layers.1.attention.k.bias": weights["layers.1.attention.k.bias"].astype(np.float16)}
    names = ", ".join(f"layers.1.attention.{part}.bias" for part in "qkv")
    text = f"{names} become one tensor and have dtypes float32, float16, float32"
    with refused(f"weights do not fit the decoder config: {text}."):
        hub.write(tmp_path / "ours", cfg, weights)
    assert not (tmp_path / "ours").exists()


def test_every_tensor_keeps_its_dtype(tmp_path):
    cfg = llama()
    weights = numbered(cfg.shapes(), ml_dtypes.bfloat16)
    hub.write(tmp_path, cfg, weights)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    weights["norm.scale"] = weights["norm.scale"].astype(np.float32)
    hub.write(tmp_path, cfg, weights)
    assert "dtype" not in json.loads((tmp_path / "config.json").read_text())
    _, again = hub.read(tmp_path)
    for name, array in weights.items():
        assert again[name].dtype == again.dtypes[name] == array.dtype
        assert again[name].tobytes() == array.tobytes()


def test_weights_that_do_not_fit_are_refused_and_nothing_is_written(tmp_path):
    cfg = llama()
    weights = numbered(cfg.shapes())
    del weights["norm.scale"]
    weights["extra"] = np.zeros(2, np.float32)
    weights["embed.embedding"] = weights["embed.embedding"].T
    text = f"norm.scale is missing; extra is unexpected; embed.embedding has shape {(M, V)} instead of {(V, M)}"
    with refused(f"weights do not fit the decoder config: {text}."):
        hub.write(tmp_path / "folder", cfg, weights)
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    "attention",
    [
        attn.MultiQueryAttentionConfig(**{name: value for name, value in ATTENTION.items() if name != "kv_heads"}),
        attn.MultiHeadAttentionConfig(**{name: value for name, value in ATTENTION.items() if name != "kv_heads"}),
    ],
)
def test_the_two_ends_of_grouped_query_are_written_as_it(tmp_path, attention):
    cfg = llama(attention)
    weights = numbered(cfg.shapes())
    hub.write(tmp_path, cfg, weights)
    again, same = hub.read(tmp_path)
    assert again == llama(grouped(kv_heads=attention.kv_heads))
    for name, array in weights.items():
        np.testing.assert_array_equal(same[name], array)
