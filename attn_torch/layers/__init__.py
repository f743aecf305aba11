"""The variants by name: each a mechanism with a docstring, found by its config."""

from torch import nn

import attn
from attn.config import Config
from attn_torch.layers import latent, softmax

ATTENTIONS: dict[type[Config], type[nn.Module]] = {
    attn.SelfAttentionConfig: softmax.SelfAttention,
    attn.CrossAttentionConfig: softmax.CrossAttention,
    attn.CausalAttentionConfig: softmax.CausalAttention,
    attn.MultiHeadAttentionConfig: softmax.MultiHeadAttention,
    attn.MultiQueryAttentionConfig: softmax.MultiQueryAttention,
    attn.GroupedQueryAttentionConfig: softmax.GroupedQueryAttention,
    attn.MultiHeadLatentAttentionConfig: latent.MultiHeadLatentAttention,
}
