"""Cutting a call into blocks of queries, each with only the keys that it can see."""

from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from attn.kernels import MOVED, span
from attn.masks import Rule
from attn_torch.scope import Scope
from attn_torch.tokens import Tokens


class Cut(NamedTuple):
    """A block of queries and the keys that it can see: the first of each, and the one after the last."""

    i: int
    j: int
    low: int
    high: int

    @property
    def queries(self) -> slice:
        """The block's queries."""
        return slice(self.i, self.j)

    @property
    def keys(self) -> slice:
        """The keys that they can see."""
        return slice(self.low, self.high)


def cuts(rule: Rule, given: frozenset[str], queries: int, keys: int, size: int) -> list[Cut]:
    """Blocks of about `size` queries, all alike but the last.

    With default positions a distance in positions is one in indices, in each segment too: a segment is a run. Padding
    between two tokens adds to their distance in indices; still, no key that comes later can have an earlier position.
    """
    far = queries + keys
    behind, ahead = span(rule) if not given & MOVED and queries == keys else (far, far)
    if "valid" in given:
        behind, ahead = far, far if ahead else 0
    number = max(1, -(-queries // size))
    bounds = [*range(0, queries, max(1, -(-queries // number))), queries]
    return [Cut(i, j, max(0, i - behind), min(keys, j + ahead)) for i, j in pairwise(bounds)]


def share(blocks: list[Cut], queries: int, keys: int) -> float:
    """The share of all pairs of a query and a key that the blocks contain."""
    return sum((block.j - block.i) * (block.high - block.low) for block in blocks) / (queries * keys)


def within(scope: Scope, block: Cut) -> Scope:
    """The scope of a block."""
    queries = Tokens(*(_columns(tokens, block.queries) for tokens in scope.queries))
    keys = Tokens(*(_columns(tokens, block.keys) for tokens in scope.keys))
    return Scope(queries, keys, pairs(scope.allowed, block), given=scope.given)


def pairs(array: Tensor | None, block: Cut) -> Tensor | None:
    """The block of an array [B|1 H|1 T S]."""
    return None if array is None else array[:, :, block.queries, block.keys]


def _columns(array: Tensor | None, part: slice) -> Tensor | None:
    return None if array is None else array[:, part]
