"""Neutral weights in and out of PyTorch: state dicts of fresh tensors, exact to the bit."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from attn import checkpoint
from attn.config import Config
from attn.weights import from_torch, to_torch
from attn_torch.arrays import as_numpy, as_torch
from attn_torch.building import build


def from_neutral(cfg: Config, weights: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """The state dict of a config's module, each tensor a copy.

    Raises:
        ValueError: a name or a shape is not the config's.
    """
    return {name: as_torch(array) for name, array in to_torch(cfg, weights).items()}


def to_neutral(cfg: Config, module: nn.Module | Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Neutral weights of a module or of its state dict, each array a copy.

    Raises:
        ValueError: a name or a shape is not the config's.
    """
    state = module.state_dict() if isinstance(module, nn.Module) else module
    return dict(from_torch(cfg, {name: as_numpy(tensor) for name, tensor in state.items()}))


def save(folder: str | Path, module: nn.Module) -> None:
    """Write a checkpoint folder that either twin loads."""
    checkpoint.save(folder, module.cfg, to_neutral(module.cfg, module))


def load(
    folder: str | Path,
    *,
    dtype: torch.dtype | None = None,
    kernel: str | None = None,
    device: torch.device | str | None = None,
) -> nn.Module:
    """The module of a checkpoint folder with its weights; parameters keep the dtype of the file."""
    cfg, weights = checkpoint.load(folder)
    module = build(cfg, dtype=dtype, kernel=kernel, device=device)
    module.load_state_dict(from_neutral(cfg, weights))
    return module
