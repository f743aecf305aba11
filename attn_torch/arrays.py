"""Arrays across the border between numpy and PyTorch, bit for bit."""

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

BITS = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.int8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.int8, ml_dtypes.float8_e5m2),
}
"""The dtypes that numpy does not know and that cross as integers of the same size."""


def as_torch(array: np.ndarray) -> Tensor:
    """A copy on the PyTorch side, bit for bit."""
    array = np.array(array, order="C")
    for dtype, (integer, numpy_dtype) in BITS.items():
        if array.dtype == numpy_dtype:
            return torch.from_numpy(array.view(np.dtype(f"i{array.dtype.itemsize}"))).view(integer).view(dtype)
    return torch.from_numpy(array)


def as_numpy(array: Tensor) -> np.ndarray:
    """A copy on the numpy side, bit for bit."""
    array = array.detach().cpu().contiguous()
    if array.dtype in BITS:
        integer, numpy_dtype = BITS[array.dtype]
        return array.view(integer).numpy().view(numpy_dtype).copy()
    return array.numpy().copy()
