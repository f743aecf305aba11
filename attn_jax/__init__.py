"""attn in JAX: Flax linen modules for every config of `attn`."""

from attn_jax.building import build
from attn_jax.caches.building import init_cache
from attn_jax.caches.cache import Cache
from attn_jax.generation import generate
from attn_jax.kernels import explain
from attn_jax.layers.latent import MultiHeadLatentAttention
from attn_jax.layers.softmax import (
    CausalAttention,
    CrossAttention,
    GroupedQueryAttention,
    MultiHeadAttention,
    MultiQueryAttention,
    SelfAttention,
)
from attn_jax.models.decoder import Decoder
from attn_jax.weights import from_neutral, load, save, to_neutral

__all__ = [
    "Cache",
    "CausalAttention",
    "CrossAttention",
    "Decoder",
    "GroupedQueryAttention",
    "MultiHeadAttention",
    "MultiHeadLatentAttention",
    "MultiQueryAttention",
    "SelfAttention",
    "build",
    "explain",
    "from_neutral",
    "generate",
    "init_cache",
    "load",
    "save",
    "to_neutral",
]
