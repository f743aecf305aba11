"""How large the rows of a case's gradients are, by which the errors of its small rows are measured."""

from collections.abc import Callable
from types import ModuleType

import numpy as np

from attn.config import Config
from attn.parity.inputs import Inputs
from attn.tolerance import FLOOR, by_row, floors

DRAWS = 9
"""So many draws of a case are looked at."""


def typical(cfg: Config, twin: ModuleType, draw: Callable[[int], Inputs], seed: int) -> dict[str, float]:
    """What the small rows of each gradient are measured against: the typical row, as float64 knows it.

    Rounding is relative to the terms of a sum, which may cancel. How large they are is a matter of the case and not of
    one draw of its numbers: of a part with few rows, like the one number of a single head's sinks, one draw says too
    little, and where all queries of a draw are nearly certain of a key all its rows are what cancelling has left. So
    more draws are looked at. And a query that sees a single key moves it by nothing. Where many do, the median row in
    float32 is rounding; float64 tells which rows vanish, and they do not count.

    Args:
        cfg: an attention variant or a model.
        twin: a twin's module `gradients`.
        draw: the inputs of the case, by seed.
        seed: the first of the seeds.
    """
    draws = (draw(seed + 1000 * number) for number in range(DRAWS))
    found = [by_row(cfg, twin.value_and_gradients(cfg, *inputs, "float64", "plain")[1]) for inputs in draws]
    exact = {name: np.stack([gradients[name] for gradients in found]) for name in found[0]}
    norms = {name: float(np.linalg.norm(gradient)) for name, gradient in exact.items()}
    nothing = FLOOR * max(norms.values())
    sizes = {name: np.linalg.norm(gradient, axis=-1, keepdims=True) for name, gradient in exact.items()}
    return floors({name: np.where(sizes[name] > nothing, exact[name], 0) for name in exact}, norms)
