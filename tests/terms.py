"""How large the terms are that cancel in the gradients of queries and keys: what their rows are measured against."""

import numpy as np

SHARE = 0.1
"""Of all roundings that a bound counts, a tenth happens to the terms themselves: product, mean, difference, weight."""


def least(
    weights: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, direction: np.ndarray, scale: float
) -> dict[str, np.ndarray]:
    """The least size of each row [B T H] of the gradient of q and [B S K] of that of k: a tenth of its terms' size.

    With g = direction v^T, the gradient of a score is w (g - sum w g). Where a softmax is nearly certain of a key the
    difference is a small rest of large terms, whose rounding it keeps. With |direction| |v|^T for g, and its mean added
    rather than taken away, the same formula says how large they are.

    Args:
        weights: w [B H T S], in float64, without what a sink takes.
        q: queries [B T H D].
        k: keys [B S K D].
        v: values [B S K E].
        direction: what multiplies y [B T H E], 0 where nobody reads y.
        scale: what multiplies q k^T.
    """
    (B, S, K, _), H = k.shape, q.shape[2]
    lengths = np.repeat(np.linalg.norm(k, axis=-1), H // K, 2)
    g = np.einsum("bthe,bshe->bhts", np.abs(direction), np.repeat(np.abs(v), H // K, 2))
    terms = SHARE * scale * weights * (g + (weights * g).sum(-1, keepdims=True))
    of_keys = np.einsum("bhts,bth->bsh", terms, np.linalg.norm(q, axis=-1))
    return {"q": np.einsum("bhts,bsh->bth", terms, lengths), "k": of_keys.reshape(B, S, K, -1).sum(-1)}
