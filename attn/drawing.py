"""A picture of a rule: which key positions each query position may see."""

from pathlib import Path

import numpy as np

from attn.masks import Rule

INK, PAPER = "#1f6fb4", "#f2f2f2"


def draw_rule(rule: Rule, length: int, path: str | Path) -> None:
    """Write the rule on positions 0 to length - 1 as a picture, in the format that the file's name ends with."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    positions = np.arange(length)
    figure = Figure(figsize=(5, 5.3), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    seen = rule.allows(positions[:, None], positions)
    axes.imshow(seen, cmap=ListedColormap([PAPER, INK]), vmin=0, vmax=1, interpolation="nearest")
    axes.set(xlabel="key position", ylabel="query position", title=rule.kind)
    axes.xaxis.set_label_position("top")
    axes.xaxis.tick_top()
    for side in axes.spines.values():
        side.set_visible(False)
    if length <= 64:
        axes.set_xticks(positions - 0.5, minor=True)
        axes.set_yticks(positions - 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=0.7)
    axes.tick_params(which="both", length=0)
    figure.savefig(path)
