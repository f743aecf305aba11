"""Rotary positions: cosines and sines of a rope's angles at any position."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attn.positions import FINE, LONGEST, rotary_tables
from attn.rope import LongRope, Rotation

Turns = tuple[Float[Tensor, "B|1 T 1 R"], Float[Tensor, "B|1 T 1 R"]]


def turns(
    rotary: "Tables", positions: Int[Tensor, "B|1 T"] | None, lengths: Any, dtype: torch.dtype, below: int = LONGEST
) -> Turns:
    """cos and sin in `dtype`, times the rope's factor; NaN at a position outside 0..LONGEST-1.

    They stand as `functional.rotate` takes them, for both numbers of each pair: cos beside cos, -sin beside sin.
    `lengths` matters to ropes that depend on it: a number for all, or the length of each token's own sequence [B T].
    No position may reach `below`; without positions, they are all that do not.
    """
    rope = rotary.rope
    if positions is None and (below > FINE or rope.float32 or rope.by_length):
        positions = torch.arange(below, device=rotary.bits32.device)[None]
    if rope.float32:
        return _twice(rope.layout, *_inside(positions, *_rounded(rotary, positions, lengths, dtype)))
    if not rope.by_length:
        return _looked_up(rotary.table(dtype, 0), positions, below)
    if isinstance(rope, LongRope):
        short, long = (_looked_up(rotary.table(dtype, i), positions, below) for i in range(2))
        if isinstance(lengths, int):
            return long if lengths > rope.original_length else short
        beyond = (lengths > rope.original_length)[..., None, None]
        cos, sin = (torch.where(beyond, b, a) for a, b in zip(short, long, strict=True))
        return cos, sin
    return _twice(rope.layout, *_inside(positions, *_computed(rope, rotary.width, positions, lengths, dtype)))


class Tables(nn.Module):
    """A rope's tables where the module lives; no parameters.

    They are kept as the bits of floats, so that a change of the module's dtype does not round them.
    """

    def __init__(self, rope: Rotation, width: int):
        super().__init__()
        self.rope = rope
        self.width = width
        self._fill(None)

    def _fill(self, device: torch.device | None) -> None:
        rope, width = self.rope, self.width
        # A rope that depends on the length has the table of a short one, then that of a long one.
        lengths = (0, rope.original_length + 1) if isinstance(rope, LongRope) else (None,)
        tables = torch.from_numpy(np.stack([np.stack(rotary_tables(rope, width, length)) for length in lengths]))
        cos, sin = _twice(rope.layout, *tables.unbind(1))
        # One row more for what is no position.
        tables = F.pad(torch.stack([cos, sin], dim=3), (0, 0, 0, 0, 0, 0, 0, 1), value=torch.nan)
        self.register_buffer("bits32", tables.float().view(torch.int32).to(device), persistent=False)
        self.register_buffer("bits64", tables.view(torch.int64).to(device), persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> "Tables":
        # These numbers are in no file: whatever becomes of parameters, by `to_empty` too, they only move.
        device = fn(torch.empty(0, dtype=torch.int32, device=self.bits32.device)).device
        if self.bits32.is_meta and device.type != "meta":
            self._fill(device)
        else:
            self.bits32, self.bits64 = self.bits32.to(device), self.bits64.to(device)
        return self

    def table(self, dtype: torch.dtype, which: int) -> Float[Tensor, "2 1025 2 1 R"]:
        """For positions b and positions 1024 a: each one's cosines and sines, and NaN in the last row."""
        return (self.bits64 if dtype == torch.float64 else self.bits32).view(dtype)[which]


def _looked_up(table, positions, below):
    fine, coarse = table
    if positions is None:
        cos, sin = fine[None, :below].unbind(2)
        return cos, sin
    if below <= FINE:
        # What reaches beyond all the same is row 1024; so is -1, the last one.
        cos, sin = fine[positions.clamp(-1, FINE)].unbind(2)
        return cos, sin
    cos_fine, sin_fine = fine[positions % FINE].unbind(2)
    cos_coarse, sin_coarse = coarse[(positions // FINE).clamp(-1, FINE)].unbind(2)
    return cos_fine * cos_coarse - sin_fine * sin_coarse, sin_fine * cos_coarse + cos_fine * sin_coarse


def _twice(layout, cos, sin):
    pair = -2 if layout == "half" else -1
    cos, sin = torch.stack([cos, cos], dim=pair), torch.stack([-sin, sin], dim=pair)
    return cos.flatten(-2)[..., None, :], sin.flatten(-2)[..., None, :]


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


def _inside(positions, cos, sin):
    outside = ((positions < 0) | (positions >= LONGEST))[..., None]
    return cos.masked_fill(outside, torch.nan), sin.masked_fill(outside, torch.nan)
