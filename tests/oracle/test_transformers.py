"""The options of attention against the attention layers of transformers, through their own weights."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from transformers.models.cohere import modeling_cohere as cohere
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek_v3
from transformers.models.gemma2 import modeling_gemma2 as gemma2
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.llama import modeling_llama as llama
from transformers.models.olmo2 import modeling_olmo2 as olmo2
from transformers.models.qwen3 import modeling_qwen3 as qwen3
from transformers.models.t5 import modeling_t5 as t5

import attn
import attn_jax.rotary
import attn_torch.rotary
from attn.rope import AnyRope

B, T, M, H, K, D = 2, 53, 42, 6, 3, 10
SIZES = {"hidden_size": M, "num_attention_heads": H, "num_key_value_heads": K, "head_dim": D}
SHAPE = {"input_dim": M, "heads": H, "kv_heads": K, "dim_k": H * D, "dim_v": H * D, "mask": {"kind": "causal"}}
CLOSE = 1e-5
"""On outputs of size one: fifty float32 roundings."""

ROPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({"rope_type": "default"}, {"kind": "default"}),
    "linear": ({"rope_type": "linear", "factor": 3.0}, {"kind": "linear", "factor": 3.0}),
    "llama3": (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        {"kind": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_length": 16},
    ),
    "yarn": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8.0},
        {"kind": "yarn", "factor": 4.0, "original_length": 64, "beta_fast": 8.0},
    ),
    "yarn_untruncated": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "truncate": False},
        {"kind": "yarn", "factor": 4.0, "original_length": 64, "truncate": False},
    ),
    "yarn_mscale": (
        {
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 64,
            "mscale": 1.0,
            "mscale_all_dim": 0.707,
        },
        {"kind": "yarn", "factor": 16.0, "original_length": 64, "mscale": 1.0, "mscale_all_dim": 0.707},
    ),
    "yarn_attention_factor": (
        {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64, "attention_factor": 1.25},
        {"kind": "yarn", "factor": 16.0, "original_length": 64, "attention_factor": 1.25},
    ),
    "longrope": (
        {
            "rope_type": "longrope",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4],
            "long_factor": [2.0, 2.5, 3.0, 3.5, 4.0],
        },
        {
            "kind": "longrope",
            "factor": 4.0,
            "original_length": 16,
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4],
            "long_factor": [2.0, 2.5, 3.0, 3.5, 4.0],
        },
    ),
    "dynamic": (
        {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 16},
        {"kind": "dynamic", "factor": 2.0, "original_length": 16},
    ),
}


def perturbed(layer: torch.nn.Module) -> torch.nn.Module:
    """Weights large enough to matter, and no norm, bias or sink at its default."""
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        scale = 0.4 if parameter.ndim == 1 else 1 / parameter.shape[-1] ** 0.5
        parameter.data = scale * torch.randn(parameter.shape, generator=generator) + (parameter.ndim == 1)
    return layer.eval()


def causal_mask() -> torch.Tensor:
    hidden = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
    return torch.zeros(1, 1, T, T).masked_fill(hidden, torch.finfo(torch.float32).min)


def inputs() -> torch.Tensor:
    return torch.randn(B, T, M, generator=torch.Generator().manual_seed(1))


def renamed(layer: torch.nn.Module, names: dict[str, str]) -> dict[str, np.ndarray]:
    """The layer's state under our parts' names, in PyTorch's shapes."""
    state = {}
    for name, tensor in layer.state_dict().items():
        part, _, leaf = name.rpartition(".")
        state[names[name] if name in names else f"{names[part]}.{leaf}"] = tensor.detach().numpy().copy()
    return state


def assert_equal(cfg: attn.variants.AttentionConfig, state: dict[str, np.ndarray], x: torch.Tensor, expected) -> None:
    """Both twins compute what the other library did."""
    weights = dict(attn.weights.from_torch(cfg, state))
    module = attn_torch.build(cfg)
    module.load_state_dict(attn_torch.from_neutral(cfg, weights))
    expected = expected.detach().numpy()
    scale = np.abs(expected).max()
    assert np.abs(module(x).detach().numpy() - expected).max() < CLOSE * scale
    y = jax.jit(attn_jax.build(cfg).apply)(attn_jax.from_neutral(cfg, weights), x.numpy())
    assert np.abs(np.asarray(y) - expected).max() < CLOSE * scale


PROJECTIONS = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "out", "q_norm": "q_norm", "k_norm": "k_norm"}


@pytest.mark.parametrize("kind", ROPES)
def test_every_rope_turns_as_llamas(kind):
    theirs, ours = ROPES[kind]
    longest = 16 if kind == "dynamic" else 256
    config = llama.LlamaConfig(
        **SIZES,
        rope_parameters=theirs | {"rope_theta": 500.0},
        max_position_embeddings=longest,
        attn_implementation="eager",
    )
    layer, x = perturbed(llama.LlamaAttention(config, 0)), inputs()
    angles = llama.LlamaRotaryEmbedding(config)(x, torch.arange(T)[None])
    expected, _ = layer(x, angles, causal_mask())
    cfg = attn.GroupedQueryAttentionConfig(**SHAPE, rope=ours | {"theta": 500.0})
    assert_equal(cfg, renamed(layer, PROJECTIONS), x, expected)


@pytest.mark.parametrize("kind", ROPES)
def test_a_rope_in_float32_has_the_digits_of_llamas(kind):
    """Far away, where one rounding of a frequency is seen in the fourth digit of its cosine."""
    theirs, ours = ROPES[kind]
    length, width = 8192, 60
    more = {key: 6 * ours[key] for key in ("short_factor", "long_factor") if key in ours}
    config = llama.LlamaConfig(
        hidden_size=width,
        num_attention_heads=1,
        rope_parameters=theirs | more | {"rope_theta": 10000.0},
        max_position_embeddings=16 if kind == "dynamic" else 256,
    )
    positions = torch.arange(length)[None]
    expected = torch.stack(llama.LlamaRotaryEmbedding(config)(torch.zeros(1), positions))[:, 0, :, : width // 2]
    rope = TypeAdapter(AnyRope).validate_python(ours | more | {"float32": True})
    cos, sin = attn_torch.rotary.turns(attn_torch.rotary.Tables(rope, width), positions, length, torch.float32)
    # The first half of what multiplies a head has -sin.
    found = {"torch": torch.stack([cos, -sin])[:, 0, :, 0, : width // 2].numpy()}
    angles = attn_jax.rotary.turns(rope, width, positions.numpy(), length, np.float32)
    found["jax"] = np.stack(angles)[:, 0]
    for values in found.values():
        # A processor's power may round one of them another way.
        equal = np.abs(values - expected.numpy()).max((0, 1)) < 3e-7
        assert equal.mean() > 0.9


def test_qwen3_norms_each_head_before_it_turns():
    config = qwen3.Qwen3Config(**SIZES, rms_norm_eps=1e-3, attn_implementation="eager")
    layer, x = perturbed(qwen3.Qwen3Attention(config, 0)), inputs()
    expected, _ = layer(x, qwen3.Qwen3RotaryEmbedding(config)(x, torch.arange(T)[None]), causal_mask())
    cfg = attn.GroupedQueryAttentionConfig(**SHAPE, rope=attn.Rope(theta=10000.0), qk_norm={"eps": 1e-3})
    assert_equal(cfg, renamed(layer, PROJECTIONS), x, expected)


def test_olmo2_norms_all_heads_as_one():
    config = olmo2.Olmo2Config(**SIZES, rms_norm_eps=1e-3, attn_implementation="eager")
    layer, x = perturbed(olmo2.Olmo2Attention(config, 0)), inputs()
    expected, _ = layer(x, olmo2.Olmo2RotaryEmbedding(config)(x, torch.arange(T)[None]), causal_mask())
    cfg = attn.GroupedQueryAttentionConfig(**SHAPE, rope=attn.Rope(), qk_norm={"eps": 1e-3, "over": "full"})
    state = renamed(layer, PROJECTIONS)
    state["q_norm.weight"], state["k_norm.weight"] = (state[f"{n}_norm.weight"].reshape(-1, D) for n in "qk")
    assert_equal(cfg, state, x, expected)


def test_cohere_norms_each_head_by_its_own_scale_and_turns_pairs():
    config = cohere.CohereConfig(**SIZES, layer_norm_eps=1e-3, use_qk_norm=True, attn_implementation="eager")
    layer, x = perturbed(cohere.CohereAttention(config, 0)), inputs()
    for norm in (layer.q_norm, layer.k_norm):
        norm.weight.data = 1 + 0.4 * torch.randn(norm.weight.shape, generator=torch.Generator().manual_seed(2))
    expected, _ = layer(x, cohere.CohereRotaryEmbedding(config)(x, torch.arange(T)[None]), causal_mask())
    norm = {"kind": "layer", "over": "heads", "eps": 1e-3}
    rope = attn.Rope(theta=config.rope_parameters["rope_theta"], layout="interleaved")
    cfg = attn.GroupedQueryAttentionConfig(**SHAPE, rope=rope, qk_norm=norm)
    assert_equal(cfg, renamed(layer, PROJECTIONS), x, expected)


def test_gemma2_caps_scores_before_the_mask():
    config = gemma2.Gemma2Config(
        **SIZES, query_pre_attn_scalar=7, attn_logit_softcapping=1.5, attn_implementation="eager", sliding_window=5
    )
    layer, x = perturbed(gemma2.Gemma2Attention(config, 1)), inputs()
    expected, _ = layer(x, gemma2.Gemma2RotaryEmbedding(config)(x, torch.arange(T)[None]), causal_mask())
    cfg = attn.GroupedQueryAttentionConfig(**SHAPE, rope=attn.Rope(), softcap=1.5, scale=7**-0.5)
    assert_equal(cfg, renamed(layer, PROJECTIONS), x, expected)


def test_gpt_oss_lets_sinks_join_the_denominator():
    rope = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 64, "rope_theta": 150.0}
    config = gpt_oss.GptOssConfig(
        **SIZES, rope_parameters=rope | {"truncate": False}, attention_bias=True, attn_implementation="eager"
    )
    layer, x = perturbed(gpt_oss.GptOssAttention(config, 1)), inputs()
    expected, _ = layer(x, gpt_oss.GptOssRotaryEmbedding(config)(x, torch.arange(T)[None]), causal_mask())
    ours = {"kind": "yarn", "factor": 32.0, "original_length": 64, "theta": 150.0, "truncate": False}
    cfg = attn.GroupedQueryAttentionConfig(**SHAPE, rope=ours, sinks=True, bias=True)
    assert_equal(cfg, renamed(layer, PROJECTIONS | {"sinks": "sinks"}), x, expected)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_adds_a_bias_for_each_bucket_of_distances(bidirectional):
    config = t5.T5Config(
        d_model=M,
        d_kv=D,
        num_heads=H,
        relative_attention_num_buckets=14,
        relative_attention_max_distance=31,
        is_decoder=not bidirectional,
        attn_implementation="eager",
    )
    layer, x = perturbed(t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)), inputs()
    expected = layer(x, mask=None if bidirectional else causal_mask())[0]
    buckets = {"kind": "t5", "buckets": 14, "max_distance": 31, "bidirectional": bidirectional}
    cfg = attn.MultiHeadAttentionConfig(
        input_dim=M,
        heads=H,
        dim_k=H * D,
        dim_v=H * D,
        mask={"kind": "full" if bidirectional else "causal"},
        scale=1.0,
        position_bias=buckets,
    )
    names = {"q": "q", "k": "k", "v": "v", "o": "out", "relative_attention_bias": "position_bias"}
    assert_equal(cfg, renamed(layer, names), x, expected)


def latent_state(layer: torch.nn.Module, nope: int, rank: int) -> dict[str, np.ndarray]:
    """DeepSeek's fused tensors, split: latent | shared key, and per head keys | values."""
    names = {"q_proj": "q", "q_a_proj": "q_down", "q_a_layernorm": "q_norm", "q_b_proj": "q_up"}
    names |= {"kv_a_proj_with_mqa": "kv_a", "kv_a_layernorm": "kv_norm", "kv_b_proj": "kv_b", "o_proj": "out"}
    state = renamed(layer, names)
    for leaf in ("weight", "bias"):
        if f"kv_a.{leaf}" in state:
            fused = state.pop(f"kv_a.{leaf}")
            state[f"kv_down.{leaf}"], state[f"k_rope.{leaf}"] = fused[:rank], fused[rank:]
    fused = state.pop("kv_b.weight").reshape(H, -1, rank)
    state["k_up.weight"] = fused[:, :nope].reshape(-1, rank)
    state["v_up.weight"] = fused[:, nope:].reshape(-1, rank)
    return state


@pytest.mark.parametrize("q_lora_rank", [None, 14])
@pytest.mark.parametrize("family", ["v2", "v3"])
def test_deepseek_attends_through_latents(family, q_lora_rank):
    nope, rope, value, rank = 10, 8, 12, 22
    scaling = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64, "beta_fast": 8.0}
    scaling |= {"mscale": 1.0, "mscale_all_dim": 0.707, "rope_theta": 100.0}
    module, name = (deepseek_v2, "DeepseekV2") if family == "v2" else (deepseek_v3, "DeepseekV3")
    config = getattr(module, f"{name}Config")(
        hidden_size=M,
        num_attention_heads=H,
        num_key_value_heads=H,
        q_lora_rank=q_lora_rank,
        kv_lora_rank=rank,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=value,
        rms_norm_eps=1e-3,
        rope_parameters=scaling,
        attention_bias=True,
        attn_implementation="eager",
    )
    layer, x = perturbed(getattr(module, f"{name}Attention")(config, 0)), inputs()
    angles = getattr(module, f"{name}RotaryEmbedding")(config)(x, torch.arange(T)[None])
    expected = layer(x, attention_mask=causal_mask(), position_embeddings=angles)[0]
    queries = (False,) if q_lora_rank is None else (True, False)
    ours = {"kind": "yarn", "factor": 40.0, "original_length": 64, "theta": 100.0, "layout": "interleaved"}
    cfg = attn.MultiHeadLatentAttentionConfig(
        input_dim=M,
        heads=H,
        kv_lora_rank=rank,
        q_lora_rank=q_lora_rank,
        dim_k=H * nope,
        dim_v=H * value,
        rope_dim=rope,
        rope=ours | {"mscale": 1.0, "mscale_all_dim": 0.707, "beta_fast": 8.0},
        latent_norm={"eps": 1e-6},
        bias=(*queries, True, True, False, False, True),
        mask={"kind": "causal"},
    )
    state = latent_state(layer, nope, rank)
    assert_equal(cfg, state, x, expected)
    assert_steps(cfg, state, x, expected)


def assert_steps(cfg, state, x: torch.Tensor, expected) -> None:
    """A prompt and single steps through the latent cache, absorbed, give the rows of the full pass."""
    module = attn_torch.build(cfg, kernel="absorbed")
    module.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    cache, rows = attn_torch.init_cache(cfg, B, T), []
    with torch.no_grad():
        for start, stop in [(0, T - 3), *((t, t + 1) for t in range(T - 3, T))]:
            y, cache = module(x[:, start:stop], cache=cache)
            rows.append(y)
    assert (torch.cat(rows, 1) - expected).abs().max() < CLOSE * expected.abs().max()
