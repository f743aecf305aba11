"""`attn convert SRC DST`: a checkpoint in another form, exact to the bit."""

from pathlib import Path
from typing import Annotated

import typer

FORMS = ("attn", "huggingface")


def run(
    src: Annotated[str, typer.Argument(help="A folder of ours or Hugging Face's, or a llama2.c .bin file.")],
    dst: Annotated[Path, typer.Argument(help="The new folder.")],
    to: Annotated[str, typer.Option(help=f"The form to write: {' or '.join(FORMS)}.")] = "attn",
) -> None:
    """Convert a checkpoint between forms, exact to the bit."""
    from attn import checkpoint, hub
    from attn.commands.sources import as_decoder, read_model
    from attn.commands.tokenizers import copy_tokenizer
    from attn.terminal import console
    from attn.weights import count

    if to not in FORMS:
        raise ValueError(f"--to must be one of {', '.join(FORMS)}; got {to!r}.")
    if dst.exists() and (not dst.is_dir() or any(dst.iterdir())):
        raise ValueError(f"DST must be a new or an empty folder; got {str(dst)!r}.")
    cfg, weights = read_model(src)
    if to == "attn":
        checkpoint.save(dst, cfg, weights)
    else:
        hub.write(dst, as_decoder(cfg, "SRC"), weights)
    copy_tokenizer(Path(src), dst, getattr(cfg, "vocab_size", 0))
    console().print(f"{count(cfg):,} parameters written to {dst}, in the form of {to}")
