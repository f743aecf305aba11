"""Mistakes that people make, as what the reference is asked instead: another config, other weights, another call."""

from math import sqrt
from typing import Any

import numpy as np

import attn


def option(**changes: Any):
    """Another config."""
    return lambda cfg, inputs: (cfg.replace(**changes), inputs)


def wider(cfg, inputs):
    """A window that does not count the query itself."""
    return cfg.replace(mask=attn.SlidingWindow(width=cfg.mask.width + 1)), inputs


def scaled_by_another_width(cfg, inputs):
    """1/sqrt(D+1)."""
    return cfg.replace(scale=1 / sqrt(cfg.head_dim + 1)), inputs


def other_eps(cfg, inputs):
    """The other framework's default."""
    return cfg.replace(norm=cfg.norm.replace(eps=1e-6)), inputs


def wider_in_a_layer(cfg, inputs):
    """A window of one more in the last layer."""
    *others, last = cfg.attentions
    last, _ = wider(last, None)
    return cfg.replace(attention=(*others, last)), inputs


def under(mask):
    """The causal variant under another rule: that of a self-attention with the same weights."""

    def mutate(cfg, inputs):
        fields = {name: getattr(cfg, name) for name in ("input_dim", "dim_k", "dim_v", "bias", "rope")}
        return attn.SelfAttentionConfig(**fields, mask=mask), inputs

    return mutate


def changed(ending: str, change):
    """Other weights, wherever a name ends so."""

    def mutate(cfg, inputs):
        moved = {name: change(array) if name.endswith(ending) else array for name, array in inputs.weights.items()}
        return cfg, inputs._replace(weights=moved)

    return mutate


def exchanged(first: str, second: str):
    """Two parts in each other's place, wherever they stand."""

    def other(name: str) -> str:
        if f"{first}." in name:
            return name.replace(first, second)
        return name.replace(second, first)

    def mutate(cfg, inputs):
        return cfg, inputs._replace(weights={name: inputs.weights[other(name)] for name in inputs.weights})

    return mutate


def tiled(cfg, inputs):
    """Query head h reads key/value head h % K instead of h // G: the reference with its query heads so reordered."""
    order = np.arange(cfg.heads).reshape(-1, cfg.kv_heads).T.reshape(-1)
    given = inputs.weights
    moved = {"q.kernel": given["q.kernel"][:, order], "q.bias": given["q.bias"][order]}
    return cfg, inputs._replace(weights=given | moved | {"out.kernel": given["out.kernel"][order]})


def without(name: str):
    """The same call without one argument, on either side."""

    def mutate(cfg, inputs):
        left = {key: array for key, array in inputs.call.items() if key.removeprefix("context_") != name}
        return cfg, inputs._replace(call=left)

    return mutate


def called(**arguments: Any):
    """The same call with another argument, each made of the inputs."""

    def mutate(cfg, inputs):
        made = {name: make(inputs) for name, make in arguments.items()}
        return cfg, inputs._replace(call=inputs.call | made)

    return mutate
