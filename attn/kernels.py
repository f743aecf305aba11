"""Choosing a kernel: the facts of a call that are known before it runs, and the table that explains the choice."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from attn.masks import AllOf, AnyOf, Chunked, Rule
from attn.positions import Alibi, Buckets
from attn.variants.base import AttentionConfig

GIVEN = ("valid", "segments", "positions", "allowed", "bias", "cache", "context")
"""What a call may bring along, as `explain` names it."""

MOVED = frozenset({"positions", "cache", "context"})
"""What makes positions and indices part, or queries and keys different tokens."""

HIDING = frozenset({"valid", "segments", "allowed", "cache"})
"""What hides keys whatever the rule is."""

FORMS = ("expanded", "absorbed")
"""The two ways to compute latent attention; a name among kernels, because they differ in nothing but speed."""


class Facts(NamedTuple):
    """What a kernel may ask about a call. None of it depends on the numbers in the arrays.

    Attributes:
        rule: which key positions a query position may see.
        queries: T.
        keys: S, the slots of a cache included.
        dim_k: the width of a query and a key, as the kernel gets them.
        dim_v: the width of a value.
        dtype: of queries, keys and values.
        device: cpu, cuda, rocm, tpu, ...
        bias_learns: the call's bias or T5's wants a gradient.
        given: what the call brought along, of `GIVEN`.
        options: what the config asks for beyond plain scores: softcap, alibi, t5, sinks, dropout.
        heads: H.
        batch: B.
    """

    rule: Rule
    queries: int
    keys: int
    dim_k: int
    dim_v: int
    dtype: str
    device: str
    bias_learns: bool
    given: frozenset[str]
    options: frozenset[str] = frozenset()
    heads: int = 1
    batch: int = 1

    @property
    def by_index(self) -> bool:
        """Positions are the default ones and queries and keys are the same tokens: causal may go by index."""
        return not self.given & MOVED and self.queries == self.keys

    @property
    def empty(self) -> str | None:
        """Why no kernel but the plain form and PyTorch's own take this call: it has no queries or no keys."""
        return None if self.queries and self.keys else f"there are no scores; got {self.queries} x {self.keys}"

    @property
    def added(self) -> frozenset[str]:
        """What is added to the scores: bias, alibi, t5."""
        return self.needs & {"bias", "alibi", "t5"}

    @property
    def learned(self) -> bool:
        """Whether what is added to the scores gets a gradient."""
        return self.bias_learns and bool(self.needs & {"bias", "t5"})

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


class Slower(str):
    """A reason not to choose a kernel that can run the call all the same: it may be forced."""

    __slots__ = ()


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
        if name == forced and reason is not None and not isinstance(reason, Slower):
            raise ValueError(f"kernel {name!r} cannot run this call: {reason}.")
        fits = name == forced if forced else reason is None and chosen is None
        chosen = name if fits else chosen
        rows.append(Row(name, fits, _said(reason, fits, forced)))
    return tuple(rows)


def check_name(names: Iterable[str], name: str | None) -> None:
    """Refuse an unknown kernel: "kernel must be one of plain; got 'fast'." """
    if name is not None and name not in names:
        raise ValueError(f"kernel must be one of {', '.join(names)}; got {name!r}.")


def check_form(cfg: Any, kernel: str | None) -> None:
    """Refuse a form of latent attention where no layer is latent.

    Raises:
        ValueError: "kernel 'absorbed' is a form of latent attention; got a config of grouped_query."
    """
    variants = [attention.variant for attention in cfg.attentions]
    if kernel in FORMS and "latent" not in variants:
        names = ", ".join(dict.fromkeys(variants))
        raise ValueError(f"kernel {kernel!r} is a form of latent attention; got a config of {names}.")


def _said(reason: str | None, fits: bool, forced: str | None) -> str:
    if fits:
        return "forced" if forced else "the first that can run this call"
    return reason or (f"{forced} is forced" if forced else "a faster kernel can run this call")


def options(cfg: Any, training: bool) -> frozenset[str]:
    """The options of a config that a kernel must know: softcap, alibi, t5, sinks, dropout."""
    used = {"softcap": cfg.softcap, "sinks": cfg.sinks, "dropout": training and cfg.dropout}
    used |= {"alibi": isinstance(cfg.position_bias, Alibi), "t5": isinstance(cfg.position_bias, Buckets)}
    return frozenset(name for name, value in used.items() if value)


def span(rule: Rule) -> tuple[int, int]:
    """How many positions behind itself and ahead of itself a query can see at most; FAR or more where there is no end.

    A window of 4 has (3, 0), chunks of 4 too, causal (FAR, 0), a symmetric window of 4 (3, 3).
    """
    if isinstance(rule, AllOf | AnyOf):
        behind, ahead = zip(*map(span, rule.of), strict=True)
        nearest = min if isinstance(rule, AllOf) else max
        return nearest(behind), nearest(ahead)
    # The last position of a chunk looks back the furthest; windows are the same everywhere.
    own = rule.width - 1 if isinstance(rule, Chunked) else 0
    low, high = rule.reach(own, own)
    return own - low, high - own


def check_attention(cfg: Any) -> None:
    """Refuse to explain a model: "explain takes the config of one attention; got that of a decoder." """
    if not isinstance(cfg, AttentionConfig):
        raise ValueError(f"explain takes the config of one attention; got that of a {cfg.variant}.")


def check_given(given: tuple[str, ...]) -> frozenset[str]:
    """Refuse words that `explain` does not know: "given must name some of valid, ...; got 'mask'." """
    for word in given:
        if word not in GIVEN:
            raise ValueError(f"given must name some of {', '.join(GIVEN)}; got {word!r}.")
    return frozenset(given)
