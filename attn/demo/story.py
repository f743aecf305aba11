"""A real Llama of 260 thousand parameters tells its story in both twins."""

import json
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from attn import hub
from attn.demo.checks import Check
from attn.driving import Driver, both
from attn.hub.llama2c_tokenizer import Llama2cTokenizer
from attn.sampling import Sampling

if TYPE_CHECKING:
    from rich.console import Console

GOLDEN = "golden_greedy.json"
"""The tokens of the text that the model's author published."""

TOKENIZER = "tok512.bin"


def tell(folder: Path, terminal: "Console") -> list[Check]:
    """Let both twins tell the story, and compare it with the published one token by token."""
    golden = json.loads((folder / GOLDEN).read_text(encoding="utf-8"))["ids"]
    cfg, weights = hub.read(folder)
    tokenizer = Llama2cTokenizer.read(folder / TOKENIZER)
    checks = []
    for name, twin in both().items():
        with terminal.status(f"{name} tells the story"):
            tokens, speed = _told(twin.load(cfg, weights), golden)
        if not checks:
            terminal.print(tokenizer.decode(tokens), style="italic", markup=False, end="\n\n")
        same = sum(ours == theirs for ours, theirs in zip(tokens, golden, strict=True))
        found = f"{same} of {len(golden)} tokens equal, {speed:,.0f} tokens/s"
        checks.append(Check(f"the story in {name} is the published one", found, same == len(golden)))
        terminal.print(f"{name}: {found}")
    return checks


def _told(model: Driver, golden: list[int]) -> tuple[list[int], float]:
    """The greedy text from the start token on, and the tokens per second of a second telling: the first compiles."""
    prompt, steps = np.array([golden[:1]], np.int32), len(golden) - 1
    model.generate(prompt, steps, Sampling())
    began = perf_counter()
    tokens = model.generate(prompt, steps, Sampling())
    return tokens[0].tolist(), steps / (perf_counter() - began)
