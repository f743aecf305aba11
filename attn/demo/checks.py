"""What the demo claims, and what it found."""

from typing import NamedTuple


class Check(NamedTuple):
    """A claim, the measurement that decides it, and whether it holds."""

    claim: str
    found: str
    holds: bool
