"""DeepSeek-V3 (2024), those of its models whose layers are all dense; files with experts are refused."""

from dataclasses import replace

from attn.hub.experts import Dense
from attn.hub.fields import Field
from attn.hub.latent import LATENT, LatentHeads
from attn.hub.rotary import Rotary
from attn.hub.youtu import YOUTU

DEEPSEEK_V3 = replace(
    YOUTU,
    model_type="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    fields=(
        *LATENT,
        Dense(absent=3),
        LatentHeads(q_lora_rank=1536),
        Field("rms_norm_eps", "norm.eps", absent=1e-6),
        Field("tie_word_embeddings", "tied", absent=False),
        Rotary(layout="interleaved", interleave="rope_interleave"),
    ),
    written={**YOUTU.written, "num_nextn_predict_layers": 0},
)
