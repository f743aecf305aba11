"""A decoder's config as flat facts, `{"attention.heads": 8, ...}`, so that a page can account for each of them."""

from typing import Any

from attn.config import Frozen
from attn.models import DecoderConfig
from attn.models.mlp import MLPConfig
from attn.models.norm import NormConfig
from attn.variants import VARIANTS

Facts = dict[str, Any]

PARTS = ("attention", "mlp", "norm")
"""The fields of a decoder that are configs themselves."""


class PerLayer(tuple):
    """One value for each layer, where layers differ."""


def facts_of(cfg: DecoderConfig) -> Facts:
    """Every field of a decoder's config under its path; `attention.bias` has an answer for each projection."""
    facts = {name: value for name, value in _own(cfg).items() if name not in ("variant", *PARTS)}
    for name in PARTS[1:]:
        facts |= {f"{name}.{key}": value for key, value in _own(getattr(cfg, name)).items()}
    layers = [_attention_facts(attention) for attention in cfg.attentions]
    for name in dict.fromkeys(name for layer in layers for name in layer):
        values = PerLayer(layer.get(name) for layer in layers)
        facts[name] = values[0] if all(value == values[0] for value in values) else values
    return facts


def defaults_of(cfg: DecoderConfig) -> Facts:
    """The value that each fact would have if nothing had been said; facts that must be said are left out."""
    kinds = {"": DecoderConfig, "mlp.": MLPConfig, "norm.": NormConfig, "attention.": type(cfg.attentions[0])}
    defaults: Facts = {}
    for prefix, kind in kinds.items():
        for name, field in kind.model_fields.items():
            if not field.is_required() and field.default_factory is None:
                defaults[prefix + name] = field.default
    attention: Any = cfg.attentions[0]
    return defaults | {"attention.bias": (False,) * len(attention.projections)}


def config_of(facts: Facts) -> DecoderConfig:
    """The config that facts describe.

    Raises:
        ValueError: (pydantic's) naming the field, the rule and what was received.
    """
    attention = _attention(facts, 0)
    if any(isinstance(value, PerLayer) for value in facts.values()):
        attention = tuple(_attention(facts, layer) for layer in range(facts["layers"]))
    own = {name: value for name, value in facts.items() if "." not in name}
    mlp, norm = MLPConfig(**_below(facts, "mlp")), NormConfig(**_below(facts, "norm"))
    return DecoderConfig(**own, attention=attention, mlp=mlp, norm=norm)


def _own(cfg: Frozen) -> Facts:
    return {name: getattr(cfg, name) for name in type(cfg).model_fields}


def _attention_facts(cfg: Any) -> Facts:
    # A multi-head or multi-query attention has kv_heads too, as a consequence.
    own = _own(cfg) | {"kv_heads": cfg.kv_heads, "bias": tuple(cfg.biased(cfg.projections).values())}
    return {f"attention.{name}": value for name, value in own.items()}


def _attention(facts: Facts, layer: int) -> Any:
    own = {}
    for name, value in _below(facts, "attention").items():
        own[name] = value[layer] if isinstance(value, PerLayer) else value
    bias = own.get("bias")
    if isinstance(bias, tuple) and len(set(bias)) == 1:
        own["bias"] = bias[0]
    return VARIANTS[own["variant"]](**own)


def _below(facts: Facts, path: str) -> Facts:
    return {name.removeprefix(f"{path}."): value for name, value in facts.items() if name.startswith(f"{path}.")}
