"""What config.json says of multipliers that depend on the depth or on the width of a model."""

from dataclasses import dataclass
from math import inf, nextafter, sqrt
from typing import Any

from attn.hub.facts import Facts
from attn.hub.fields import Fields, size


def given(fields: Fields, name: str) -> Any:
    """A field that must be there, be it null: what its absence means, readers do not agree on."""
    if name not in fields:
        raise ValueError(f"{name} is missing")
    return fields[name]


@dataclass(frozen=True)
class DepthScale:
    """residual_scale = scale_depth / sqrt(layers), or 1 where the field is null."""

    name: str = "scale_depth"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def paths(self) -> tuple[str, ...]:
        return ("residual_scale",)

    def read(self, fields: Fields) -> Facts:
        value = given(fields, self.name)
        if value is None:
            return {"residual_scale": 1.0}
        if type(value) not in (int, float) or value <= 0:
            raise ValueError(f"{self.name} must be a positive number, not {value!r}")
        return {"residual_scale": value / sqrt(size(fields, "num_hidden_layers"))}

    def write(self, facts: Facts) -> dict[str, Any]:
        root, scale = sqrt(facts["layers"]), facts["residual_scale"]
        near = scale * root
        # The product is rounded: a neighbour may be the number that was read, and is so if it has few digits.
        exact = [value for value in (near, nextafter(near, 0), nextafter(near, inf)) if value / root == scale]
        if not exact:
            text = f"residual_scale must be a {self.name} / sqrt(layers), such as {near / root!r}, not {scale!r}"
            raise ValueError(text)
        return {self.name: min(exact, key=lambda value: len(repr(value)))}


@dataclass(frozen=True)
class WidthScale:
    """logit_scale = dim_model_base / hidden_size, or 1 where the field is null."""

    name: str = "dim_model_base"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def paths(self) -> tuple[str, ...]:
        return ("logit_scale",)

    def read(self, fields: Fields) -> Facts:
        if given(fields, self.name) is None:
            return {"logit_scale": 1.0}
        return {"logit_scale": size(fields, self.name) / size(fields, "hidden_size")}

    def write(self, facts: Facts) -> dict[str, Any]:
        width, scale = facts["mlp.input_dim"], facts["logit_scale"]
        base = max(round(scale * width), 1)
        if base / width != scale:
            raise ValueError(f"logit_scale must be a whole number / input_dim, such as {base / width!r}, not {scale!r}")
        return {self.name: base}
