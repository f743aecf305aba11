"""One config, one set of weights, two frameworks: the same numbers."""

import numpy as np
import torch  # before jax: after it, PyTorch's import can crash the process

import attn
import attn_jax
import attn_torch

cfg = attn.GroupedQueryAttentionConfig(input_dim=64, heads=8, kv_heads=2, mask=attn.Causal(), rope=attn.Rope())
weights = attn.init_weights(cfg, seed=0)
x = np.random.default_rng(0).standard_normal((2, 10, 64)).astype(np.float32)

# PyTorch: the module holds the weights.
module = attn_torch.build(cfg)
module.load_state_dict(attn_torch.from_neutral(cfg, weights))
in_torch = module(torch.from_numpy(x)).detach().numpy()

# JAX: the weights are a value beside the module.
variables = attn_jax.from_neutral(cfg, weights)
in_jax = np.asarray(attn_jax.build(cfg).apply(variables, x))

# The reference: float64 numpy, written to be read.
expected = attn.reference(cfg, weights, x)

print(f"PyTorch and reference differ by {abs(in_torch - expected).max():.0e}")
print(f"JAX and reference differ by     {abs(in_jax - expected).max():.0e}")
