"""What config.json says of the sizes of attention, in both directions."""

from dataclasses import dataclass
from typing import Any

from attn.hub.facts import Facts
from attn.hub.fields import Fields, shared, size

GROUPED = ("grouped_query", "multi_head", "multi_query")
"""The variants that are grouped-query attention, two of them with a fixed number of groups."""


@dataclass(frozen=True)
class Width:
    """The model's width, which our attention and our MLP both state."""

    name: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def paths(self) -> tuple[str, ...]:
        return ("attention.input_dim", "mlp.input_dim")

    def read(self, fields: Fields) -> Facts:
        return dict.fromkeys(self.paths, size(fields, self.name))

    def write(self, facts: Facts) -> dict[str, Any]:
        return {self.name: facts["mlp.input_dim"]}


@dataclass(frozen=True)
class Heads:
    """How many heads there are, of queries and of keys and values, and how wide they are.

    Attributes:
        heads: the field of H.
        width: the field of M, from which D follows where no field says it.
        kv_heads: the field of K; None where K is always H, and the attention is multi-head.
        head_dim: the field of D; None where D is always M / H.
        divides: whether the format wants M to be a multiple of H whatever D is.
    """

    heads: str
    width: str
    kv_heads: str | None = None
    head_dim: str | None = None
    divides: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in (self.heads, self.kv_heads, self.head_dim) if name)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(f"attention.{name}" for name in ("variant", "heads", "kv_heads", "dim_k", "dim_v"))

    def read(self, fields: Fields) -> Facts:
        heads = size(fields, self.heads)
        head_dim = self._head_dim(fields, heads)
        own = {"variant": "multi_head", "heads": heads, "dim_k": heads * head_dim, "dim_v": heads * head_dim}
        if self.kv_heads:
            own |= {"variant": "grouped_query", "kv_heads": size(fields, self.kv_heads, absent=heads)}
        return {f"attention.{name}": value for name, value in own.items()}

    def _head_dim(self, fields: Fields, heads: int) -> int:
        if self.head_dim and fields.get(self.head_dim) is not None:
            return size(fields, self.head_dim)
        width = size(fields, self.width)
        if width % heads:
            raise ValueError(f"{self.heads} must divide {self.width}={width}, not {heads}")
        return width // heads

    def write(self, facts: Facts) -> dict[str, Any]:
        variant, heads, kv_heads, dim_k, dim_v = (shared(facts, path) for path in self.paths)
        width = facts["mlp.input_dim"]
        if variant not in GROUPED:
            raise ValueError(f"attention.variant must be one of {', '.join(GROUPED)}, not {variant!r}")
        if dim_k != dim_v:
            raise ValueError(f"attention.dim_v must be dim_k={dim_k}, not {dim_v}")
        if not self.kv_heads and kv_heads != heads:
            raise ValueError(f"attention.kv_heads must be heads={heads}, not {kv_heads}")
        if not self.head_dim and dim_k != width:
            raise ValueError(f"attention.dim_k must be input_dim={width}, not {dim_k}")
        if self.divides and width % heads:
            raise ValueError(f"attention.heads must divide input_dim={width}, not {heads}")
        values = {self.heads: heads, self.kv_heads: kv_heads, self.head_dim: dim_k // heads}
        return {name: value for name, value in values.items() if name}
