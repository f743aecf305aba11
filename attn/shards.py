"""The weights of a folder in the layout of Hugging Face: one safetensors file, or several and an index."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attn.files import FilePath, load_json
from attn.tensorfile import TensorFile

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


class Shards(Mapping[str, np.ndarray]):
    """The tensors of several files as one mapping, each read when it is asked for.

    Attributes:
        shapes: the shape of each tensor, in the order of their names.
        dtypes: the dtype of each tensor, in the same order.
    """

    def __init__(self, homes: Mapping[str, TensorFile]) -> None:
        """Join files, given the one in which each tensor lies."""
        self._homes = dict(sorted(homes.items()))
        self.shapes = {name: file.shapes[name] for name, file in self._homes.items()}
        self.dtypes = {name: file.dtypes[name] for name, file in self._homes.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._homes[name][name]

    def __contains__(self, name: object) -> bool:
        # Mapping's own answer would read the tensor.
        return name in self._homes

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)

    def __repr__(self) -> str:
        return f"Shards({len({file.path for file in self._homes.values()})} files, {len(self)} tensors)"


def read_sharded(folder: FilePath) -> TensorFile | Shards:
    """Open the weights of a folder, reading headers alone.

    Where both lie in the folder, the single file wins over the index, as it does in transformers.

    Raises:
        ValueError: if the folder has no weights, a file is damaged or missing, or the index and the files
            do not name the same tensors.
        OSError: if a file cannot be opened.
    """
    folder = Path(folder)
    if (folder / WEIGHTS).is_file():
        return TensorFile(folder / WEIGHTS)
    index = folder / INDEX
    if not index.is_file():
        raise ValueError(f"{folder} has neither {WEIGHTS} nor {INDEX}.")
    try:
        placed = _weight_map(load_json(index.read_bytes()))
    except ValueError as error:
        raise ValueError(f"{index} is damaged: {error}") from error
    return Shards(_open_shards(index, placed))


def _weight_map(contents: Any) -> dict[str, str]:
    """Return the name of the shard of each tensor."""
    placed = contents.get("weight_map") if isinstance(contents, dict) else None
    if not isinstance(placed, dict):
        raise ValueError(f"its weight_map should be an object; received {placed!r}.")
    for shard in placed.values():
        # A path could lead out of the folder.
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise ValueError(f"its weight_map should name files of its own folder; received {shard!r}.")
    return placed


def _open_shards(index: Path, placed: dict[str, str]) -> dict[str, TensorFile]:
    """Return the file of each tensor, after checking that index and files agree."""
    shards = sorted(set(placed.values()))
    absent = [shard for shard in shards if not (index.parent / shard).is_file()]
    if absent:
        raise ValueError(f"{index} names files that are missing; received {absent}.")
    files = {shard: TensorFile(index.parent / shard) for shard in shards}
    for shard, file in files.items():
        expected = {name for name, home in placed.items() if home == shard}
        if lacking := sorted(expected - file.keys()):
            raise ValueError(f"{file.path} lacks tensors that the index puts there; received {lacking}.")
        if extra := sorted(file.keys() - expected):
            raise ValueError(f"{file.path} has tensors that the index does not put there; received {extra}.")
    return {name: files[shard] for name, shard in placed.items()}
