"""`attn train`: train a small decoder on a text, in either twin, and go on with it in either."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from attn.characters import CharTokenizer
    from attn.driving import Driver
    from attn.models import DecoderConfig

INTERRUPTED = 130
"""The exit status of a training that was stopped by Ctrl-C."""


def run(
    out: Annotated[Path, typer.Option(help="The folder of the checkpoint.")] = Path("runs/train"),
    backend: Annotated[str, typer.Option(help="jax or torch.")] = "jax",
    data: Annotated[Path | None, typer.Option(help="A text file; Tiny Shakespeare from a clone if not given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the training in --out, of either twin.")] = False,
    config: Annotated[Path | None, typer.Option(help="A JSON file with a decoder, instead of the sizes below.")] = None,
    width: Annotated[int | None, typer.Option(help="M, the model's width.  [default: 96]")] = None,
    layers: Annotated[int | None, typer.Option(help="L.  [default: 3]")] = None,
    heads: Annotated[int | None, typer.Option(help="H, query heads.  [default: 6]")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="K, key/value heads.  [default: 2]")] = None,
    hidden: Annotated[int | None, typer.Option(help="U, the width of the MLP.  [default: 256]")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates in all.  [default: 400]")] = None,
    batch: Annotated[int | None, typer.Option(help="B.  [default: 32]")] = None,
    context: Annotated[int | None, typer.Option(help="T.  [default: 64]")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The highest rate.  [default: 0.003]")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights and batches.  [default: 0]")] = None,
    eval_every: Annotated[int | None, typer.Option(help="Steps between validations.  [default: 100]")] = None,
    save_every: Annotated[int | None, typer.Option(help="Steps between checkpoints.  [default: 100]")] = None,
) -> None:
    """Train a decoder on the characters of a text. Ctrl-C leaves a checkpoint that --resume goes on with."""
    from attn.commands.bar import TrainingBar
    from attn.demo.data import shakespeare
    from attn.driving import driver
    from attn.terminal import console
    from attn.training_loop import Interrupted

    sizes = {"width": width, "layers": layers, "heads": heads, "kv_heads": kv_heads, "hidden": hidden}
    train = {"steps": steps, "batch": batch, "context": context, "learning_rate": learning_rate, "seed": seed}
    train |= {"eval_every": eval_every, "save_every": save_every}
    sizes, train = _given(sizes), _given(train)
    text = (data or shakespeare()).read_text(encoding="utf-8")
    twin = driver(backend)
    if resume:
        _refuse_with_resume({"config": config} | sizes | train)
        model, tokenizer = _resumed(twin, out)
    else:
        model, tokenizer = _begun(twin, out, text, config, sizes, train)
    history = model.history
    try:
        with TrainingBar(f"training in {backend}", history.train.steps, history.step) as bar:
            model.train(tokenizer.encode(text), folder=out, report=bar.report)
    except Interrupted as stopped:
        console().print(f"{stopped}; attn train --resume --out {out} goes on with it", markup=False)
        raise typer.Exit(INTERRUPTED) from None
    last = f", validation {history.validation[-1][1]:.3f}" if history.validation else ""
    console().print(f"step {history.step}: loss {history.losses[-1]:.3f}{last}; written to {out}", markup=False)


def _given(options: dict) -> dict:
    return {name: value for name, value in options.items() if value is not None}


def _refuse_with_resume(options: dict) -> None:
    for name, value in _given(options).items():
        option = name.replace("_", "-")
        raise ValueError(f"--{option} is not read with --resume, which goes on as it began; got {str(value)!r}.")


def _resumed(twin: type[Driver], out: Path) -> tuple[Driver, CharTokenizer]:
    from attn.training_checkpoint import TRAIN, load_history

    if not (out / TRAIN).is_file():
        raise ValueError(f"--resume needs a training in --out; got {str(out)!r}.")
    tokenizer = load_history(out).tokenizer
    if tokenizer is None:
        raise ValueError(f"--resume needs a training whose checkpoint keeps its tokenizer; got {str(out)!r}.")
    return twin.resume(out), tokenizer


def _begun(
    twin: type[Driver], out: Path, text: str, config: Path | None, sizes: dict, train: dict
) -> tuple[Driver, CharTokenizer]:
    from attn.characters import CharTokenizer
    from attn.presets import TRAINING, decoder
    from attn.training_checkpoint import TRAIN
    from attn.weights import init_weights

    if (out / TRAIN).exists():
        raise ValueError(f"--out must not hold a training already (--resume goes on with it); got {str(out)!r}.")
    if not text:
        raise ValueError("--data must hold text; got an empty file.")
    tokenizer, options = CharTokenizer.of(text), TRAINING.replace(**train)
    cfg = decoder(tokenizer.vocab_size, **sizes) if config is None else _read(config, sizes, tokenizer)
    model = twin.load(cfg, init_weights(cfg, seed=options.seed))
    model.begin(options, tokenizer)
    return model, tokenizer


def _read(config: Path, sizes: dict, tokenizer: CharTokenizer) -> DecoderConfig:
    from attn.commands.sources import as_decoder
    from attn.loading import load_config

    for name, value in sizes.items():
        raise ValueError(f"--{name.replace('_', '-')} is not read where --config is given; got {value}.")
    cfg = as_decoder(load_config(config), "--config")
    if cfg.vocab_size < tokenizer.vocab_size:
        raise ValueError(
            f"--config must have vocab_size of at least {tokenizer.vocab_size}, the text's characters; "
            f"got {cfg.vocab_size}."
        )
    return cfg
