"""How far two correct computations may part: one metric, and one bound that no one picks by hand.

The bound counts what rounding does: each tensor that is stored on the longest path rounds once, each sum over K
products loses about sqrt(K) units of its accumulator. Nothing else enters, so a bound that is exceeded means a
different function, not bad luck.
"""

from collections.abc import Mapping
from math import prod, sqrt

import numpy as np

from attn.config import Config
from attn.layout import Projection, leaves
from attn.letters import shape_of
from attn.mathematics.decoder import ROUNDINGS as DECODER
from attn.mathematics.latent import ROUNDINGS as LATENT
from attn.mathematics.softmax import ROUNDINGS as SOFTMAX
from attn.models.decoder import DecoderConfig
from attn.variants.base import AttentionConfig
from attn.variants.latent.latent import MultiHeadLatentAttentionConfig
from attn.variants.softmax.base import SoftmaxConfig

ROUNDINGS = {SoftmaxConfig: SOFTMAX, MultiHeadLatentAttentionConfig: LATENT, DecoderConfig: DECODER}
"""How many tensors of each family are rounded on their way from x to y."""

ROUNDED = ("q_lora_rank", "latent_norm", "qk_norm", "rope", "softcap", "position_bias", "output_gate")
"""The options of which each puts one more tensor on that way."""

STORED = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Half a unit in the last place of what is stored: u_store."""

FLOOR = 1e-12
"""What float64 may always differ by: far below any change of meaning, far above its rounding."""

TINY = 1e-3
"""A row this much smaller than the typical one is measured against the typical one."""


def bound(cfg: Config, T: int, S: int, dtype: str, gradient: bool = False, depth: int = 1, *, batch: int = 1) -> float:
    """The largest row error of a correct implementation.

    n_round * u_store + 2 * sqrt(sum_K) * u_acc, where n_round is the number of tensors that are rounded on the longest
    path, the family's and one for each option, sum_K the length of all sums on it (each projection's, D for the scores,
    S for the softmax and again for the values), and u_acc is float32's, or float64's in float64. A gradient goes that
    way twice, and a weight's is summed over the tokens: 2 * n_round, and 2 * sum_K + batch * max(T, S). Blocks add to
    one residual and their errors are independent: `depth` of them multiply the bound by sqrt(depth).

    The square roots are statistics. Over many draws a correct implementation reaches a fifth of the bound in the median
    and seven tenths at worst, in float32 and in half types; in float64 the bound is FLOOR, far above its rounding.

    Args:
        cfg: an attention variant, or a model: then the path is one block's and the head's.
        T: the number of queries.
        S: the number of keys.
        dtype: float64, float32, float16 or bfloat16.
        gradient: whether gradients are compared, rather than outputs.
        depth: the number of blocks behind one another.
        batch: the number of sequences.

    Raises:
        ValueError: "dtype must be one of float64, float32, float16, bfloat16; got 'int8'."
    """
    check_dtype(dtype)
    roundings = rounded(cfg)
    length = summed(cfg, S)
    if gradient:
        roundings, length = 2 * roundings, 2 * length + batch * max(T, S)
    accumulated = STORED["float64" if dtype == "float64" else "float32"]
    value = (roundings * STORED[dtype] + 2 * sqrt(length) * accumulated) * sqrt(depth)
    return max(value, FLOOR) if dtype == "float64" else value


def rounded(cfg: Config) -> int:
    """n_round: how many tensors are rounded on the longest path; in a model that of the layer with the most options."""
    roundings = next(ROUNDINGS[kind] for kind in type(cfg).__mro__ if kind in ROUNDINGS)
    attentions = getattr(cfg, "attentions", ())
    used = (sum(getattr(attention, name, None) is not None for name in ROUNDED) for attention in attentions)
    return roundings + max(used, default=0)


def check_dtype(dtype: str) -> None:
    """Refuse a dtype that has no bound."""
    if dtype not in STORED:
        raise ValueError(f"dtype must be one of {', '.join(STORED)}; got {dtype!r}.")


def summed(cfg: Config, S: int) -> int:
    """sum_K: the lengths of all sums on the longest path, added."""
    if isinstance(cfg, DecoderConfig):
        mlp, head = _longest(cfg.mlp), cfg.mlp.input_dim
        return max(summed(attention, S) for attention in cfg.attentions) + mlp + head
    if isinstance(cfg, AttentionConfig):
        return _longest(cfg) + cfg.sizes()["D"] + 2 * S
    return _longest(cfg)


def _longest(cfg: Config) -> int:
    # `out` and `down` come last, whichever projection feeds the mechanism; the others follow one another by letters.
    sizes, parts = cfg.sizes(), {n: part for n, part in cfg.layout().items() if isinstance(part, Projection)}
    last = sum(_length(parts.pop(name), sizes) for name in ("out", "down") if name in parts)

    def path(part: Projection) -> int:
        before = [path(other) for other in parts.values() if other.outputs == part.inputs]
        return _length(part, sizes) + max(before, default=0)

    return last + max(path(part) for part in parts.values())


def _length(part: Projection, sizes: Mapping[str, int]) -> int:
    return prod(shape_of(part.inputs, sizes))


def row_error(actual: np.ndarray, expected: np.ndarray, floor: float | np.ndarray | None = None) -> float:
    """The largest L2 error of a row (the last axis) relative to the norm of the expected row.

    The largest entry of a tensor would be blind where rows differ in size: in causal attention the first row sees one
    key and is sqrt(t) larger than the t-th. A row whose expected norm is below TINY times the median norm is measured
    against the median; rows that are exactly zero do not count in it. With a `floor`, one for all rows or each its own,
    every row below it is measured against it instead. NaN must meet NaN and an infinity the same infinity; otherwise
    the error is infinite.

    Raises:
        ValueError: the shapes differ.
    """
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    if actual.shape != expected.shape:
        raise ValueError(
            f"actual has shape {actual.shape}; expected {expected.shape}, the shape of the expected array."
        )
    finite = np.isfinite(expected)
    if not np.array_equal(actual[~finite], expected[~finite], equal_nan=True) or not np.isfinite(actual[finite]).all():
        return float("inf")
    errors = row_norms(np.subtract(actual, expected, out=np.zeros(actual.shape), where=finite))
    sizes = row_norms(np.where(finite, expected, 0))
    if floor is None:
        typical = median(sizes)
        sizes = np.where(sizes < TINY * typical, typical, sizes)
    else:
        sizes = np.maximum(sizes, np.ravel(floor))
    return relative(errors, sizes)


def relative(errors: np.ndarray, sizes: np.ndarray) -> float:
    """The largest error in units of its size; nothing differs from nothing by nothing, and something by infinity."""
    differ = errors > 0
    return float(np.divide(errors, sizes, out=np.full(sizes.shape, np.inf), where=sizes > 0)[differ].max(initial=0.0))


def row_norms(array: np.ndarray) -> np.ndarray:
    """The L2 norm of every row; a number on its own is a row of one."""
    array = np.atleast_1d(np.asarray(array, np.float64))
    return np.linalg.norm(array, axis=-1).reshape(-1)


def median(norms: np.ndarray) -> float:
    """The median of the norms that are not exactly zero; 0 where all are."""
    norms = norms[norms > 0]
    return float(np.median(norms)) if norms.size else 0.0


def by_row(cfg: Config, gradients: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same with each kernel as a matrix, a row being all that one input feeds, and each bias as one row."""
    shapes = {leaf.name: leaf.torch_shape[::-1] if leaf.matrix else leaf.torch_shape for leaf in leaves(cfg)}
    return {name: array.reshape(shapes.get(name, array.shape)) for name, array in gradients.items()}


def floors(gradients: Mapping[str, np.ndarray], exact: Mapping[str, float]) -> dict[str, float]:
    """What each gradient's small rows are measured against: `row_error`'s floor, by name.

    A gradient's row is a sum of terms of both signs, which cancel where a softmax has few keys to choose from. Rounding
    is relative to the terms, and the median row of the same part says how large they are. A bias is one more row of its
    part's kernel, the one whose input is 1; so is the shift of a norm beside its scale.

    Some gradients vanish by an identity, and all that is computed of them is rounding. A bias of the keys adds one
    number to all scores of a query, which a softmax does not see: that row is measured against the kernel's. Over a
    single key a softmax sees no score at all: a part that vanishes altogether, as its exact norms tell, which are then
    nothing beside the largest, is measured against the median row of all that does not.

    Args:
        gradients: by name and by row, as an implementation computed them.
        exact: the norm of each, as exact as the reference is.
    """
    least = FLOOR * max(exact.values())
    parts: dict[str, list[np.ndarray]] = {}
    for name, gradient in gradients.items():
        rows = parts.setdefault(_part(name), [])
        if exact[name] > least:
            rows.append(row_norms(gradient))
    whole = median(np.concatenate([np.zeros(0), *(rows for part in parts.values() for rows in part)]))
    typical = {part: median(np.concatenate(rows)) if rows else whole for part, rows in parts.items()}
    return {name: typical[_part(name)] for name in gradients}


def _part(name: str) -> str:
    return name.rpartition(".")[0] or name
