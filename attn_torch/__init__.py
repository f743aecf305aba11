"""attn in PyTorch: modules for every config of `attn`."""

from attn_torch.building import build
from attn_torch.caches.building import init_cache
from attn_torch.caches.cache import Cache
from attn_torch.caches.neutral import cache_from_neutral, cache_to_neutral
from attn_torch.generation import generate, stream
from attn_torch.kernels import explain
from attn_torch.layers.latent import MultiHeadLatentAttention
from attn_torch.layers.softmax import (
    CausalAttention,
    CrossAttention,
    GroupedQueryAttention,
    MultiHeadAttention,
    MultiQueryAttention,
    SelfAttention,
)
from attn_torch.models.decoder import Decoder
from attn_torch.training import (
    TrainState,
    cross_entropy,
    evaluate,
    init_state,
    load_training,
    save_training,
    train,
    train_step,
)
from attn_torch.weights import from_neutral, load, save, to_neutral

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
