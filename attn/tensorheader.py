"""What the header of a safetensors file says, and the checks that make it believable.

A header is a JSON object. Under the name of each tensor it holds a dtype, a shape and a span of bytes, which
counts from the end of the header; under `__metadata__` it may hold the file's own notes.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

import ml_dtypes
import numpy as np

from attn.files import load_json

Shape = tuple[int, ...]

# In the order in which tensors lie in a file: the widest first, so that each one is aligned.
DTYPES: dict[str, np.dtype] = {
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype("<f2"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_RANKS = {dtype: rank for rank, dtype in enumerate(DTYPES.values())}

_METADATA = "__metadata__"
# The data behind a header is aligned if the header's own length is a multiple of the widest dtype's.
_ALIGNMENT = 8


class Entry(NamedTuple):
    """What a header says of one tensor."""

    dtype: np.dtype
    shape: Shape
    begin: int
    end: int


def parse(header: bytes, size: int) -> tuple[dict[str, Entry], dict[str, str]]:
    """Return the entries, in the order of the data, and the metadata of a header with `size` bytes of data.

    Raises:
        ValueError: if the header is malformed, or does not account for each byte of the data once.
    """
    fields = load_json(header)
    if not isinstance(fields, dict):
        raise ValueError(f"its header should be an object; received {fields!r}.")
    metadata = _checked_metadata(fields.pop(_METADATA, {}))
    entries = {name: _parse_entry(name, field) for name, field in fields.items()}
    entries = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end, item[0])))
    _check_spans(entries, size)
    return entries, metadata


def lay_out(tensors: Mapping[str, tuple[np.dtype, Shape]]) -> dict[str, Entry]:
    """Give each tensor, known by its dtype and shape, its place in a file.

    Raises:
        ValueError: if a name or a dtype cannot be stored.
    """
    stored: dict[str, tuple[np.dtype, Shape]] = {}
    for name, (dtype, shape) in tensors.items():
        if not isinstance(name, str) or name == _METADATA:
            raise ValueError(f"a tensor has an impossible name; received {name!r}.")
        little = dtype.newbyteorder("<")
        if little not in _CODES:
            raise ValueError(f"tensor {name!r} has a dtype that safetensors lacks; received {dtype}.")
        stored[name] = little, shape
    entries: dict[str, Entry] = {}
    end = 0
    for name in sorted(stored, key=lambda name: (_RANKS[stored[name][0]], name)):
        begin, end = end, end + _size(*stored[name])
        entries[name] = Entry(*stored[name], begin, end)
    return entries


def dump(entries: Mapping[str, Entry], metadata: Mapping[str, str]) -> bytes:
    """Return the header that `parse` reads back.

    Raises:
        ValueError: if the metadata cannot be stored.
    """
    metadata = _checked_metadata(metadata)
    fields: dict[str, Any] = {_METADATA: metadata} if metadata else {}
    for name, (dtype, shape, begin, end) in entries.items():
        fields[name] = {"dtype": _CODES[dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % _ALIGNMENT)


def _parse_entry(name: str, field: Any) -> Entry:
    if not isinstance(field, dict) or field.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"tensor {name!r} should have dtype, shape and data_offsets; received {field!r}.")
    code, shape, span = field["dtype"], field["shape"], field["data_offsets"]
    if not isinstance(code, str) or code not in DTYPES:
        raise ValueError(f"tensor {name!r} has an unknown dtype; received {code!r}.")
    if not _are_counts(shape):
        raise ValueError(f"tensor {name!r} has an impossible shape; received {shape!r}.")
    if not _are_counts(span) or len(span) != 2:
        raise ValueError(f"tensor {name!r} should have two data_offsets; received {span!r}.")
    entry = Entry(DTYPES[code], tuple(shape), *span)
    wanted, size = _size(entry.dtype, entry.shape), entry.end - entry.begin
    if size != wanted:
        raise ValueError(f"tensor {name!r} of {code} {shape} should have {wanted} bytes; received {size}.")
    return entry


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    # type() rather than isinstance(), because True is an int too.
    return isinstance(value, list) and all(type(count) is int and count >= 0 for count in value)


def _size(dtype: np.dtype, shape: Shape) -> int:
    return math.prod(shape) * dtype.itemsize


def _check_spans(entries: Mapping[str, Entry], size: int) -> None:
    """Refuse spans that overlap, leave a gap, or do not end with the data."""
    end = 0
    for name, entry in entries.items():
        if entry.begin != end:
            raise ValueError(f"tensor {name!r} should start at data byte {end}; received {entry.begin}.")
        end = entry.end
    if end != size:
        raise ValueError(f"its data should have {end} bytes; received {size}.")


def _checked_metadata(metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, Mapping) or not all(
        isinstance(word, str) for pair in metadata.items() for word in pair
    ):
        raise ValueError(f"metadata should map strings to strings; received {metadata!r}.")
    return dict(sorted(metadata.items()))
