"""One comparison: every candidate is checked against ours, then all are timed in turn."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from attn.config import Config
from attn.tolerance import bound, row_error
from benchmarks.timing import LEAST, MOST, compared, interleaved, once, rounds_for

OURS = "attn"
"""The name of the candidate that all others are compared with; what begins with it is ours too."""

FLOOR = "four projections and SDPA"
"""PyTorch's floor: nothing but the products and the fused attention."""

PATIENCE = 5.0
"""A candidate that would take more seconds a call than this is left out, and said to be."""


class Candidate(NamedTuple):
    """A function and what it is called with.

    Attributes:
        function: y of (parameters, x) in JAX, of x in PyTorch.
        parameters: what gradients are taken of beside x.
        like: the name of the candidate that gives the same values, or one that is not timed.
    """

    function: Callable[..., Any]
    parameters: Any
    like: "str | Candidate" = OURS


class Side(Protocol):
    """One framework: how its candidates are called."""

    name: str

    def call(self, candidate: Candidate, x: Any, gradients: bool) -> Callable[[], Any]:
        """A function that computes, waits, and returns y, or the gradients of sum(y^2) by x and by the parameters."""
        ...

    def first(self, result: Any) -> list[np.ndarray]:
        """y, or the gradients by x."""
        ...


class Budget(NamedTuple):
    """How long a comparison may take, and how many rounds it must and may have."""

    seconds: float
    least: int = LEAST
    most: int = MOST


class Comparison:
    """Comparisons of one table, by growing size: what took long at one size is not tried where it would take too long.

    Args:
        side: the framework.
        budget: what each comparison may take.
    """

    def __init__(self, side: Side, budget: Budget):
        self.side = side
        self.budget = budget
        self.slow: dict[str, tuple[int, float]] = {}

    def rows(
        self,
        candidates: Mapping[str, Candidate | str],
        x: Any,
        gradients: bool,
        cfg: Config,
        T: int,
        base: str = OURS,
    ) -> dict[str, dict[str, Any]]:
        """Per candidate its times and ratios, or why it has none."""
        rows: dict[str, dict[str, Any]] = {}
        ready: dict[str, Callable[[], Any]] = {}
        warm: dict[str, float] = {}
        values: dict[str, list[np.ndarray]] = {}
        for name, candidate in candidates.items():
            reason = candidate if isinstance(candidate, str) else self._too_slow(name, T)
            if reason is None:
                call = self.side.call(candidate, x, gradients)
                values[name] = self.side.first(call())
                expected = self._expected(candidate.like, values, x, gradients)
                reason = _differs(values[name], expected, cfg, T, gradients)
            if reason is not None:
                rows[name] = {"no": reason}
                continue
            ready[name] = call
            warm[name] = once(call)[0]
            self.slow[name] = (T, warm[name])
        values.clear()
        rows |= _compared(ready, warm, self.budget, base)
        return {name: rows[name] for name in candidates}

    def _expected(self, like, values, x, gradients):
        """What a candidate must equal, None where there is nothing to compare it with."""
        if isinstance(like, str):
            return values.get(like)
        return self.side.first(self.side.call(like, x, gradients)())

    def _too_slow(self, name: str, T: int) -> str | None:
        if name not in self.slow:
            return None
        length, seconds = self.slow[name]
        expected = seconds * (T / length) ** 2
        return f"would take about {expected:.0f} s a call" if expected > PATIENCE else None


def most_calls(budget: Budget) -> int:
    """How often `timed` calls each function at most: twice to warm up, and twice a round."""
    return 2 + 2 * max(budget.least, budget.most)


def timed(functions: Mapping[str, Callable[[], Any]], budget: Budget, base: str = OURS) -> dict[str, dict[str, Any]]:
    """The times and ratios of functions that need no check, each after a call or two to warm up."""
    warm = {name: min(once(function)[0], once(function)[0]) for name, function in functions.items()}
    return _compared(functions, warm, budget, base)


def _compared(functions, warm, budget, base):
    rounds = rounds_for(warm, budget.seconds, budget.least, budget.most)
    return compared(interleaved(functions, rounds), base)


def _differs(values, expected, cfg, T, gradients):
    """Why a candidate is no candidate: it computes something else. Ours has nothing to be compared with."""
    if expected is None:
        return None
    limit = bound(cfg, T, T, "float32", gradient=gradients)
    error = max(row_error(*pair) for pair in zip(values, expected, strict=True))
    return None if error <= limit else f"its values differ by {error:.1e} of a row"
