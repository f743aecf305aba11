"""Neutral weights in and out of PyTorch: state dicts of fresh tensors, exact to the bit."""

from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
from torch import Tensor, nn

from attn import checkpoint
from attn.config import Config
from attn.weights import from_torch, to_torch
from attn_torch.building import build

BITS = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.int8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.int8, ml_dtypes.float8_e5m2),
}
"""The dtypes that numpy does not know and that cross as integers of the same size."""


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


def as_torch(array: np.ndarray) -> Tensor:
    """A copy on the PyTorch side, bit for bit."""
    array = np.array(array, order="C")
    for dtype, (integer, numpy_dtype) in BITS.items():
        if array.dtype == numpy_dtype:
            return torch.from_numpy(array.view(np.dtype(f"i{array.dtype.itemsize}"))).view(integer).view(dtype)
    return torch.from_numpy(array)


def as_numpy(tensor: Tensor) -> np.ndarray:
    """A copy on the numpy side, bit for bit."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype in BITS:
        integer, numpy_dtype = BITS[tensor.dtype]
        return tensor.view(integer).numpy().view(numpy_dtype).copy()
    return tensor.numpy().copy()


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
