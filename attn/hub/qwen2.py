"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama's tensors, a bias on q, k and v always, and windows in some layers."""

from dataclasses import replace

from attn.hub.fields import Always
from attn.hub.heads import Heads
from attn.hub.known import HARMLESS
from attn.hub.llama import LLAMA, SIZES
from attn.hub.windows import LayerWindows

QWEN2 = replace(
    LLAMA,
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    fields=(
        *SIZES,
        Heads("num_attention_heads", "hidden_size", "num_key_value_heads", "head_dim"),
        Always((("attention.bias", (True, True, True, False)),)),
        LayerWindows(),
    ),
    harmless=HARMLESS | {"mlp_bias": False, "use_mrope": False},
)
