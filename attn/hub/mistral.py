"""Mistral (Jiang et al. 2023): Llama's tensors without a bias, and a window that slides in every layer, or in none."""

from dataclasses import replace

from attn.hub.heads import Heads
from attn.hub.known import HARMLESS
from attn.hub.llama import LLAMA, SIZES
from attn.hub.windows import Window

MISTRAL = replace(
    LLAMA,
    model_type="mistral",
    architecture="MistralForCausalLM",
    fields=(
        *SIZES,
        Heads("num_attention_heads", "hidden_size", "num_key_value_heads", "head_dim"),
        Window(absent=4096),
    ),
    harmless=HARMLESS | {"attention_bias": False, "mlp_bias": False},
)
