"""From a config to a module."""

from typing import Any

import flax.linen as nn

from attn.config import Config
from attn.models import DecoderConfig
from attn_jax.kernels import check_kernel
from attn_jax.layers import ATTENTIONS
from attn_jax.models.decoder import Decoder

MODULES: dict[type[Config], type[nn.Module]] = ATTENTIONS | {DecoderConfig: Decoder}


def build(cfg: Config, *, dtype: Any = None, kernel: str | None = None) -> nn.Module:
    """The module of a config.

    Args:
        cfg: an attention variant or a model.
        dtype: what inputs and parameters are cast to on use; None computes in the parameters' own dtype.
        kernel: the name of an attention kernel to force; None chooses by what a call needs.

    Raises:
        ValueError: the kernel is unknown, or a form of latent attention where nothing is latent.
    """
    check_kernel(cfg, kernel)
    return MODULES[type(cfg)](cfg, dtype=dtype, kernel=kernel)
