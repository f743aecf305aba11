"""`attn generate CHECKPOINT`: a model goes on with a prompt."""

from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer


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
    model = twin.load(cfg, weights)
    began = perf_counter()
    whole = model.generate(tokens, steps, sampling)[0]
    seconds = perf_counter() - began
    typer.echo(tokenizer.decode(_until(whole, tokens.shape[1], stop)))
    note = ", compilation included" if backend == "jax" else ""
    said = f"{steps} tokens in {seconds:.2f} s: {steps / seconds:,.0f} tokens/s in {backend}{note}"
    console(stderr=True).print(said, style="dim")


def _until(tokens, prompt: int, stop: int | None):
    """The tokens before the first stop token that was generated."""
    ends = [place for place in range(prompt, len(tokens)) if tokens[place] == stop]
    return tokens[: ends[0]] if ends else tokens
