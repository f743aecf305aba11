"""The variants by name: each a mechanism with a docstring, found by its config."""

import flax.linen as nn

import attn
from attn.config import Config
from attn_jax.layers import latent, softmax

ATTENTIONS: dict[type[Config], type[nn.Module]] = {
    attn.SelfAttentionConfig: softmax.SelfAttention,
    attn.CrossAttentionConfig: softmax.CrossAttention,
    attn.CausalAttentionConfig: softmax.CausalAttention,
    attn.MultiHeadAttentionConfig: softmax.MultiHeadAttention,
    attn.MultiQueryAttentionConfig: softmax.MultiQueryAttention,
    attn.GroupedQueryAttentionConfig: softmax.GroupedQueryAttention,
    attn.MultiHeadLatentAttentionConfig: latent.MultiHeadLatentAttention,
}
