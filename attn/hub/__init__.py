"""Real checkpoints: Hugging Face folders read and written, and the file of llama2.c read.

One page a format (`llama.py`, `gpt2.py`, ...) says as data where each field and each tensor stands; the engine runs it
both ways. A conversion renames, transposes, reshapes, splits, joins and reorders; it never computes and never changes
a dtype, so that what is written is what was read, to the bit.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from attn import tensorfile
from attn.checkpoint import CONFIG, MODEL, write_text
from attn.files import FilePath, load_json
from attn.hub.configs import read_config, write_config
from attn.hub.deepseek_v2 import DEEPSEEK_V2
from attn.hub.deepseek_v3 import DEEPSEEK_V3
from attn.hub.engine import Linked, check, check_tied, plan, spare
from attn.hub.gpt2 import GPT2
from attn.hub.llama import LLAMA
from attn.hub.llama2c import LLAMA2C, Llama2cFile
from attn.hub.minicpm3 import MINICPM3
from attn.hub.mistral import MISTRAL
from attn.hub.page import Page
from attn.hub.qwen2 import QWEN2
from attn.hub.youtu import YOUTU
from attn.models import DecoderConfig
from attn.shards import read_sharded

PAGES: dict[str, Page] = {
    page.model_type: page for page in (LLAMA, MISTRAL, QWEN2, GPT2, YOUTU, DEEPSEEK_V3, DEEPSEEK_V2, MINICPM3)
}
"""Every model_type of Hugging Face that we read, in the order in which `write` tries them."""

__all__ = ["PAGES", "read", "write"]


def read(path: FilePath) -> tuple[DecoderConfig, Mapping[str, np.ndarray]]:
    """The config and the neutral weights of a Hugging Face folder or of a llama2.c file.

    The folder's config.json may be of transformers 4 or 5, its safetensors one file or several. Each array is read
    when it is asked for, in the dtype of the file.

    Raises:
        ValueError: one report of what is missing, contradictory, unknown or not implemented in the config, or of what
            is missing, unexpected or of another shape in the weights; no tensor is read before, but a tied head.
        OSError: if a file cannot be opened.
    """
    path = Path(path)
    if path.is_file():
        file = Llama2cFile(path)
        return _read(LLAMA2C, file.fields, file, f"header of {path}", f"weights of {path}")
    page, fields = _page(path / CONFIG)
    return _read(page, fields, read_sharded(path), f"{path / CONFIG}", f"weights in {path}")


def write(folder: FilePath, cfg: DecoderConfig, weights: Mapping[str, np.ndarray]) -> None:
    """Write a decoder as a Hugging Face folder that transformers 5 reads: config.json and model.safetensors.

    The model_type is the first of `PAGES` that can say all of the config. Weights keep their dtype. Rotary pairs are
    written in the layout of the format, halves in most. What a decoder's config does not know is left open: special
    tokens are null, and the longest text is 2048 unless the rotary positions say what they were made for.

    Raises:
        ValueError: what no format can say of the config, or one report of weights that do not fit it; nothing is
            written.
        OSError: if a file cannot be written.
    """
    page, fields = _fitting(cfg)
    links = tuple(link.inverse() for link in plan(page, cfg))
    check("weights do not fit the decoder config", links, weights)
    tensors = Linked(links, weights)
    dtypes = {str(dtype) for dtype in tensors.dtypes.values()}
    if len(dtypes) == 1:
        fields["dtype"] = dtypes.pop()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # Before version 5, transformers refused a file that does not say what it is for.
    tensorfile.write(folder / MODEL, tensors, {"format": "pt"})
    write_text(folder / CONFIG, json.dumps(fields, indent=2, sort_keys=True) + "\n")


def _page(path: Path) -> tuple[Page, dict]:
    try:
        fields = load_json(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    model_type = fields.get("model_type") if isinstance(fields, dict) else None
    if not isinstance(model_type, str) or model_type not in PAGES:
        raise ValueError(f"{path} must have a model_type among {', '.join(PAGES)}; got {model_type!r}.")
    return PAGES[model_type], fields


def _read(
    page: Page, fields: Mapping, tensors: Mapping[str, np.ndarray], config: str, weights: str
) -> tuple[DecoderConfig, Linked]:
    cfg = read_config(page, fields, config)
    if not any(name.startswith(page.prefix) for name in tensors):
        page = page.bare()
    links = plan(page, cfg)
    check(f"{weights} do not fit their config", links, tensors, spare(page, cfg))
    check_tied(page, cfg, tensors)
    return cfg, Linked(links, tensors)


def _fitting(cfg: DecoderConfig) -> tuple[Page, dict]:
    """The first page that can say all of a config, and its fields.

    Raises:
        ValueError: there is none; the text is about the one that comes nearest.
    """
    if not isinstance(cfg, DecoderConfig):
        raise ValueError(f"config must be a decoder's to be written; got {getattr(cfg, 'variant', cfg)!r}.")
    tried = {page.model_type: write_config(page, cfg) for page in PAGES.values()}
    for model_type, (fields, problems) in tried.items():
        if not problems:
            return PAGES[model_type], fields
    nearest = min(tried, key=lambda model_type: len(tried[model_type][1]))
    raise ValueError(f"config cannot be written, {nearest} comes nearest: {'; '.join(tried[nearest][1])}.")
