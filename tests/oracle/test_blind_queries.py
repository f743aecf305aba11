"""Law 4: a query that may see nothing attends to 0, with zero gradient, in every kernel and dtype."""

from itertools import product

import ml_dtypes
import numpy as np

from tests.cases import CASES, CAUSAL, READING, B, S, T, draw, in_both_for, keys_of, sides_of, under, weights_of
from tests.twins import by_every_kernel

FULL = {"kind": "full"}
KINDS = {"float64": np.float64, "float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
BLIND = [0, 3, 10]
SIGHTED = np.setdiff1d(np.arange(T), BLIND)


def blinding(cfg, form: str, dtype: str) -> dict[str, np.ndarray]:
    """A call in which the queries of BLIND may see nothing, and the others something."""
    if form == "segments":
        return {"segments": np.where(np.isin(np.arange(T), BLIND), 9, 4), "context_segments": np.full(S, 4)}
    if form == "positions":
        return {"positions": np.where(np.isin(np.arange(T), BLIND), 3, 90), "context_positions": np.arange(S) + 90}
    allowed = np.ones((T, keys_of(cfg)), bool)
    allowed[BLIND] = False
    biased = {"bias": draw(T, keys_of(cfg), seed=5, dtype=dtype)} if form == "allowed and bias" else {}
    return {"allowed": allowed, **biased}


BLINDED = [*product(CASES, ["allowed", "allowed and bias"], KINDS)]
BLINDED += [*product(READING, ["segments", "positions"], KINDS)]
FIRST_BLINDED = [
    ("grouped_query", "allowed and bias", "bfloat16"),
    ("latent", "allowed", "float64"),
    ("multi_head_reading", "segments", "float64"),
]


@in_both_for("name form dtype", BLINDED, FIRST_BLINDED)
def test_a_query_that_sees_nothing_gives_the_bias_of_out(twin, name, form, dtype):
    cfg = under(CAUSAL, name) if form == "positions" else under(FULL, name)
    kind = np.dtype(KINDS[dtype])
    weights, sides = weights_of(cfg, kind), sides_of(cfg, kind)
    expected = weights.get("out.bias", np.zeros(cfg.dim_v, kind))
    for y in by_every_kernel(twin, cfg, weights, *sides, **blinding(cfg, form, kind)).values():
        assert y.dtype == kind
        np.testing.assert_array_equal(y[:, BLIND], np.broadcast_to(expected, (B, len(BLIND), len(expected))))
        assert np.isfinite(y.astype(float)).all()
        assert (y[:, SIGHTED] != expected).any(-1).all()


@in_both_for(
    "name form dtype",
    product(["cross", "grouped_query", "latent"], ["allowed", "allowed and bias"], ["float64", "bfloat16"]),
    FIRST_BLINDED,
)
def test_a_query_that_sees_nothing_moves_nothing(twin, name, form, dtype):
    cfg, kind = under(FULL, name), np.dtype(KINDS[dtype])
    weights, sides = weights_of(cfg, kind), sides_of(cfg, kind)
    call = blinding(cfg, form, kind)
    y = twin(cfg, weights, *sides, **call)
    direction = np.zeros_like(y)
    direction[:, BLIND] = 1
    found = by_every_kernel(twin, cfg, weights, direction, *sides, compute=twin.gradients, **call)
    for kernel, gradients in found.items():
        bias = gradients.pop("out.bias", np.float64(B * len(BLIND)))
        np.testing.assert_array_equal(bias.astype(float), B * len(BLIND))
        for name_of, gradient in gradients.items():
            np.testing.assert_array_equal(gradient, np.zeros_like(gradient), err_msg=f"{kernel}: {name_of}")
        # The others are moved, and by numbers.
        gradients = twin.gradients(cfg, weights, np.ones_like(y), *sides, options={"kernel": kernel}, **call)
        assert all(np.isfinite(gradient.astype(float)).all() for gradient in gradients.values())
        assert all(gradient.any() for gradient in gradients.values())
