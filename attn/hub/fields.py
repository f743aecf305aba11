"""What a field of config.json says of our config, in both directions.

An aspect ties some foreign fields to some facts of ours. It raises a clause, "norm.kind must be 'rms', not 'layer'",
which the engine joins with those of the others into one report.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from attn.hub.facts import Facts, PerLayer

Fields = Mapping[str, Any]

REQUIRED: Any = object()
"""In place of a default: the field must be there."""


class Aspect(Protocol):
    """One of the classes below.

    Attributes:
        names: the foreign fields that it reads and writes.
        paths: the facts of ours that it says.
    """

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def paths(self) -> tuple[str, ...]: ...

    def read(self, fields: Fields) -> Facts:
        """Our facts."""
        ...

    def write(self, facts: Facts) -> dict[str, Any]:
        """The foreign fields."""
        ...


def size(fields: Fields, name: str, absent: Any = REQUIRED) -> int:
    """A field that counts something; null is as good as absent."""
    value = fields.get(name)
    value = absent if value is None else value
    if value is REQUIRED:
        raise ValueError(f"{name} is missing")
    # True is an int too.
    if type(value) is not int or value <= 0:
        raise ValueError(f"{name} must be a positive integer, not {value!r}")
    return value


def shared(facts: Facts, path: str) -> Any:
    """A fact that a format says once for all layers; None where a config has no such field."""
    value = facts.get(path)
    if isinstance(value, PerLayer):
        raise ValueError(f"{path} must be the same in every layer")
    return value


class Times(NamedTuple):
    """A default that follows from another field."""

    name: str
    factor: int


@dataclass(frozen=True)
class Field:
    """One field that is one fact.

    Attributes:
        name: the field.
        path: the fact.
        absent: what a file means that lacks the field, or has null there.
        values: pairs of the field's value and ours, where they differ; to write, the first one that fits is taken.
    """

    name: str
    path: str
    absent: Any = REQUIRED
    values: tuple[tuple[Any, Any], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,)

    def read(self, fields: Fields) -> Facts:
        value = fields.get(self.name)
        if value is None:
            value = self.absent
        if value is REQUIRED:
            raise ValueError(f"{self.name} is missing")
        if isinstance(value, Times):
            value = size(fields, value.name) * value.factor
        if not self.values:
            return {self.path: value}
        for foreign, ours in self.values:
            if type(foreign) is type(value) and foreign == value:
                return {self.path: ours}
        known = ", ".join(repr(foreign) for foreign, _ in self.values)
        raise ValueError(f"{self.name} must be one of {known}, not {value!r}")

    def write(self, facts: Facts) -> dict[str, Any]:
        value = shared(facts, self.path)
        if not self.values:
            return {self.name: value}
        for foreign, ours in self.values:
            if ours == value:
                return {self.name: foreign}
        known = ", ".join(dict.fromkeys(repr(ours) for _, ours in self.values))
        raise ValueError(f"{self.path} must be one of {known}, not {value!r}")


@dataclass(frozen=True)
class Always:
    """Facts that the format fixes and no field says."""

    facts: tuple[tuple[str, Any], ...]

    @property
    def names(self) -> tuple[str, ...]:
        return ()

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for path, _ in self.facts)

    def read(self, fields: Fields) -> Facts:
        return dict(self.facts)

    def write(self, facts: Facts) -> dict[str, Any]:
        wrong = [(path, value) for path, value in self.facts if facts.get(path) != value]
        if wrong:
            clauses = (f"{path} must be {value!r}, not {facts.get(path)!r}" for path, value in wrong)
            raise ValueError("; ".join(clauses))
        return {}


@dataclass(frozen=True)
class TrainingOnly:
    """A fact that matters in training alone: written, and not read, so that a model computes the same in both modes."""

    name: str
    path: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,)

    def read(self, fields: Fields) -> Facts:
        return {}

    def write(self, facts: Facts) -> dict[str, Any]:
        return {self.name: shared(facts, self.path)}
