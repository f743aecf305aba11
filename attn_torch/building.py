"""From a config to a module."""

import torch
from torch import nn

from attn.config import Config
from attn.models import DecoderConfig
from attn_torch.kernels import check_kernel
from attn_torch.layers import ATTENTIONS
from attn_torch.models.decoder import Decoder

MODULES: dict[type[Config], type[nn.Module]] = ATTENTIONS | {DecoderConfig: Decoder}


def build(
    cfg: Config,
    *,
    dtype: torch.dtype | None = None,
    kernel: str | None = None,
    device: torch.device | str | None = None,
) -> nn.Module:
    """The module of a config.

    Args:
        cfg: an attention variant or a model.
        dtype: what inputs and parameters are cast to on use; None computes in the parameters' own dtype.
        kernel: the name of an attention kernel to force; None chooses by what a call needs.
        device: where the parameters live.

    Raises:
        ValueError: the kernel is unknown, or a form of latent attention where nothing is latent.
    """
    check_kernel(cfg, kernel)
    return MODULES[type(cfg)](cfg, dtype=dtype, kernel=kernel).to(device)
