"""What stands behind the word that a command is given: a name, a config, a checkpoint, a foreign model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from attn.config import Config
    from attn.models import DecoderConfig


class Source(NamedTuple):
    """A config, and the weights that came with it, if any did."""

    cfg: Config
    weights: Mapping[str, np.ndarray] | None = None


def read_source(word: str) -> Source:
    """The config, and perhaps the weights, behind a word.

    A word is the name of a variant or a model (small sizes), a JSON file, a folder of ours or of Hugging Face's, or a
    llama2.c `.bin` file.

    Raises:
        ValueError: it is none of them.
    """
    from attn.presets import NAMES, small

    if word in NAMES:
        return Source(small(word))
    path = Path(word)
    if not path.exists():
        raise ValueError(f"CONFIG must be an existing file or folder or one of {', '.join(NAMES)}; got {word!r}.")
    return _read_path(path)


class Model(NamedTuple):
    """A config and its weights."""

    cfg: Config
    weights: Mapping[str, np.ndarray]


def read_model(word: str) -> Model:
    """As `read_source`, for a word that must bring weights.

    Raises:
        ValueError: it brings none.
    """
    path = Path(word)
    if not path.exists():
        raise ValueError(f"CHECKPOINT must be an existing file or folder; got {word!r}.")
    cfg, weights = _read_path(path)
    if weights is None:
        raise ValueError(f"CHECKPOINT must hold weights; got {word!r}.")
    return Model(cfg, weights)


def as_decoder(cfg: Config, what: str) -> DecoderConfig:
    """The config, if it is a decoder's.

    Raises:
        ValueError: it is not.
    """
    from attn.models import DecoderConfig

    if not isinstance(cfg, DecoderConfig):
        raise ValueError(f"{what} must hold a decoder; got {getattr(cfg, 'variant', None)!r}.")
    return cfg


def _read_path(path: Path) -> Source:
    from attn import checkpoint, hub
    from attn.loading import load_config

    if path.is_file() and path.suffix != ".json":
        return Source(*hub.read(path))
    file = path / checkpoint.CONFIG if path.is_dir() else path
    weighty = path.is_dir() and any(path.glob("*.safetensors"))
    if "variant" in _fields(file):
        return Source(*checkpoint.load(path)) if weighty else Source(load_config(file))
    return Source(*hub.read(path)) if weighty else Source(_foreign_config(file))


def _fields(file: Path) -> dict[str, Any]:
    from attn.files import load_json

    try:
        fields = load_json(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{file} must hold a JSON object; got {fields!r}.")
    return fields


def _foreign_config(file: Path) -> Config:
    """The config of a Hugging Face file without its weights."""
    from attn.hub import PAGES
    from attn.hub.configs import read_config

    fields = _fields(file)
    page = PAGES.get(str(fields.get("model_type")))
    if page is None:
        known = ", ".join(PAGES)
        raise ValueError(
            f"{file} must have a variant, or a model_type among {known}; got {fields.get('model_type')!r}."
        )
    return read_config(page, fields, str(file))
