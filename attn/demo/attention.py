"""What one head of the story's model looks at."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attn import hub
from attn.backends import backend
from attn.demo.story import GOLDEN, TOKENIZER
from attn.hub.llama2c_tokenizer import Llama2cTokenizer

LAYER, HEAD, SEEN = 2, 6, "often looks at the name"
"""A head of which a person can tell what it does."""

TOKENS = 40


class AttentionMap(NamedTuple):
    """The weights [T S] of a head, and the pieces of text that look and are looked at."""

    weights: np.ndarray
    pieces: list[str]


def attention_map(folder: Path, layer: int = LAYER, head: int = HEAD) -> AttentionMap:
    """The weights of one head on the beginning of the story, by PyTorch."""
    tokens = json.loads((folder / GOLDEN).read_text(encoding="utf-8"))["ids"][:TOKENS]
    tokenizer = Llama2cTokenizer.read(folder / TOKENIZER)
    cfg, weights = hub.read(folder)
    twin, torch = backend("torch"), import_module("torch")
    module = twin.build(cfg)
    module.load_state_dict(twin.from_neutral(cfg, weights))
    with torch.no_grad():
        looked = _weights(module, torch.tensor([tokens]), layer)[0, head].numpy()
    pieces = [tokenizer.decode([token]).strip(" ") or "␣" for token in tokens[1:]]
    return AttentionMap(looked, ["start", *pieces])


def _weights(module: Any, tokens: Any, layer: int) -> Any:
    """[B H T S]: what enters the layer's attention is caught on its way, then asked about."""
    block, caught = module.layers[layer], []
    handle = block.attention_norm.register_forward_hook(lambda _module, _inputs, x: caught.append(x))
    module(tokens)
    handle.remove()
    return block.attention.attention_weights(caught[0])
