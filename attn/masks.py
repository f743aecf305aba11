"""Rules: which key positions a query position may see.

A rule compares positions, never indices. It has two methods, written with operators only, so that one text runs on
numpy, JAX and PyTorch: `allows(q, k)`, true where the query may attend, and `reach(q_low, q_high)`, the lowest and
the highest key position that queries between q_low and q_high can see. Rules are configs: they compose, hash and
travel through JSON.
"""

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from attn.config import Frozen, Tuple

FAR = 2**29
"""Beyond every position, and still an int32 after two of them are subtracted."""


Reach = Annotated[int, Field(gt=0, le=FAR)]


def _larger(a: Any, b: Any) -> Any:
    return a + (b - a) * (b > a)


def _smaller(a: Any, b: Any) -> Any:
    return a + (b - a) * (b < a)


class Rule(Frozen):
    """The common part of all rules; `a & b` and `a | b` compose them."""

    @property
    def causal(self) -> bool:
        """Whether no query ever sees a later position; only then can a cache be exact."""
        return True

    @property
    def memory(self) -> int | None:
        """How many of the latest tokens can matter to the next one; None when all can."""
        return None

    def draw(self, length: int) -> str:
        """The rule on positions 0 to length - 1: a line for each query, ■ where it may see a key and · elsewhere."""
        positions = np.arange(length)
        seen = self.allows(positions[:, None], positions)
        return "\n".join(" ".join("■" if allowed else "·" for allowed in row) for row in seen)

    def __and__(self, other: "Rule") -> "AllOf":
        return AllOf(of=(self, other))

    def __or__(self, other: "Rule") -> "AnyOf":
        return AnyOf(of=(self, other))


class Full(Rule):
    """Every query sees every key."""

    kind: Literal["full"] = "full"

    @property
    def causal(self) -> bool:
        return False

    def allows(self, q: Any, k: Any) -> Any:
        return (q == q) & (k == k)

    def reach(self, q_low: Any, q_high: Any) -> tuple[Any, Any]:
        return q_low * 0 - FAR, q_high * 0 + FAR


class Causal(Rule):
    """A query sees itself and what came before: k <= q."""

    kind: Literal["causal"] = "causal"

    def allows(self, q: Any, k: Any) -> Any:
        return k <= q

    def reach(self, q_low: Any, q_high: Any) -> tuple[Any, Any]:
        return q_low * 0 - FAR, q_high


class SlidingWindow(Rule):
    """The last `width` positions, the query's own included: q - width < k <= q.

    With `symmetric`, as many on the other side too: |q - k| < width. A width of 1 sees only itself in both.
    """

    kind: Literal["sliding_window"] = "sliding_window"
    width: Reach
    symmetric: bool = False

    @property
    def causal(self) -> bool:
        return not self.symmetric

    @property
    def memory(self) -> int | None:
        return None if self.symmetric else self.width

    def allows(self, q: Any, k: Any) -> Any:
        behind = q - k < self.width
        return behind & (k - q < self.width) if self.symmetric else behind & (k <= q)

    def reach(self, q_low: Any, q_high: Any) -> tuple[Any, Any]:
        return q_low - self.width + 1, q_high + (self.width - 1 if self.symmetric else 0)


class Chunked(Rule):
    """Causal inside chunks of `width` positions, blind across their borders: k <= q and k // width == q // width."""

    kind: Literal["chunked"] = "chunked"
    width: Reach

    @property
    def memory(self) -> int | None:
        return self.width

    def allows(self, q: Any, k: Any) -> Any:
        return (k <= q) & (k // self.width == q // self.width)

    def reach(self, q_low: Any, q_high: Any) -> tuple[Any, Any]:
        return q_low // self.width * self.width, q_high


class Prefix(Rule):
    """Everyone sees the first `length` positions; beyond them the rule is causal: k <= q or k < length."""

    kind: Literal["prefix"] = "prefix"
    length: Reach

    @property
    def causal(self) -> bool:
        return False

    def allows(self, q: Any, k: Any) -> Any:
        return (k <= q) | (k < self.length)

    def reach(self, q_low: Any, q_high: Any) -> tuple[Any, Any]:
        return q_low * 0 - FAR, _larger(q_high, q_high * 0 + self.length - 1)


class AllOf(Rule):
    """What every one of several rules allows."""

    kind: Literal["all"] = "all"
    of: Annotated[tuple["Mask", ...], Tuple, Field(min_length=1)]

    @property
    def causal(self) -> bool:
        return any(rule.causal for rule in self.of)

    @property
    def memory(self) -> int | None:
        known = [rule.memory for rule in self.of if rule.memory is not None]
        return min(known) if known and self.causal else None

    def allows(self, q: Any, k: Any) -> Any:
        allowed = self.of[0].allows(q, k)
        for rule in self.of[1:]:
            allowed = allowed & rule.allows(q, k)
        return allowed

    def reach(self, q_low: Any, q_high: Any) -> tuple[Any, Any]:
        low, high = self.of[0].reach(q_low, q_high)
        for rule in self.of[1:]:
            other_low, other_high = rule.reach(q_low, q_high)
            low, high = _larger(low, other_low), _smaller(high, other_high)
        return low, high


class AnyOf(Rule):
    """What at least one of several rules allows."""

    kind: Literal["any"] = "any"
    of: Annotated[tuple["Mask", ...], Tuple, Field(min_length=1)]

    @property
    def causal(self) -> bool:
        return all(rule.causal for rule in self.of)

    @property
    def memory(self) -> int | None:
        known = [rule.memory for rule in self.of]
        return None if None in known else max(known)

    def allows(self, q: Any, k: Any) -> Any:
        allowed = self.of[0].allows(q, k)
        for rule in self.of[1:]:
            allowed = allowed | rule.allows(q, k)
        return allowed

    def reach(self, q_low: Any, q_high: Any) -> tuple[Any, Any]:
        low, high = self.of[0].reach(q_low, q_high)
        for rule in self.of[1:]:
            other_low, other_high = rule.reach(q_low, q_high)
            low, high = _smaller(low, other_low), _larger(high, other_high)
        return low, high


Mask = Annotated[Full | Causal | SlidingWindow | Chunked | Prefix | AllOf | AnyOf, Field(discriminator="kind")]

AllOf.model_rebuild()
AnyOf.model_rebuild()
