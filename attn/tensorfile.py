"""The safetensors file format, read and written over numpy.

A file is the length of its header (8 bytes, little-endian), the header, then the bytes of all tensors, one
after the other.

The `safetensors` library is not used here: its numpy side writes a transposed array as if it were
contiguous, and knows no 8-bit floats. What is written here is, byte for byte, what its torch side writes.
"""

import math
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from attn import tensorheader
from attn.files import FilePath, replacing
from attn.tensorheader import Entry, Shape

_LENGTH_BYTES = 8


@runtime_checkable
class Described(Protocol):
    """Something that knows the shapes and dtypes of its tensors without reading them."""

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """The shape of each tensor."""
        ...

    @property
    def dtypes(self) -> Mapping[str, np.dtype]:
        """The dtype of each tensor."""
        ...


class TensorFile(Mapping[str, np.ndarray]):
    """The tensors of one file, each read when it is asked for.

    Opening reads and checks the header alone. Each tensor comes as a fresh array: writable, contiguous, the
    owner of its memory. A file that is replaced later is still read as it was opened.

    Attributes:
        path: the file.
        metadata: the file's own notes, strings under strings.
        shapes: the shape of each tensor, in the order of the data.
        dtypes: the dtype of each tensor, in the same order.
    """

    def __init__(self, path: FilePath) -> None:
        """Open the file at `path`.

        Raises:
            ValueError: if the file is damaged.
            OSError: if it cannot be opened.
        """
        self.path = Path(path)
        try:
            self._contents, self._start = _map(self.path)
            header = self._contents[_LENGTH_BYTES : self._start]
            self._entries, self.metadata = tensorheader.parse(header, len(self._contents) - self._start)
        except ValueError as error:
            raise ValueError(f"{self.path} is damaged: {error}") from error
        self.shapes = {name: entry.shape for name, entry in self._entries.items()}
        self.dtypes = {name: entry.dtype for name, entry in self._entries.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        dtype, shape, begin, _ = self._entries[name]
        size, opened = self._contents.size(), len(self._contents)
        if size != opened:
            # Someone wrote into the file itself; touching a byte beyond its end would kill the process.
            raise ValueError(f"{self.path} should still have {opened} bytes; received {size}.")
        stored = np.frombuffer(self._contents, dtype, math.prod(shape), self._start + begin)
        return stored.reshape(shape).copy()

    def __contains__(self, name: object) -> bool:
        # Mapping's own answer would read the tensor.
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"TensorFile({str(self.path)!r}, {len(self)} tensors)"


def read(path: FilePath) -> TensorFile:
    """Open a safetensors file, reading its header alone.

    Raises:
        ValueError: if the file is damaged.
        OSError: if it cannot be opened.
    """
    return TensorFile(path)


def write(path: FilePath, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors to a safetensors file, whole or not at all.

    The order of `tensors` does not matter. One tensor is held at a time: `tensors` may make each one when it
    is asked for, which happens once if it is `Described`, else twice.

    Raises:
        ValueError: if a name, a tensor or the metadata cannot be stored.
        OSError: if the file cannot be written.
    """
    if isinstance(tensors, Described):
        described = {name: (np.dtype(tensors.dtypes[name]), tuple(tensors.shapes[name])) for name in tensors}
    else:
        described = {name: _describe(name, array) for name, array in tensors.items()}
    entries = tensorheader.lay_out(described)
    header = tensorheader.dump(entries, metadata or {})
    with replacing(path) as file:
        file.write(len(header).to_bytes(_LENGTH_BYTES, "little"))
        file.write(header)
        for name, entry in entries.items():
            file.write(_contents(name, tensors[name], entry))


def _map(path: Path) -> tuple[mmap.mmap, int]:
    """Return the contents of a file, and where in them the data starts."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _LENGTH_BYTES:
            raise ValueError(f"it should have at least {_LENGTH_BYTES} bytes; received {size}.")
        contents = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    length, room = int.from_bytes(contents[:_LENGTH_BYTES], "little"), size - _LENGTH_BYTES
    if length > room:
        raise ValueError(f"its header should have {length} bytes; received {room}.")
    return contents, _LENGTH_BYTES + length


def _describe(name: str, array: np.ndarray) -> tuple[np.dtype, Shape]:
    if not isinstance(array, np.ndarray):
        raise ValueError(f"tensor {name!r} should be a numpy array; received {type(array).__name__}.")
    return array.dtype, array.shape


def _contents(name: str, array: np.ndarray, entry: Entry) -> memoryview:
    """Return the bytes of an array, after checking that it is the one that the header announces."""
    dtype, shape = _describe(name, array)
    if (dtype.newbyteorder("<"), shape) != (entry.dtype, entry.shape):
        wanted = f"{entry.dtype} of shape {entry.shape}"
        raise ValueError(f"tensor {name!r} should be {wanted}; received {dtype} of shape {shape}.")
    return np.asarray(array, entry.dtype, order="C").reshape(-1).view(np.uint8).data
