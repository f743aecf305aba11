"""Choosing a kernel: the facts of a call that are known before it runs, and the table that explains the choice."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from attn.masks import Rule
from attn.positions import Alibi, Buckets

GIVEN = ("valid", "segments", "positions", "allowed", "bias", "cache", "context")
"""What a call may bring along, as `explain` names it."""


FORMS = ("expanded", "absorbed")
"""The two ways to compute latent attention; a name among kernels, because they differ in nothing but speed."""


class Facts(NamedTuple):
    """What a kernel may ask about a call. None of it depends on the numbers in the arrays."""

    rule: Rule
    queries: int
    keys: int
    dim_k: int
    dim_v: int
    dtype: str
    device: str
    training: bool
    given: frozenset[str]
    options: frozenset[str] = frozenset()

    @property
    def by_index(self) -> bool:
        """Positions are the default ones and queries and keys are the same tokens: causal may go by index."""
        return not self.given & {"positions", "cache", "context"} and self.queries == self.keys

    @property
    def needs(self) -> frozenset[str]:
        """Everything beyond plain scores: what the call brought along and the options in use."""
        return self.given | self.options


class Row(NamedTuple):
    """One kernel of the table that `explain` returns."""

    kernel: str
    chosen: bool
    reason: str


Refusal = Callable[[Facts], str | None]


def choose(refusals: Mapping[str, Refusal], facts: Facts, forced: str | None = None) -> tuple[Row, ...]:
    """One row per kernel, the fastest first; the first that does not refuse is chosen, or the one that is forced.

    Raises:
        ValueError: the forced kernel is unknown, or cannot do what this call asks.
    """
    check_name(refusals, forced)
    rows: list[Row] = []
    chosen = None
    for name, refusal in refusals.items():
        reason = refusal(facts)
        if name == forced and reason is not None:
            raise ValueError(f"kernel {name!r} cannot run this call: {reason}.")
        fits = reason is None and chosen is None and forced in (None, name)
        chosen = name if fits else chosen
        rows.append(Row(name, fits, _said(reason, fits, forced)))
    return tuple(rows)


def check_name(names: Iterable[str], name: str | None) -> None:
    """Refuse an unknown kernel: "kernel must be one of plain; got 'fast'." """
    if name is not None and name not in names:
        raise ValueError(f"kernel must be one of {', '.join(names)}; got {name!r}.")


def _said(reason: str | None, fits: bool, forced: str | None) -> str:
    if fits:
        return "forced" if forced else "the first that can run this call"
    return reason or (f"{forced} is forced" if forced else "a faster kernel can run this call")


def options(cfg: Any, training: bool) -> frozenset[str]:
    """The options of a config that a kernel must know: softcap, alibi, sinks, dropout."""
    used = {"softcap": cfg.softcap, "sinks": cfg.sinks, "dropout": training and cfg.dropout}
    used["alibi"] = isinstance(cfg.position_bias, Alibi)
    return frozenset(name for name, value in used.items() if value)


def biased(cfg: Any) -> frozenset[str]:
    """Whether the config itself adds a bias to the scores that must be written out."""
    return frozenset({"bias"} if isinstance(cfg.position_bias, Buckets) else ())


def check_given(given: tuple[str, ...]) -> frozenset[str]:
    """Refuse words that `explain` does not know: "given must name some of valid, ...; got 'mask'." """
    for word in given:
        if word not in GIVEN:
            raise ValueError(f"given must name some of {', '.join(GIVEN)}; got {word!r}.")
    return frozenset(given)
