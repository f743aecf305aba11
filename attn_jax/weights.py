"""Neutral weights in and out of Flax: nested dicts of fresh JAX arrays, exact to the bit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.linen as nn
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from attn import checkpoint
from attn.config import Config
from attn.weights import check_weights, shapes_of
from attn_jax.arrays import as_jax, as_numpy
from attn_jax.building import build

Variables = dict[str, Any]


def from_neutral(cfg: Config, weights: Mapping[str, np.ndarray]) -> Variables:
    """The variables of a config's module: {"params": ...}, each array a copy.

    Raises:
        ValueError: a name or a shape is not the config's, or an array is float64 and JAX would round it.
    """
    check_weights(cfg, shapes_of(weights))
    arrays = {flax_path(name): as_jax(name, weights[name]) for name in cfg.shapes()}
    return {"params": unflatten_dict(arrays)}


def to_neutral(cfg: Config, variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Neutral weights of a module's variables, each array a copy.

    Raises:
        ValueError: a name or a shape is not the config's.
    """
    arrays = {neutral_name(path): array for path, array in flatten_dict(nn.unbox(variables["params"])).items()}
    check_weights(cfg, shapes_of(arrays))
    return {name: as_numpy(arrays[name]) for name in cfg.shapes()}


def flax_path(name: str) -> tuple[str, ...]:
    """layers.3.attention.q.kernel is the nested ("layers_3", "attention", "q", "kernel")."""
    words: list[str] = []
    for word in name.split("."):
        if word.isdigit():
            words[-1] = f"{words[-1]}_{word}"
        else:
            words.append(word)
    return tuple(words)


def neutral_name(path: tuple[str, ...]) -> str:
    """The inverse of `flax_path`."""
    words = []
    for word in path:
        stem, _, number = word.rpartition("_")
        words.append(f"{stem}.{number}" if number.isdigit() and stem else word)
    return ".".join(words)


def save(folder: str | Path, module: nn.Module, variables: Mapping[str, Any]) -> None:
    """Write a checkpoint folder that either twin loads."""
    checkpoint.save(folder, module.cfg, to_neutral(module.cfg, variables))


def load(folder: str | Path, *, dtype: Any = None, kernel: str | None = None) -> tuple[nn.Module, Variables]:
    """The module and the variables of a checkpoint folder; parameters keep the dtype of the file."""
    cfg, weights = checkpoint.load(folder)
    return build(cfg, dtype=dtype, kernel=kernel), from_neutral(cfg, weights)
