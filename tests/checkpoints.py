"""Checkpoints of others, small and written by hand: no two sizes are the same, and no number comes twice."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import attn
from attn import tensorfile

V, M, H, K, D, U, P, L = 17, 12, 6, 3, 10, 19, 23, 2
WIDE, NARROW = H * D, K * D

LLAMA_CONFIG = {
    "model_type": "llama",
    "vocab_size": V,
    "hidden_size": M,
    "intermediate_size": U,
    "num_hidden_layers": L,
    "num_attention_heads": H,
    "num_key_value_heads": K,
    "head_dim": D,
    "rms_norm_eps": 0.25,
    "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    "tie_word_embeddings": False,
}
GPT2_CONFIG = {"model_type": "gpt2", "vocab_size": V, "n_positions": P, "n_embd": M, "n_layer": L, "n_head": H}

ROPE = {"kind": "default", "theta": 300.0}
ATTENTION: dict[str, Any] = {"input_dim": M, "heads": H, "kv_heads": K, "dim_k": WIDE, "dim_v": WIDE, "rope": ROPE}
ATTENTION |= {"mask": {"kind": "causal"}}


def numbered(shapes: Mapping[str, tuple[int, ...]], dtype: Any = np.float32) -> dict[str, np.ndarray]:
    """Arrays of those shapes in which no number comes twice."""
    arrays, start = {}, 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        arrays[name] = np.arange(start, start + size).reshape(shape).astype(dtype)
        start += size
    return arrays


def llama_shapes(*, bias: bool = False, head: bool = True) -> dict[str, tuple[int, ...]]:
    """The tensors of a Llama as Hugging Face has them, written out by hand."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (V, M), "model.norm.weight": (M,)}
    shapes |= {"lm_head.weight": (V, M)} if head else {}
    for layer in range(L):
        of_layer = {
            "input_layernorm.weight": (M,),
            "post_attention_layernorm.weight": (M,),
            "self_attn.q_proj.weight": (WIDE, M),
            "self_attn.k_proj.weight": (NARROW, M),
            "self_attn.v_proj.weight": (NARROW, M),
            "self_attn.o_proj.weight": (M, WIDE),
            "mlp.gate_proj.weight": (U, M),
            "mlp.up_proj.weight": (U, M),
            "mlp.down_proj.weight": (M, U),
        }
        biases = {"q": WIDE, "k": NARROW, "v": NARROW, "o": M}
        of_layer |= {f"self_attn.{name}_proj.bias": (size,) for name, size in biases.items()} if bias else {}
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in of_layer.items()}
    return shapes


def gpt2_shapes() -> dict[str, tuple[int, ...]]:
    """The tensors of a GPT-2 as Hugging Face has them."""
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (V, M), "wpe.weight": (P, M)}
    shapes |= {"ln_f.weight": (M,), "ln_f.bias": (M,)}
    for layer in range(L):
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"h.{layer}.{norm}.weight": (M,), f"h.{layer}.{norm}.bias": (M,)}
        for part, inputs, outputs in (
            ("attn.c_attn", M, 3 * M),
            ("attn.c_proj", M, M),
            ("mlp.c_fc", M, 4 * M),
            ("mlp.c_proj", 4 * M, M),
        ):
            shapes |= {f"h.{layer}.{part}.weight": (inputs, outputs), f"h.{layer}.{part}.bias": (outputs,)}
    return shapes


def folder_of(path: Path, config: Any, tensors: Mapping[str, np.ndarray]) -> Path:
    """A folder as Hugging Face has it."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    tensorfile.write(path / "model.safetensors", tensors)
    return path


def llama_folder(path: Path, **changes: Any) -> Path:
    """A Llama's folder; a change to None takes the field away."""
    config = {name: value for name, value in (LLAMA_CONFIG | changes).items() if value is not None}
    shapes = llama_shapes(bias=bool(config.get("attention_bias")), head=not config["tie_word_embeddings"])
    return folder_of(path, config, numbered(shapes))


def llama(attention: Any = None, **options: Any) -> attn.DecoderConfig:
    """Our config of that Llama."""
    given = {"vocab_size": V, "layers": L, "mlp": attn.MLPConfig(input_dim=M, hidden_dim=U), "tied": False}
    given |= {"attention": attention or attn.GroupedQueryAttentionConfig(**ATTENTION)}
    return attn.DecoderConfig(**(given | {"norm": attn.NormConfig(eps=0.25)} | options))


def grouped(**options: Any) -> attn.GroupedQueryAttentionConfig:
    return attn.GroupedQueryAttentionConfig(**(ATTENTION | options))
