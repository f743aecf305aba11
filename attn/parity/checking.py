"""Comparing the implementations of a config: each twin with the reference, and the twins with one another."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import pairwise
from types import ModuleType

import numpy as np

from attn.backends import BACKENDS, backend
from attn.config import Config
from attn.models.decoder import DecoderConfig
from attn.parity.directions import derivatives, directions, gradient_error, value
from attn.parity.inputs import Inputs, draw
from attn.parity.report import Report, Row
from attn.parity.typical import typical
from attn.tolerance import bound, by_row, check_dtype, row_error
from attn.variants.base import AttentionConfig

WORST_PRODUCT = 1e-5
"""A float32 product that is further off than this was not computed in float32."""

Found = tuple[np.ndarray, dict[str, np.ndarray]]
"""y, and the gradients by row."""

Steps = tuple[np.ndarray, np.ndarray]
"""Directions of one tensor, and the reference's derivatives along them."""


def check(
    cfg: AttentionConfig | DecoderConfig,
    dtype: str = "float32",
    *,
    batch: int = 2,
    queries: int = 11,
    keys: int | None = None,
    seed: int = 0,
    arguments: tuple[str, ...] = (),
) -> Report:
    """Compare outputs, input gradients and weight gradients of a config in every implementation that is installed.

    Every implementation gets the same numbers. A twin's output is compared with the float64 reference row by row, its
    gradients along eight directions (the reference differentiates by complex steps); the twins' outputs and whole
    gradients are compared with one another row by row. The bounds are `attn.tolerance.bound`'s, for a model of L layers
    with sqrt(L).

    Args:
        cfg: an attention variant or a model; a model reads tokens, and has weight gradients only.
        dtype: float64, float32, float16 or bfloat16. Parity is established in the first two; in half types gradients
            are too coarse to say more than that the dtypes flow, and the bounds are as wide.
        batch: the number of sequences.
        queries: the length of x.
        keys: the length of the context, for a config that reads one; 19 unless given.
        seed: what weights, inputs and arguments are drawn from.
        arguments: what the call brings along, of valid, segments, positions, allowed, bias.

    Raises:
        ValueError: an argument is not one of the above, or float32 products are too coarse here to compare anything.
        ModuleNotFoundError: neither twin's framework is installed.
    """
    check_dtype(dtype)
    reads = getattr(cfg, "reads", None)
    keys = 19 if keys is None and reads is not None else keys

    def drawn(seed: int) -> Inputs:
        return draw(cfg, dtype, batch=batch, queries=queries, keys=keys, seed=seed, arguments=arguments)

    inputs = drawn(seed)
    twins, notes = _twins()
    for name, twin in twins.items():
        _check_products(name, twin.matmul_error())
    found = {name: _found(cfg, inputs, twin, dtype) for name, twin in twins.items()}
    steps = {name: _steps(cfg, inputs, name, seed) for name in inputs.real()}
    S, depth = queries if keys is None else keys, getattr(cfg, "layers", 1)
    bounds = {gradient: bound(cfg, queries, S, dtype, gradient, depth, batch=batch) for gradient in (False, True)}
    least = typical(cfg, next(iter(twins.values())), drawn, seed)
    rows = (*_with_reference(value(cfg, inputs), steps, found, bounds, least), *_between(found, bounds, least))
    return Report(cfg.variant, dtype, tuple(arguments), batch, queries, S, rows, notes)


def _twins() -> tuple[dict[str, ModuleType], tuple[str, ...]]:
    twins, missing = {}, []
    # PyTorch first: after JAX its import can crash the process.
    for name in sorted(BACKENDS, reverse=True):
        try:
            twins[name] = import_module(f"{backend(name).__name__}.gradients")
        except ModuleNotFoundError as error:
            missing.append(error)
    if not twins:
        raise missing[0]
    return twins, tuple(f"{error} Only {', '.join(twins)} and the reference are compared." for error in missing)


def _check_products(name: str, error: float) -> None:
    if not error <= WORST_PRODUCT:
        raise ValueError(
            f"float32 products of {name} must be within {WORST_PRODUCT:g} here to compare anything; got {error:.1e}."
        )


def _found(cfg: Config, inputs: Inputs, twin: ModuleType, dtype: str) -> Found:
    y, gradients = twin.value_and_gradients(cfg, *inputs, dtype)
    return y, by_row(cfg, gradients)


def _steps(cfg: Config, inputs: Inputs, name: str, seed: int) -> Steps:
    along = directions(name, inputs.real()[name].shape, seed)
    return along, derivatives(cfg, inputs, name, along)


def _with_reference(
    y: np.ndarray,
    steps: Mapping[str, Steps],
    found: Mapping[str, Found],
    bounds: Mapping[bool, float],
    least: Mapping[str, float],
) -> Iterator[Row]:
    for twin, (actual, gradients) in found.items():
        yield Row("y", f"{twin} / reference", row_error(actual, y), bounds[False])
        for name, (along, expected) in steps.items():
            error = gradient_error(gradients[name], along, expected, least[name])
            yield Row(f"gradient of {name}", f"{twin} / reference", error, bounds[True])


def _between(found: Mapping[str, Found], bounds: Mapping[bool, float], least: Mapping[str, float]) -> Iterator[Row]:
    for first, second in pairwise(found):
        (y, gradients), (expected_y, expected) = found[first], found[second]
        yield Row("y", f"{first} / {second}", row_error(y, expected_y), bounds[False])
        for name, gradient in gradients.items():
            error = row_error(gradient, expected[name], least[name])
            yield Row(f"gradient of {name}", f"{first} / {second}", error, bounds[True])
