"""MiniCPM3 (Hu et al. 2024): latent attention with rotary pairs in halves, and multipliers in three places.

Embeddings times scale_emb, each half of a block times scale_depth / sqrt(layers), logits times dim_model_base / width.
"""

from dataclasses import replace

from attn.hub.fields import Field
from attn.hub.known import HARMLESS
from attn.hub.latent import LATENT, LatentHeads, tensors
from attn.hub.rotary import Rotary
from attn.hub.scales import DepthScale, WidthScale
from attn.hub.youtu import YOUTU

MINICPM3 = replace(
    YOUTU,
    model_type="minicpm3",
    architecture="MiniCPM3ForCausalLM",
    fields=(
        *LATENT,
        LatentHeads(q_lora_rank=768, shares=True, divides=True),
        Field("scale_emb", "embed_scale"),
        DepthScale(),
        WidthScale(),
        Field("mlp_bias", "mlp.bias", absent=False),
        Field("rms_norm_eps", "norm.eps", absent=1e-5),
        Field("tie_word_embeddings", "tied", absent=True),
        Rotary(),
    ),
    tensors=tensors("half"),
    harmless=HARMLESS,
)
