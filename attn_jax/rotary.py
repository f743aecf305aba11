"""Rotary positions: cosines and sines of a rope's angles at any position."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attn.positions import FINE, LONGEST, rotary_tables
from attn.rope import LongRope, Rotation

Turns = tuple[Float[Array, "B|1 T R/2"], Float[Array, "B|1 T R/2"]]


def turns(rope: Rotation, width: int, positions: Int[Array, "B|1 T"], lengths: Any, dtype: Any) -> Turns:
    """cos and sin in `dtype`, times the rope's factor; NaN at a position outside 0..LONGEST-1.

    `lengths` matters to ropes that depend on it: a number for all, or the length of each token's own sequence [B T].
    """
    if rope.float32:
        return _inside(positions, *_rounded(rope, width, positions, lengths, dtype))
    if not rope.by_length or isinstance(lengths, int):
        return _inside(positions, *_looked_up(rope, width, positions, lengths, dtype))
    if isinstance(rope, LongRope):
        short = _looked_up(rope, width, positions, 0, dtype)
        long = _looked_up(rope, width, positions, rope.original_length + 1, dtype)
        beyond = (lengths > rope.original_length)[..., None]
        return _inside(positions, *(jnp.where(beyond, b, a) for a, b in zip(short, long, strict=True)))
    return _inside(positions, *_computed(rope, width, positions, lengths, dtype))


def _looked_up(rope, width, positions, length, dtype):
    cos, sin = (jnp.asarray(table, dtype) for table in rotary_tables(rope, width, length if rope.by_length else None))
    coarse, fine = positions // FINE, positions % FINE
    cos_fine, sin_fine, cos_coarse, sin_coarse = cos[0][fine], sin[0][fine], cos[1][coarse], sin[1][coarse]
    return cos_fine * cos_coarse - sin_fine * sin_coarse, sin_fine * cos_coarse + cos_fine * sin_coarse


def _computed(rope, width, positions, lengths, dtype):
    # No table can hold every length: theta' and the frequencies are computed here, in float64, which a program may do
    # where arrays cannot have it: a float32 angle of 8000 radians is 2e-4 off.
    with jax.enable_x64(True):
        longest = jnp.maximum(lengths, rope.original_length).astype(jnp.float64)
        stretch = rope.factor * longest / rope.original_length - (rope.factor - 1)
        numbers = np.arange(0, width, 2, dtype=np.float64)
        frequencies = rope.theta ** (-numbers / width) * stretch[..., None] ** (-numbers / (width - 2))
        turned = positions[..., None].astype(jnp.float64) * frequencies
        return jnp.cos(turned).astype(dtype), jnp.sin(turned).astype(dtype)


def _rounded(rope, width, positions, lengths, dtype):
    length = lengths if isinstance(lengths, int) else None
    if rope.by_length and length is None:
        raise ValueError(f"rope with float32=True needs one length for all tokens; got kind {rope.kind!r} with rows.")
    frequencies = jnp.asarray(rope.frequencies(width, length), jnp.float32)
    turned = (positions[..., None].astype(jnp.float32) * frequencies).astype(dtype)
    factor = rope.factor_at(length)
    return jnp.cos(turned) * factor, jnp.sin(turned) * factor


def _inside(positions, cos, sin):
    inside = ((positions >= 0) & (positions < LONGEST))[..., None]
    return jnp.where(inside, cos, jnp.nan), jnp.where(inside, sin, jnp.nan)
