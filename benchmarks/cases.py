"""What is measured: a plain table of layers, and the sizes that all of them share."""

from typing import Any, NamedTuple

import numpy as np

import attn

DIM, HEADS, WINDOW = 512, 8, 256
"""M, H, and W of the layers; a head is 64 wide, the batch is one row, numbers are float32."""

RULES: dict[str, dict[str, Any]] = {
    "full": {"kind": "full"},
    "causal": {"kind": "causal"},
    "window": {"kind": "sliding_window", "width": WINDOW},
}

TABLE: tuple[tuple[str, str, int, tuple[int, ...]], ...] = (
    ("causal", "causal", HEADS, (256, 1024, 2048, 4096, 8192)),
    ("full", "full", HEADS, (1024, 4096)),
    ("grouped, 8 queries to 2 keys", "causal", 2, (1024, 4096)),
    (f"window of {WINDOW}", "window", HEADS, (1024, 4096, 8192)),
)
"""Name, rule, key/value heads, and the lengths T."""

QUICK = {"causal": (256, 1024), f"window of {WINDOW}": (1024,)}
"""The layers and lengths of a quick run."""


class Case(NamedTuple):
    """One layer at one length, forward alone or with all gradients of the sum of squares of its output."""

    name: str
    rule: str
    kv_heads: int
    T: int
    gradients: bool

    @property
    def group(self) -> str:
        """The table in which this case is a column."""
        return f"{self.name}, {mode(self.gradients)}"


def mode(gradients: bool) -> str:
    """How results call it."""
    return "forward and backward" if gradients else "forward"


def cases(quick: bool) -> list[Case]:
    """All layers, each by growing length."""
    return [
        Case(name, rule, kv_heads, T, gradients)
        for name, rule, kv_heads, lengths in TABLE
        for gradients in (False, True)
        for T in (QUICK.get(name, ()) if quick else lengths)
    ]


def config(case: Case, **options: Any) -> attn.GroupedQueryAttentionConfig:
    """The layer of a case; `options` are more of its config's fields."""
    sizes = {"input_dim": DIM, "heads": HEADS, "kv_heads": case.kv_heads}
    return attn.GroupedQueryAttentionConfig(**(sizes | {"mask": RULES[case.rule]} | options))


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers, float32."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def inputs(T: int) -> np.ndarray:
    """x [1 T M]."""
    return draw(1, T, DIM)


def heads(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q [1 T H D], k and v [1 T K D], for a kernel on its own."""
    numbers = (HEADS, case.kv_heads, case.kv_heads)
    q, k, v = (draw(1, case.T, count, DIM // HEADS, seed=seed) for seed, count in enumerate(numbers))
    return q, k, v


def masked(case: Case) -> np.ndarray | None:
    """Which query may see which key, [T S], for peers that need it written out; None where all may see all."""
    if case.rule == "full":
        return None
    q, k = np.arange(case.T)[:, None], np.arange(case.T)
    return (k <= q) & (k > q - WINDOW) if case.rule == "window" else k <= q
