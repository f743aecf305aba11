"""What every config is: frozen, strict, hashable, and the same JSON wherever it is written."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_serializer
from pydantic_core import to_json

from attn.layout import Layout, leaves

Size = Annotated[int, Field(gt=0)]


def check_eps(eps: float) -> float:
    """What a norm adds to its squares: enough that a vector of zeros, as padding is, stays 0 in float32."""
    if eps < 1e-30:
        raise ValueError(f"eps must be at least 1e-30; got {eps}.")
    return eps


Eps = Annotated[float, AfterValidator(check_eps)]


def as_tuple(value: Any) -> Any:
    """A list, as a person or JSON writes it, becomes the tuple that a frozen config holds."""
    return tuple(value) if isinstance(value, list) else value


Tuple = BeforeValidator(as_tuple)


class Frozen(BaseModel):
    """A value: equal, hashable, unchangeable. Unknown keys and values of a neighbouring type are refused."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    def replace(self, **changes: Any) -> Self:
        """The same config with some fields changed, validated again; derived defaults that were not given follow."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**(given | changes))

    def to_json(self) -> str:
        """JSON with every field, defaults included: first the class's own in their order, then the inherited ones."""
        return json.dumps(self.model_dump(mode="json"), indent=2) + "\n"

    @model_serializer(mode="wrap")
    def _own_fields_first(self, serialize: Any) -> dict[str, Any]:
        fields = serialize(self)
        return {name: fields[name] for name in sorted(fields, key=lambda name: name not in type(self).__annotations__)}


class Config(Frozen):
    """A config that has parameters: an attention variant, a block, a model."""

    def layout(self) -> Layout:
        """The parts that hold parameters, by name."""
        return {}

    def sizes(self) -> dict[str, int]:
        """The size of each letter that the layout and the call use."""
        return {}

    def children(self) -> dict[str, "Config"]:
        """Configs whose parts stand below this one's, by the path that leads to them."""
        return {}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The neutral weights: name to shape, `{"q.kernel": (64, 8, 8), ...}`."""
        return {leaf.name: leaf.shape for leaf in leaves(self)}


def read_json(source: str | Path | Mapping[str, Any]) -> str:
    """The JSON text behind a path to a file, a path to a checkpoint folder, or a dict, which may hold configs."""
    if isinstance(source, Mapping):
        return to_json(dict(source)).decode()
    path = Path(source)
    return (path / "config.json" if path.is_dir() else path).read_text(encoding="utf-8")
