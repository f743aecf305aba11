"""DeepSeek-V2 and V2-Lite (2024), those of its models whose layers are all dense; files with experts are refused.

Rotary pairs are always interleaved. V2-Lite projects queries directly: its q_lora_rank is null.
"""

from dataclasses import replace

from attn.hub.experts import Dense
from attn.hub.fields import Field
from attn.hub.known import HARMLESS
from attn.hub.latent import LATENT, LatentHeads, tensors
from attn.hub.rotary import Rotary
from attn.hub.youtu import YOUTU

DEEPSEEK_V2 = replace(
    YOUTU,
    model_type="deepseek_v2",
    architecture="DeepseekV2ForCausalLM",
    fields=(
        *LATENT,
        Dense(absent=0),
        LatentHeads(q_lora_rank=1536, divides=True),
        Field("mlp_bias", "mlp.bias", absent=False),
        Field("rms_norm_eps", "norm.eps", absent=1e-6),
        Field("tie_word_embeddings", "tied", absent=False),
        Rotary(layout="interleaved"),
    ),
    tensors=tensors("interleaved"),
    harmless=HARMLESS,
)
