"""A training checkpoint: a checkpoint folder, and beside it `train.json` and `optimizer.safetensors`.

The moments are `mu.<name>` and `nu.<name>` under the names and shapes of PyTorch, as the weights are; the bytes depend
on the training alone. Either twin resumes what the other wrote.
"""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attn import tensorfile
from attn.checkpoint import CONFIG, MODEL, write_text
from attn.config import Config
from attn.filesets import current, replacing_together
from attn.history import History
from attn.loading import load_config
from attn.tensorfile import TensorFile
from attn.weights import from_torch, to_torch

TRAIN = "train.json"
OPTIMIZER = "optimizer.safetensors"
STAMP = "training"
"""The note in both tensor files that says which config.json and train.json they belong to."""


class Training(NamedTuple):
    """A training at a step. Weights and moments have the same neutral names and shapes."""

    cfg: Config
    weights: Mapping[str, np.ndarray]
    mu: Mapping[str, np.ndarray]
    nu: Mapping[str, np.ndarray]
    history: History


def save(folder: str | Path, training: Training) -> None:
    """Write all four files, or none of them.

    Raises:
        ValueError: one report of what does not fit the config; nothing is written.
    """
    cfg, weights, mu, nu, history = training
    tensors = to_torch(cfg, weights)
    moments = {f"mu.{name}": array for name, array in to_torch(cfg, mu).items()}
    moments |= {f"nu.{name}": array for name, array in to_torch(cfg, nu).items()}
    texts = {CONFIG: cfg.to_json(), TRAIN: history.to_json()}
    note = {STAMP: _stamp(*(text.encode() for text in texts.values()))}
    with replacing_together(folder) as draft:
        tensorfile.write(draft / MODEL, tensors, note)
        tensorfile.write(draft / OPTIMIZER, moments, note)
        for name, text in texts.items():
            write_text(draft / name, text)


def load(folder: str | Path) -> Training:
    """The training in a folder; weights are read when they are asked for.

    Raises:
        ValueError: a file is not what it must be, or the four were not saved together.
        OSError: a file is missing.
    """
    cfg, history = load_config(current(folder, CONFIG)), load_history(folder)
    stamp = _stamp(current(folder, CONFIG).read_bytes(), current(folder, TRAIN).read_bytes())
    model, optimizer = (tensorfile.read(current(folder, name)) for name in (MODEL, OPTIMIZER))
    for file in (model, optimizer):
        if file.metadata.get(STAMP) != stamp:
            received = file.metadata.get(STAMP)
            raise ValueError(f"{file.path} must be saved together with {CONFIG} and {TRAIN}, {stamp}; got {received}.")
    mu, nu = _moments(cfg, model, optimizer)
    return Training(cfg, from_torch(cfg, model), mu, nu, history)


def load_history(folder: str | Path) -> History:
    """The history in a folder: its config, its tokenizer and its losses, without any array.

    Raises:
        ValueError: train.json is not what it must be.
        OSError: it is missing.
    """
    return History.from_json(current(folder, TRAIN).read_bytes())


def _stamp(config: bytes, history: bytes) -> str:
    return sha256(config + history).hexdigest()


def _moments(cfg: Config, model: TensorFile, optimizer: TensorFile) -> list[dict[str, np.ndarray]]:
    """mu and nu, after checking that each has the names, shapes and dtypes of the weights, and that nothing is left."""
    if others := [name for name in optimizer if not name.startswith(("mu.", "nu."))]:
        raise ValueError(f"{optimizer.path} must hold mu.<name> and nu.<name> alone; got {', '.join(others)}.")
    moments = []
    for kind in ("mu.", "nu."):
        tensors = {name.removeprefix(kind): optimizer[name] for name in optimizer if name.startswith(kind)}
        try:
            moments.append(dict(from_torch(cfg, tensors)))
        except ValueError as error:
            raise ValueError(f"{optimizer.path} under {kind}<name>: {error}") from error
        for name, array in tensors.items():
            if array.dtype != model.dtypes[name]:
                raise ValueError(f"{kind}{name} must be {model.dtypes[name]} as its weight is; got {array.dtype}.")
    return moments
