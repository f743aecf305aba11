"""The latent family."""

from attn_jax.mechanisms.latent import LatentAttention


class MultiHeadLatentAttention(LatentAttention):
    """Keys and values of all heads read from one latent per token; config `MultiHeadLatentAttentionConfig`."""
