"""Youtu-LLM (Tencent 2025): DeepSeek's latent attention in a Llama without experts, the embedding tied."""

from dataclasses import replace

from attn.hub.fields import Always, Field
from attn.hub.known import HARMLESS, SILENT
from attn.hub.latent import LatentHeads, tensors
from attn.hub.llama import BASICS, LLAMA
from attn.hub.rotary import Rotary
from attn.masks import Causal
from attn.variants.latent.latent import LatentNorm

# The norms on the latents do not follow rms_norm_eps.
LATENT = (*BASICS, Always((("attention.mask", Causal()), ("attention.latent_norm", LatentNorm(eps=1e-6)))))
"""What the pages of latent attention have in common."""

DERIVED = frozenset({"auto_map", "embedding_initializer_range", "head_dim", "num_key_value_heads", "qk_head_dim"})
"""Fields that follow from others, or say nothing of the logits; transformers sets head_dim to R."""

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
    silent=SILENT | DERIVED,
)
