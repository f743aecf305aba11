"""What attn sets out to reach, each as a number read from the results."""

from typing import Any, NamedTuple

from benchmarks.comparing import FLOOR, OURS
from benchmarks.results import Record

BOTH = ("forward", "forward and backward")
NAMES = {"jax": "JAX", "torch": "PyTorch"}
JAX_PEERS = ("four projections", "Flax", "Equinox", "Keras")
TORCH_PEERS = ("PyTorch", "x-transformers", "Keras")


class Goal(NamedTuple):
    """A ratio of two candidates' times in one or more columns of one table; the worst column counts.

    Attributes:
        text: what is compared.
        part: the part of the results.
        framework: the framework of the table.
        group: the name of the table.
        columns: the names of its columns; none for all.
        slow: what the names of the slower candidates begin with; the fastest of them counts. `attn` is ours alone, not
            what is ours too, such as `attn, rotary`.
        fast: the name of the faster candidate.
        least: the ratio must be at least this.
        most: or at most this.
        field: what is read: the ratio of times; seconds, whose difference counts, in microseconds; or growth.
        even: all do the same work, most of it in the same kernel, so that they may be level; see `verdict`.
    """

    text: str
    part: str
    framework: str
    group: str
    columns: tuple[str, ...]
    slow: tuple[str, ...]
    fast: str | None = OURS
    least: float | None = None
    most: float | None = None
    field: str = "ratio"
    even: bool = False

    def value(self, records: list[Record]) -> float | None:
        """The worst number found, None where it was not measured."""
        return self._worst(records, self.field, self.field)

    def verdict(self, records: list[Record]) -> str:
        """yes, no, or level: in each column that misses the bound, it lies between the quartiles of the ratio."""
        if self.met(self.value(records)):
            return "yes"
        if not self.even:
            return "no"
        # The quartile that speaks for attn: of the slower where they are peers, of the faster where it is the floor.
        at_best = self._worst(records, *(("high", "ratio") if self.most is None else ("ratio", "high")))
        return "level" if self.met(at_best) else "no"

    def met(self, value: float) -> bool:
        """Whether the number is as wanted."""
        return value >= self.least if self.most is None else value <= self.most

    @property
    def wanted(self) -> str:
        """The bound as a table says it."""
        return f"at least {self.shown(self.least)}" if self.most is None else f"at most {self.shown(self.most)}"

    def shown(self, value: float) -> str:
        """A number as a table says it."""
        return f"{value:.1f} µs" if self.field == "seconds" else f"{value:.3g}x"

    def _worst(self, records, slow_field, fast_field):
        key = (self.part, self.framework, self.group)
        rows = [
            each["rows"]
            for each in records
            if (each["part"], each["framework"], each["group"]) == key
            and (not self.columns or each["column"] in self.columns)
        ]
        values = [found for each in rows if (found := self._in(each, slow_field, fast_field)) is not None]
        if not values:
            return None
        return min(values) if self.most is None else max(values)

    def _in(self, rows: dict[str, Any], slow_field: str, fast_field: str) -> float | None:
        those = [name for name in rows if name.startswith(self.slow)] if self.slow != (OURS,) else [OURS]
        found = [rows[name][slow_field] for name in those if slow_field in rows.get(name, {})]
        if not found:
            return None
        if self.fast is None:
            return min(found)
        if fast_field not in rows.get(self.fast, {}):
            return None
        base = rows[self.fast][fast_field]
        return (min(found) - base) * 1e6 if self.field == "seconds" else min(found) / base


def _jax_goals() -> list[Goal]:
    kernel, layer, found = (3.5, 3.0), (3.0, 2.2), []
    for mode, bare, whole in zip(BOTH, kernel, layer, strict=True):
        group, columns = f"causal, {mode}", ("T=4096",)
        words = f"JAX, T=4096, {mode}: "
        built_in = ("jax.nn",)
        found.append(Goal(words + "the kernel over JAX's own", "kernels", "jax", group, columns, built_in, least=bare))
        found.append(Goal(words + "layers over any peer", "layers", "jax", group, columns, JAX_PEERS, least=whole))
    return found


def _torch_goals() -> list[Goal]:
    found = []
    for mode in BOTH:
        group, where = f"causal, {mode}", f"PyTorch, {mode}: "
        tiny = "one call, T=16, M=64, H=4"
        given = ("overhead", "torch", tiny, (mode,), (OURS,), FLOOR)
        found.append(Goal(where + "a call over four projections and SDPA", *given, most=30.0, field="seconds"))
        floor = ("layers", "torch", group, (), (OURS,), FLOOR)
        found.append(Goal(where + "attn over four projections and SDPA at every length", *floor, most=1.05, even=True))
        for name in ("causal", "full", "grouped, 8 queries to 2 keys", "window of 256"):
            table = ("layers", "torch", f"{name}, {mode}", ())
            found.append(Goal(f"{where}any peer over attn, {name}", *table, TORCH_PEERS, least=1.0, even=True))
            rotary = (*table, ("transformers",), f"{OURS}, rotary")
            found.append(
                Goal(f"{where}transformers over attn with rotary positions, {name}", *rotary, least=1.0, even=True)
            )
    return found


def _window_goals() -> list[Goal]:
    slow = (f"{OURS}, causal without a window",)
    return [
        Goal(
            f"{NAMES[framework]}, {mode}: causal over a window of 256, T=8192",
            "kernels", framework, f"window of 256, {mode}", ("T=8192",), slow, least=least,
        )
        for framework in ("jax", "torch")
        for mode, least in zip(BOTH, (6.0, 3.5), strict=True)
    ]  # fmt: skip


def _generation_goals() -> list[Goal]:
    peers = ("transformers",)
    wanted = {"batch 1": (25.0, 2.5, 5.0), "batch 16": (4.0, 1.8, 1.8)}
    return [
        Goal(
            f"generation, {column}: transformers over {name}",
            "generation", "both", "the same story, greedy", (column,), peers, name, least=least,
        )
        for column, numbers in wanted.items()
        for name, least in zip(("attn_jax", "attn_torch", "attn_torch, compiled"), numbers, strict=True)
    ]  # fmt: skip


GOALS = (
    *_jax_goals(),
    *_torch_goals(),
    *_window_goals(),
    Goal(
        "JAX, temporary memory at four times the length (2048 to 8192)",
        "memory", "jax", "causal, forward and backward", ("growth",), (OURS,), None, most=4.2, field="growth",
    ),
    *(
        Goal(
            f"{NAMES[framework]}, {mode}: the plain form over each option",
            "options", framework, mode, (), ("",), None, 0.95,
        )
        for framework in ("jax", "torch")
        for mode in BOTH
    ),
    *_generation_goals(),
    Goal(
        "operations of expanded latent attention over absorbed, context 4096",
        "operations", "both", "operations of a token of latent attention, projections included", ("context 4096",),
        ("expanded",), "absorbed", least=30.0,
    ),
)  # fmt: skip
"""All goals. Those whose numbers were not measured are left out."""
