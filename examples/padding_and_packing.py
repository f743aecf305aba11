"""Padded and packed batches are exact: each sequence has the values it has alone."""

import numpy as np
import torch

import attn
import attn_torch

cfg = attn.MultiHeadAttentionConfig(input_dim=32, heads=4, mask=attn.Causal(), rope=attn.Rope())
module = attn_torch.build(cfg)
module.load_state_dict(attn_torch.from_neutral(cfg, attn.init_weights(cfg, seed=0)))

rng = np.random.default_rng(0)
short, long = (torch.from_numpy(rng.standard_normal((1, n, 32)).astype(np.float32)) for n in (5, 8))
alone = {"short": module(short)[0], "long": module(long)[0]}

# Padded: what stands in the padding does not matter, not even NaN, and its output is exactly 0.
padding = torch.full((1, 3, 32), torch.nan)
batch = torch.cat([torch.cat([short, padding], 1), long])
valid = torch.tensor([[True] * 5 + [False] * 3, [True] * 8])
padded = module(batch, valid=valid)

# Packed: one row, two segments; positions begin again in each, and none sees the other.
row = torch.cat([short, long], 1)
packed = module(row, segments=torch.tensor([[0] * 5 + [1] * 8]))[0]


def apart(found: torch.Tensor, expected: torch.Tensor) -> str:
    """The largest difference."""
    return f"{(found - expected).abs().max():.0e}"


print(f"padded: {apart(padded[0, :5], alone['short'])} and {apart(padded[1], alone['long'])} apart")
print(f"packed: {apart(packed[:5], alone['short'])} and {apart(packed[5:], alone['long'])} apart")
print(f"the padding's output is exactly 0: {bool((padded[0, 5:] == 0).all())}")
