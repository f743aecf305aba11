"""attn in JAX: Flax linen modules for every config of `attn`."""

from attn_jax.building import build
from attn_jax.caches.building import init_cache
from attn_jax.caches.cache import Cache
from attn_jax.caches.neutral import cache_from_neutral, cache_to_neutral
from attn_jax.generation import generate, stream
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
from attn_jax.training import (
    TrainState,
    cross_entropy,
    evaluate,
    init_state,
    load_training,
    save_training,
    train,
    train_step,
)
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
    "TrainState",
    "build",
    "cache_from_neutral",
    "cache_to_neutral",
    "cross_entropy",
    "evaluate",
    "explain",
    "from_neutral",
    "generate",
    "init_cache",
    "init_state",
    "load",
    "load_training",
    "save",
    "save_training",
    "stream",
    "to_neutral",
    "train",
    "train_step",
]
