"""The reference: every variant in float64 numpy, written to be read and to share no arithmetic with the twins.

It stays analytic: it takes no absolute value of a computed number and compares real parts alone, the maximum of a
softmax and the kink of a relu. So it accepts complex input, and its gradients can be taken by complex steps.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attn.call import check_range
from attn.config import Config
from attn.mathematics.decoder import decoder
from attn.mathematics.latent import latent_attention
from attn.mathematics.softmax import softmax_attention
from attn.models.decoder import DecoderConfig
from attn.positions import LONGEST
from attn.variants.latent.latent import MultiHeadLatentAttentionConfig
from attn.variants.softmax.base import SoftmaxConfig
from attn.weights import check_weights, shapes_of

REFERENCES = {
    SoftmaxConfig: softmax_attention,
    MultiHeadLatentAttentionConfig: latent_attention,
    DecoderConfig: decoder,
}


def reference(
    cfg: Config,
    weights: Mapping[str, Any],
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
) -> np.ndarray:
    """The value of a variant or a model in float64 (complex128 where an input is complex).

    Takes the arguments of a module's call. A decoder takes tokens as `x`, and of the others `positions`, `valid` and
    `segments`.

    Raises:
        ValueError: as the modules do; nothing is computed before.
    """
    check_weights(cfg, shapes_of(weights))
    weights = {name: _wide(weights[name]) for name in weights}
    function = next(REFERENCES[kind] for kind in type(cfg).__mro__ if kind in REFERENCES)
    call = {"allowed": allowed, "bias": bias, "positions": positions, "valid": valid, "segments": segments}
    call |= {"context_positions": context_positions, "context_valid": context_valid}
    call |= {"context_segments": context_segments}
    arguments = {name: np.asarray(array) for name, array in call.items() if array is not None}
    for side in ("", "context_"):
        array, valid = arguments.get(f"{side}positions"), arguments.get(f"{side}valid", True)
        if array is not None and array.size:
            real = np.where(valid, array, 0)
            check_range(f"{side}positions", int(real.min()), int(real.max()), LONGEST)
    if context is not None:
        arguments["context"] = _wide(context)
    return function(cfg, weights, _wide(x) if np.asarray(x).dtype.kind in "fcV" else np.asarray(x), **arguments)


def _wide(array: Any) -> np.ndarray:
    array = np.asarray(array)
    return array if array.dtype.kind == "c" else array.astype(np.float64)
