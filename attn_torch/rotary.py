"""Rotary positions: cosines and sines of a rope's angles at any position."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attn.positions import FINE, LONGEST, rotary_tables
from attn.rope import LongRope, Rotation

Angles = tuple[Float[Tensor, "B|1 T R/2"], Float[Tensor, "B|1 T R/2"]]


def angles(rotary: "Tables", positions: Int[Tensor, "B|1 T"], lengths: Any, dtype: torch.dtype) -> Angles:
    """cos and sin in `dtype`, times the rope's factor; NaN at a position outside 0..LONGEST-1.

    `lengths` matters to ropes that depend on it: a number for all, or the length of each token's own sequence [B T].
    """
    rope = rotary.rope
    inside = (positions >= 0) & (positions < LONGEST)
    positions = torch.where(inside, positions, 0)
    if rope.float32:
        return _inside(inside, *_rounded(rotary, positions, lengths, dtype))
    if not rope.by_length:
        return _inside(inside, *_looked_up(rotary.table(dtype, 0), positions))
    if isinstance(rope, LongRope):
        short, long = (_looked_up(rotary.table(dtype, i), positions) for i in range(2))
        if isinstance(lengths, int):
            return _inside(inside, *(long if lengths > rope.original_length else short))
        beyond = (lengths > rope.original_length)[..., None]
        return _inside(inside, *(torch.where(beyond, b, a) for a, b in zip(short, long, strict=True)))
    return _inside(inside, *_computed(rope, rotary.width, positions, lengths, dtype))


class Tables(nn.Module):
    """A rope's tables where the module lives; no parameters.

    They are kept as the bits of floats, so that a change of the module's dtype does not round them.
    """

    def __init__(self, rope: Rotation, width: int):
        super().__init__()
        self.rope = rope
        self.width = width
        # A rope that depends on the length has the table of a short one, then that of a long one.
        lengths = (0, rope.original_length + 1) if isinstance(rope, LongRope) else (None,)
        tables = np.stack([np.stack(rotary_tables(rope, width, length)) for length in lengths])
        self.register_buffer("bits32", torch.from_numpy(tables).float().view(torch.int32), persistent=False)
        self.register_buffer("bits64", torch.from_numpy(tables).view(torch.int64), persistent=False)

    def table(self, dtype: torch.dtype, which: int) -> Float[Tensor, "2 2 1024 R/2"]:
        """Cosines and sines, each for positions b and 1024 a."""
        return (self.bits64 if dtype == torch.float64 else self.bits32).view(dtype)[which]


def _looked_up(table, positions):
    cos, sin = table
    coarse, fine = positions // FINE, positions % FINE
    cos_fine, sin_fine, cos_coarse, sin_coarse = cos[0][fine], sin[0][fine], cos[1][coarse], sin[1][coarse]
    return cos_fine * cos_coarse - sin_fine * sin_coarse, sin_fine * cos_coarse + cos_fine * sin_coarse


def _computed(rope, width, positions, lengths, dtype):
    # No table can hold every length: theta' and the frequencies are computed here, in float64.
    lengths = torch.as_tensor(lengths, device=positions.device)
    longest = lengths.clamp(min=rope.original_length).double()
    stretch = rope.factor * longest / rope.original_length - (rope.factor - 1)
    numbers = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device)
    frequencies = rope.theta ** (-numbers / width) * stretch[..., None] ** (-numbers / (width - 2))
    turned = positions[..., None].double() * frequencies
    return torch.cos(turned).to(dtype), torch.sin(turned).to(dtype)


def _rounded(rotary, positions, lengths, dtype):
    rope = rotary.rope
    length = lengths if isinstance(lengths, int) else None
    if rope.by_length and length is None:
        raise ValueError(f"rope with float32=True needs one length for all tokens; got kind {rope.kind!r} with rows.")
    frequencies = torch.tensor(rope.frequencies(rotary.width, length).tolist(), device=positions.device).float()
    turned = (positions[..., None].float() * frequencies).to(dtype)
    factor = rope.factor_at(length)
    return torch.cos(turned) * factor, torch.sin(turned) * factor


def _inside(inside, cos, sin):
    outside = ~inside[..., None]
    return cos.masked_fill(outside, torch.nan), sin.masked_fill(outside, torch.nan)
