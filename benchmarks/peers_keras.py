"""Keras on either backend. It reads its backend once, when it is imported: KERAS_BACKEND must be set before."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.cases import DIM, HEADS, WINDOW, Case
from benchmarks.comparing import Candidate

Weights = Mapping[str, np.ndarray]


def in_torch(case: Case, weights: Weights) -> Candidate:
    """The layer as a PyTorch module."""
    layer = _layer(case, weights)
    causal = case.rule != "full"
    parameters = [weight.value for weight in layer.trainable_weights]
    return Candidate(lambda x: layer(x, x, use_causal_mask=causal, training=False), parameters)


def in_jax(case: Case, weights: Weights) -> Candidate:
    """The layer as a function of its weights."""
    layer = _layer(case, weights)
    causal = case.rule != "full"
    fixed = [weight.value for weight in layer.non_trainable_weights]

    def function(parameters: Any, x: Any) -> Any:
        return layer.stateless_call(parameters, fixed, x, x, use_causal_mask=causal, training=False)[0]

    return Candidate(function, [weight.value for weight in layer.trainable_weights])


def _layer(case: Case, weights: Weights) -> Any:
    from keras import layers

    options = {"use_bias": False, "sliding_window": WINDOW if case.rule == "window" else None}
    if case.kv_heads == HEADS:
        layer = layers.MultiHeadAttention(HEADS, DIM // HEADS, **options)
    else:
        layer = layers.GroupQueryAttention(DIM // HEADS, HEADS, case.kv_heads, **options)
    shape = (1, case.T, DIM)
    layer.build(shape, shape)
    layer.set_weights([weights[f"{name}.kernel"] for name in ("q", "k", "v", "out")])
    return layer
