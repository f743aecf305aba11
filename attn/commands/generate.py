"""`attn generate CHECKPOINT`: a model goes on with a prompt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from attn.commands.tokenizers import Tokenizer

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What the first bytes of a character decode to before the others have come."""


def run(
    checkpoint: Annotated[str, typer.Argument(help="A folder of ours or Hugging Face's, or a llama2.c .bin file.")],
    prompt: Annotated[str, typer.Option(help="Text; token numbers where no tokenizer lies beside the model.")] = "",
    backend: Annotated[str, typer.Option(help="jax or torch.")] = "torch",
    steps: Annotated[int, typer.Option(help="How many tokens to add.")] = 200,
    temperature: Annotated[float, typer.Option(help="What logits are divided by; 0 takes the highest.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Only the k highest take part.")] = None,
    top_p: Annotated[float, typer.Option(help="Only the highest of this probability together take part.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the draws; the same in both twins.")] = 0,
    stop: Annotated[int | None, typer.Option(help="The token number that ends the text.")] = None,
) -> None:
    """Generate text from a checkpoint, in either twin."""
    import numpy as np

    from attn.commands.sources import as_decoder, read_model
    from attn.commands.tokenizers import find_tokenizer
    from attn.driving import driver
    from attn.sampling import Sampling
    from attn.terminal import console

    twin = driver(backend)
    cfg, weights = read_model(checkpoint)
    tokenizer = find_tokenizer(Path(checkpoint), as_decoder(cfg, "CHECKPOINT").vocab_size)
    tokens = np.asarray(tokenizer.encode(prompt), np.int32)[None]
    if not tokens.size:
        raise ValueError("--prompt must hold at least one token; got ''.")
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, stop=stop)
    new = twin.load(cfg, weights).stream(tokens, steps, sampling)
    times = [perf_counter()]
    for piece in pieces(tokenizer, tokens[0], until(stop, new, times)):
        print(piece, end="", flush=True)
    print()
    console(stderr=True).print(speed(times, backend), style="dim")


def until(stop: int | None, tokens: Iterable[Any], times: list[float]) -> Iterator[int]:
    """The first row's tokens before the first stop token; when each came is added to `times`."""
    for token in tokens:
        times.append(perf_counter())
        if token[0] == stop:
            return
        yield int(token[0])


def pieces(tokenizer: Tokenizer, prompt: Iterable[int], tokens: Iterable[int]) -> Iterator[str]:
    """The prompt with the first token, then what each token adds to the text; half a character waits for the rest."""
    known, told = list(prompt), ""
    for token in tokens:
        known.append(token)
        text = tokenizer.decode(known)
        if not text.endswith(UNFINISHED):
            yield text[len(told) :]
            told = text
    yield tokenizer.decode(known)[len(told) :]


def speed(times: list[float], backend: str) -> str:
    """How many tokens came in how many seconds; the rate leaves out the two that may have waited for a compiler."""
    tokens = len(times) - 1
    rate = f": {(tokens - 2) / (times[-1] - times[2]):,.0f} tokens/s after two" if tokens > 2 else ""
    return f"{tokens} token{'s' * (tokens != 1)} in {times[-1] - times[0]:.2f} s in {backend}{rate}"
