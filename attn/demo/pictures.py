"""The demo's two pictures: one unbroken loss curve, and what a head looks at."""

from pathlib import Path

import numpy as np

from attn.demo.attention import AttentionMap
from attn.history import History

COLOURS = {"jax": "#1f6fb4", "torch": "#d9502e"}
NAMES = {"jax": "JAX", "torch": "PyTorch"}
INK = "#333333"


def draw_losses(history: History, legs: tuple[tuple[str, int], ...], trigram: float, path: Path) -> None:
    """The loss of every step, coloured by the twin that made it, with the losses on the held out text."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    losses, first, named = np.array(history.losses), 0, set()
    for name, until in legs:
        # Each leg starts at the last point of the one before, so that the line does not break.
        steps = np.arange(max(first, 1), until + 1)
        label = None if name in named else f"trained in {NAMES[name]}"
        axes.plot(steps, losses[steps - 1], color=COLOURS[name], linewidth=1.1, label=label)
        if first:
            axes.axvline(first, color=INK, linewidth=0.8, linestyle=":")
            axes.annotate(f" to {NAMES[name]}", (first, 1), xycoords=("data", "axes fraction"), va="top", color=INK)
        first, named = until, named | {name}
    points = np.array(history.validation)
    axes.plot(*points.T, "o", color=INK, markersize=5, label="held out text")
    axes.axhline(trigram, color=INK, linewidth=0.8, linestyle="--", label=f"trigram model, {trigram:.2f}")
    axes.annotate(f"{points[-1, 1]:.2f}", points[-1], (0, 6), textcoords="offset points", ha="center")
    axes.set(xlabel="step", ylabel="loss, nats per character", title="One training across two frameworks")
    axes.set_xlim(0, len(losses) * 1.02)
    _plain(axes)
    axes.legend(frameon=False, loc="upper right", bbox_to_anchor=(1, 0.94))
    figure.savefig(path)


def draw_attention(found: AttentionMap, title: str, path: Path) -> None:
    """The weights of a head: a row looks, a column is looked at."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 8.4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(found.weights, cmap="Blues", vmin=0, vmax=1)
    places = range(len(found.pieces))
    axes.set_xticks(places, found.pieces, rotation=90, fontsize=8)
    axes.set_yticks(places, found.pieces, fontsize=8)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0)
    axes.set(xlabel="is looked at", ylabel="looks")
    figure.suptitle(title)
    _plain(axes)
    figure.colorbar(image, label="attention weight", shrink=0.5)
    figure.savefig(path)


def _plain(axes) -> None:
    for side in axes.spines.values():
        side.set_visible(side.spine_type in ("left", "bottom"))
