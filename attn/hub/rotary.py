"""What config.json says of rotary positions, in its old form and in its new one."""

from dataclasses import dataclass
from typing import Any, Literal

from attn.hub.facts import Facts
from attn.hub.fields import Fields, shared, size
from attn.rope import DynamicRope, LinearRope, Llama3Rope, LongRope, Rope, Rotation, YarnRope

Layout = Literal["half", "interleaved"]

ORIGINAL, LONGEST = "original_max_position_embeddings", "max_position_embeddings"
YARN = ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate")

KINDS: dict[str, tuple[type[Rotation], tuple[str, ...]]] = {
    "default": (Rope, ()),
    "linear": (LinearRope, ("factor",)),
    "dynamic": (DynamicRope, ("factor",)),
    "llama3": (Llama3Rope, ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL)),
    "yarn": (YarnRope, (*YARN, ORIGINAL)),
    "longrope": (LongRope, ("factor", "short_factor", "long_factor", "attention_factor", ORIGINAL)),
}
"""Every rope_type that we implement: our class, and the keys that it takes besides rope_theta."""

OLD_KINDS = {"su": "longrope"}
OURS = {ORIGINAL: "original_length"}
TYPES = ("rope_type", "type")


@dataclass(frozen=True)
class Rotary:
    """Rotary positions over the whole width of a head, or over all the numbers that a latent attention turns.

    New form: `rope_parameters`, an object with rope_type and rope_theta. Old form: `rope_theta`, and `rope_scaling`,
    which is null or an object with rope_type, or with type. What an object says goes before what stands beside it;
    the theta that nobody says is the format's own. A file that has neither form is refused, never read with defaults:
    a reader that knows one form alone takes files of the other for such files, and gets theta wrong.

    Attributes:
        theta: the format's own.
        layout: which numbers of a head form a pair, as the file has them.
        length: the longest text that is declared where our config does not say.
        interleave: a field that says whether pairs are interleaved; where it is absent, `layout` is.
    """

    theta: float = 10000.0
    layout: Layout = "half"
    length: int = 2048
    interleave: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        own = () if self.interleave is None else (self.interleave,)
        return ("rope_parameters", "rope_theta", "rope_scaling", LONGEST, ORIGINAL, *own)

    @property
    def paths(self) -> tuple[str, ...]:
        return ("attention.rope",)

    def read(self, fields: Fields) -> Facts:
        said = _said(fields)
        kind = _kind(said)
        make, keys = KINDS[kind]
        theta = _first(said.get("rope_theta"), fields.get("rope_theta"), self.theta)
        own = {key: value for key, value in said.items() if value is not None and key not in (*TYPES, "rope_theta")}
        if own.get("partial_rotary_factor") == 1:
            del own["partial_rotary_factor"]
        if extra := own.keys() - {*keys}:
            raise ValueError(f"rope_type {kind!r} takes no {', '.join(sorted(extra))}, it has {said}")
        own |= _lengths(kind, own, fields)
        own = {OURS.get(key, key): value for key, value in own.items()}
        lacking = [name for name, field in make.model_fields.items() if field.is_required() and name not in own]
        if lacking:
            raise ValueError(f"rope_type {kind!r} needs {', '.join(lacking)}, it has {said}")
        return {"attention.rope": make(theta=theta, layout=self._layout(fields), **own)}

    def _layout(self, fields: Fields) -> Layout:
        if self.interleave is None or self.interleave not in fields:
            return self.layout
        interleaved = fields[self.interleave]
        # Null reads as false in transformers, and as the default elsewhere.
        if not isinstance(interleaved, bool):
            raise ValueError(f"{self.interleave} must be true or false, not {interleaved!r}")
        return "interleaved" if interleaved else "half"

    def write(self, facts: Facts) -> dict[str, Any]:
        rope = shared(facts, "attention.rope")
        if rope is None:
            raise ValueError(f"attention.rope must be one of {', '.join(KINDS)}, not None")
        width, whole = shared(facts, "attention.rope_dim"), "all of rope_dim"
        if width is None:
            width, whole = shared(facts, "attention.dim_k") // shared(facts, "attention.heads"), "the whole head's"
        if rope.rotated(width) != width:
            raise ValueError(f"attention.rope.width must be {width}, {whole}, not {rope.width}")
        if rope.float32:
            raise ValueError("attention.rope.float32 must be False, a file cannot say it, not True")
        said = {key: getattr(rope, OURS.get(key, key)) for key in KINDS[rope.kind][1]}
        said = {key: list(value) if isinstance(value, tuple) else value for key, value in said.items()}
        said = {key: value for key, value in said.items() if value is not None}
        original = getattr(rope, "original_length", None)
        longest = self.length if original is None else original
        if ORIGINAL in said:
            longest = int(longest * max(rope.factor, 1.0))
        layout = {} if self.interleave is None else {self.interleave: rope.layout == "interleaved"}
        return {"rope_parameters": {"rope_theta": rope.theta, "rope_type": rope.kind} | said, LONGEST: longest} | layout


def _said(fields: Fields) -> dict[str, Any]:
    """The object that describes the rotary positions, empty where only theta is said."""
    new, old = fields.get("rope_parameters"), fields.get("rope_scaling")
    # Files of the time when only the scaling could be chosen say `"rope_scaling": null` and mean the default.
    if new is None and fields.get("rope_theta") is None and "rope_scaling" not in fields:
        raise ValueError("it says nothing of rotary positions, neither rope_parameters nor rope_theta is there")
    if new and old and new != old:
        raise ValueError(f"rope_parameters and rope_scaling must agree, they are {new} and {old}")
    said = new or old or {}
    if not isinstance(said, dict):
        raise ValueError(f"rope_parameters must be an object, not {said!r}")
    return said


def _kind(said: dict[str, Any]) -> str:
    kinds = [said[key] for key in TYPES if said.get(key) is not None] or ["default"]
    kinds = [OLD_KINDS.get(kind, kind) if isinstance(kind, str) else kind for kind in kinds]
    if kinds[0] != kinds[-1]:
        raise ValueError(f"rope_type and type must agree, they are {kinds[0]!r} and {kinds[-1]!r}")
    if not isinstance(kinds[0], str) or kinds[0] not in KINDS:
        raise ValueError(f"rope_type must be one of {', '.join(KINDS)}, not {kinds[0]!r}")
    return kinds[0]


def _lengths(kind: str, own: dict[str, Any], fields: Fields) -> dict[str, Any]:
    """The length that a rope was made for, and the factor that follows from it, where they stand outside its object."""
    if kind == "dynamic":
        return {ORIGINAL: size(fields, LONGEST)}
    if ORIGINAL not in KINDS[kind][1]:
        return {}
    original = _first(fields.get(ORIGINAL), own.get(ORIGINAL), fields.get(LONGEST))
    original = size({ORIGINAL: original}, ORIGINAL)
    if kind in ("yarn", "longrope") and "factor" not in own:
        return {ORIGINAL: original, "factor": size(fields, LONGEST) / original}
    return {ORIGINAL: original}


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
