"""Youtu-LLM (Tencent 2025): DeepSeek's latent attention in a Llama without experts, the embedding tied."""

from dataclasses import replace

from attn.hub.fields import Field
from attn.hub.known import HARMLESS
from attn.hub.latent import DERIVED, LATENT, LatentHeads, tensors
from attn.hub.llama import LLAMA
from attn.hub.rotary import Rotary

YOUTU = replace(
    LLAMA,
    model_type="youtu",
    architecture="YoutuForCausalLM",
    fields=(
        *LATENT,
        LatentHeads(q_lora_rank=1536),
        Field("rms_norm_eps", "norm.eps", absent=1e-6),
        Field("tie_word_embeddings", "tied", absent=True),
        Rotary(layout="interleaved", interleave="rope_interleave"),
    ),
    tensors=tensors(),
    harmless=HARMLESS | {"mlp_bias": False},
    silent=DERIVED,
)
