"""The arguments of a call, checked once for both twins and the reference, so that all speak the same text."""

from typing import Any

from attn.letters import bind
from attn.variants.base import AttentionConfig

SCORE_AXES = ("T S", "B T S", "B|1 H|1 T S")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
FLOATS = ("float64", "float32", "bfloat16", "float16")


def dtype_name(array: Any) -> str:
    """The name of an array's dtype, the same for numpy, JAX and PyTorch."""
    return str(array.dtype).removeprefix("torch.")


def check_call(
    cfg: AttentionConfig,
    x: Any,
    context: Any = None,
    *,
    allowed: Any = None,
    bias: Any = None,
    positions: Any = None,
    valid: Any = None,
    segments: Any = None,
    context_positions: Any = None,
    context_valid: Any = None,
    context_segments: Any = None,
    slots: int | None = None,
    cached: bool = False,
) -> dict[str, int]:
    """Refuse a call whose arguments contradict the config or each other; return the size of every letter.

    `slots` is the number of slots of a cache: with one, `allowed` and `bias` span its slots. `cached` says that a cache
    may hold the context already.

    Raises:
        ValueError: one sentence that names the argument, what it must be, and what it was.
    """
    _check_context(cfg, context, cached, context_positions, context_valid, context_segments, segments)
    sizes = cfg.sizes()
    if context is not None:
        sizes = bind(sizes, x=(x.shape, "B T M"), context=(context.shape, "B S X"))
    else:
        sizes = bind(sizes, x=(x.shape, "B T M"))
        sizes["S"] = sizes["T"]
    for name, array in (("positions", positions), ("valid", valid), ("segments", segments)):
        _check_row(sizes, name, array, "T")
    if context is not None:
        _check_row(sizes, "context_positions", context_positions, "S")
        _check_row(sizes, "context_valid", context_valid, "S")
        _check_row(sizes, "context_segments", context_segments, "S")
    if slots is not None and context is None:
        sizes["S"] = slots
    for name, array, dtypes in (("allowed", allowed, ("bool",)), ("bias", bias, FLOATS)):
        if array is not None:
            bind(sizes, **{name: (array.shape, *SCORE_AXES)})
            check_dtype(name, array, dtypes)
    return sizes


def check_dtype(name: str, array: Any, dtypes: tuple[str, ...]) -> None:
    """Refuse an array of another dtype: "valid has dtype int64; expected bool." """
    if dtype_name(array) not in dtypes:
        expected = "an integer type" if dtypes is INTEGERS else " or ".join(dtypes)
        raise ValueError(f"{name} has dtype {dtype_name(array)}; expected {expected}.")


def _check_row(sizes: dict[str, int], name: str, array: Any, axis: str) -> None:
    if array is not None:
        bind(sizes, **{name: (array.shape, axis, f"B {axis}")})
        check_dtype(name, array, ("bool",) if name.endswith("valid") else INTEGERS)


def _check_context(cfg, context, cached, context_positions, context_valid, context_segments, segments) -> None:
    if cfg.reads is None:
        given = {"context": context, "context_positions": context_positions}
        given |= {"context_valid": context_valid, "context_segments": context_segments}
        for name, array in given.items():
            if array is not None:
                shape = tuple(array.shape)
                raise ValueError(f"{name} is not read by a config without context_dim; got an array of shape {shape}.")
    elif context is None and cached:
        _check_absent(context_positions, context_valid, context_segments)
    elif context is None:
        raise ValueError(f"context is required, for keys and values of width {cfg.reads}; got None.")
    elif (segments is None) != (context_segments is None):
        got = "segments" if context_segments is None else "context_segments"
        raise ValueError(f"segments and context_segments must be given together; got only {got}.")


def _check_absent(context_positions, context_valid, context_segments) -> None:
    given = {"context_positions": context_positions, "context_valid": context_valid}
    for name, array in (given | {"context_segments": context_segments}).items():
        if array is not None:
            raise ValueError(f"{name} must come with the context it describes; got no context.")


def check_tokens(
    cfg: Any, tokens: Any, *, positions: Any = None, valid: Any = None, segments: Any = None
) -> dict[str, int]:
    """Refuse a model's call whose tokens or rows have another shape or dtype; return the size of every letter."""
    sizes = bind(cfg.sizes(), tokens=(tokens.shape, "B T"))
    check_dtype("tokens", tokens, INTEGERS)
    for name, array in (("positions", positions), ("valid", valid), ("segments", segments)):
        _check_row(sizes, name, array, "T")
    return sizes


def check_range(name: str, lowest: int, highest: int, size: int) -> None:
    """Refuse numbers outside 0..size-1: "tokens must lie between 0 and 511; got 512." """
    if lowest < 0 or highest >= size:
        raise ValueError(f"{name} must lie between 0 and {size - 1}; got {lowest if lowest < 0 else highest}.")
