"""A covering array: few cases in which every two levels of two factors meet wherever they can.

Which pairs cannot meet is found out by asking. A pair is tried alone; beside what lets each of its levels stand, where
one does not stand alone; and beside every single other level. What is refused in all of these is called impossible.
"""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, product
from random import Random
from typing import NamedTuple

from tests.factors import FACTORS, NEUTRAL, Case, refusal

Level = tuple[str, str]
"""A factor, and one of its levels."""

Pair = frozenset[Level]

LONG = ("size", "1 x 131")
"""What takes long to compare."""


class Array(NamedTuple):
    """The cases that were drawn, and what is known of every pair.

    Attributes:
        cases: one level for each factor, the cases that cover most first.
        possible: the pairs that some case can have; all are in `cases`.
        impossible: why each other pair cannot be.
        absent: why each level of which there is no case at all cannot be; their pairs are not counted.
    """

    cases: tuple[Case, ...]
    possible: frozenset[Pair]
    impossible: dict[Pair, str]
    absent: dict[Level, str]

    def covered(self, cases) -> int:
        """How many possible pairs these cases have."""
        return len({pair for case in cases for pair in pairs(case)} & self.possible)

    def __str__(self) -> str:
        covered = f"{self.covered(self.cases):,} of {len(self.possible):,}".replace(",", " ")
        return f"{len(self.cases)} cases, {covered} possible pairs ({len(self.impossible)} impossible)"

    def reasons(self) -> Counter[str]:
        """How many pairs each refusal makes impossible."""
        return Counter(self.impossible.values())


def pairs(case: Case) -> Iterator[Pair]:
    """Every two levels of a case."""
    return (frozenset(pair) for pair in combinations(case.items(), 2))


@lru_cache
def covering_array(seed: int = 0) -> Array:
    """Cases that cover every possible pair, drawn greedily and the same for the same seed."""
    levels = [(factor, level) for factor, names in FACTORS.items() for level in names]
    supports, absent = {}, {}
    for level in levels:
        supports[level], reason = _supports(level)
        if not supports[level]:
            absent[level] = reason
    witnesses, impossible = {}, {}
    for one, other in combinations([level for level in levels if level not in absent], 2):
        if one[0] != other[0]:
            witness, reason = _witness(one, other, supports)
            if witness is None:
                impossible[frozenset((one, other))] = reason
            else:
                witnesses[frozenset((one, other))] = witness
    return Array(tuple(_drawn(witnesses, Random(seed))), frozenset(witnesses), impossible, absent)


def _supports(level: Level) -> tuple[list[Case], str]:
    """What lets a level stand: nothing, or each single other level; and the refusal where nothing does."""
    reason = refusal(NEUTRAL | dict([level]))
    if reason is None:
        return [{}], ""
    return [dict([other]) for other in _others(level) if refusal(NEUTRAL | dict([other, level])) is None], reason


def _others(*levels: Level) -> Iterator[Level]:
    taken = dict(levels)
    return ((factor, name) for factor, names in FACTORS.items() if factor not in taken for name in names[1:])


def _witness(one: Level, other: Level, supports: dict[Level, list[Case]]) -> tuple[Case | None, str]:
    """A case that has both levels; or a refusal, of both beside what lets each stand."""
    pair, reason = dict([one, other]), ""
    for first, second in product(supports[one], supports[other]):
        case = NEUTRAL | first | second | pair
        refused = refusal(case)
        if refused is None:
            return case, ""
        reason = reason or refused
    for level in _others(one, other):
        case = NEUTRAL | dict([level]) | pair
        if refusal(case) is None:
            return case, ""
    return None, reason


def _drawn(witnesses: dict[Pair, Case], rng: Random) -> Iterator[Case]:
    """Begin with a pair that is missing, and let every other factor take the level that adds the most."""
    missing, order = set(witnesses), list(witnesses)
    rng.shuffle(order)
    # A long case takes long: they are drawn last, for nothing but the pairs that need one.
    order.sort(key=lambda pair: LONG in pair)
    for pair in order:
        if pair in missing:
            case = _filled(dict(witnesses[pair]), pair, missing, rng)
            missing.difference_update(pairs(case))
            yield case


def _filled(case: Case, pair: Pair, missing: set[Pair], rng: Random) -> Case:
    free = [factor for factor in FACTORS if factor not in dict(pair) and factor != LONG[0]]
    rng.shuffle(free)
    fixed = dict(pair)
    for factor in free:
        gains = {
            level: sum(frozenset(((factor, level), other)) in missing for other in fixed.items())
            for level in FACTORS[factor]
        }
        ranked = sorted(FACTORS[factor], key=lambda level: (gains[level], rng.random()), reverse=True)
        case[factor] = next(level for level in ranked if refusal(case | {factor: level}) is None)
        fixed[factor] = case[factor]
    return case
