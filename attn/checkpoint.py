"""A checkpoint is a folder: `config.json`, and `model.safetensors` under the names and shapes of PyTorch."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from attn import tensorfile
from attn.config import Config
from attn.files import replacing
from attn.loading import load_config
from attn.weights import from_torch, to_torch

MODEL = "model.safetensors"
CONFIG = "config.json"


def save(folder: str | Path, cfg: Config, weights: Mapping[str, np.ndarray]) -> None:
    """Write a config and its neutral weights; the bytes depend on nothing else.

    Raises:
        ValueError: one report of what does not fit the config; nothing is written.
    """
    tensors = to_torch(cfg, weights)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensorfile.write(folder / MODEL, tensors)
    write_text(folder / CONFIG, cfg.to_json())


def load(folder: str | Path) -> tuple[Config, Mapping[str, np.ndarray]]:
    """The config and its neutral weights, each read from the file when it is asked for.

    Raises:
        ValueError: the config, the file or the names and shapes in it are not what they must be.
    """
    cfg = load_config(folder)
    return cfg, from_torch(cfg, tensorfile.read(Path(folder) / MODEL))


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode())
