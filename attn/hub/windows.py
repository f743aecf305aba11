"""What config.json says of sliding windows: one for all layers, or a choice for each."""

from dataclasses import dataclass
from typing import Any

from attn.hub.facts import Facts, PerLayer
from attn.hub.fields import Fields, shared, size
from attn.masks import Causal, Rule, SlidingWindow

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Window:
    """One window for all layers, or none where the field is null; a file that lacks the field means `absent`."""

    absent: int | None = None
    name: str = "sliding_window"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def paths(self) -> tuple[str, ...]:
        return ("attention.mask",)

    def read(self, fields: Fields) -> Facts:
        width = fields.get(self.name, self.absent)
        mask = Causal() if width is None else SlidingWindow(width=size({self.name: width}, self.name))
        return {"attention.mask": mask}

    def write(self, facts: Facts) -> dict[str, Any]:
        return {self.name: width_of(shared(facts, "attention.mask"))}


@dataclass(frozen=True)
class LayerWindows:
    """One width, and for each layer whether it slides: by `layer_types`, or else from layer `max_window_layers` on."""

    width: int = 4096
    first: int = 28

    @property
    def names(self) -> tuple[str, ...]:
        return ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")

    @property
    def paths(self) -> tuple[str, ...]:
        return ("attention.mask",)

    def read(self, fields: Fields) -> Facts:
        used = fields.get("use_sliding_window")
        used = False if used is None else used
        if not isinstance(used, bool):
            raise ValueError(f"use_sliding_window must be true or false, not {used!r}")
        width = fields.get("sliding_window", self.width) if used else None
        window = Causal() if width is None else SlidingWindow(width=size({"sliding_window": width}, "sliding_window"))
        types = self._types(fields, width is not None)
        masks = PerLayer(window if kind == SLIDING else Causal() for kind in types)
        return {"attention.mask": masks[0] if len(set(types)) == 1 else masks}

    def _types(self, fields: Fields, used: bool) -> list[str]:
        layers = size(fields, "num_hidden_layers")
        types = fields.get("layer_types")
        if types is None:
            first = fields.get("max_window_layers")
            first = self.first if first is None else first
            if type(first) is not int:
                raise ValueError(f"max_window_layers must be an integer, not {first!r}")
            return [SLIDING if used and layer >= first else FULL for layer in range(layers)]
        if not isinstance(types, list) or len(types) != layers or not all(kind in (FULL, SLIDING) for kind in types):
            raise ValueError(f"layer_types must name {FULL} or {SLIDING} for each of {layers} layers, not {types!r}")
        if SLIDING in types and not used:
            raise ValueError(f"layer_types must name {FULL} alone where no window is used, not {types!r}")
        return types

    def write(self, facts: Facts) -> dict[str, Any]:
        masks, layers = facts["attention.mask"], facts["layers"]
        masks = masks if isinstance(masks, PerLayer) else (masks,) * layers
        widths = [width_of(mask) for mask in masks]
        slides = {width for width in widths if width is not None}
        if len(slides) > 1:
            raise ValueError(
                f"attention.mask must have one width in all layers, not {', '.join(map(str, sorted(slides)))}"
            )
        return {
            "use_sliding_window": bool(slides),
            "sliding_window": next(iter(slides), None),
            "max_window_layers": next((i for i, width in enumerate(widths) if width is not None), layers),
            "layer_types": [FULL if width is None else SLIDING for width in widths],
        }


def width_of(mask: Rule) -> int | None:
    """The width of a causal sliding window; None for the whole past."""
    if isinstance(mask, SlidingWindow) and not mask.symmetric:
        return mask.width
    if isinstance(mask, Causal):
        return None
    raise ValueError(f"attention.mask must be causal or a causal sliding window, not {mask!r}")
