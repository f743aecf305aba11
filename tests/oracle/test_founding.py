"""The variants as anyone would first write them: linears by their plain names, and softmax(q k^T / sqrt(d)) v.

Their state dicts load as they are, and everything says the same. So do the frameworks' own modules, through converted
weights.
"""

from math import sqrt

import flax.linen
import jax
import numpy as np
import pytest
import torch
from torch import nn

import attn
import attn_jax
import attn_torch
from tests.cases import draw, error
from tests.twins import Jax

JAX = Jax()
B, T, S, M, X, H, K, D, E, C = 3, 7, 11, 13, 17, 6, 2, 5, 4, 19


def attend(q, k, v, causal=False):
    scores = q @ k.transpose(-2, -1) / sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return torch.softmax(scores, dim=-1) @ v


def split(x, heads):
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def merge(x):
    return x.transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(M, D, bias), nn.Linear(M, D, bias), nn.Linear(M, E, bias)

    def forward(self, x):
        return attend(self.q(x), self.k(x), self.v(x))


class CausalAttention(SelfAttention):
    def forward(self, x):
        return attend(self.q(x), self.k(x), self.v(x), causal=True)


class CrossAttention(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(M, D, bias), nn.Linear(X, D, bias), nn.Linear(X, E, bias)

    def forward(self, x, context):
        return attend(self.q(x), self.k(context), self.v(context))


class MultiHeadAttention(nn.Module):
    def __init__(self, bias, kv_heads=H):
        super().__init__()
        self.kv_heads = kv_heads
        self.q = nn.Linear(M, H * D, bias)
        self.k, self.v = nn.Linear(M, kv_heads * D, bias), nn.Linear(M, kv_heads * E, bias)
        self.out = nn.Linear(H * E, M, bias)

    def forward(self, x):
        q, k, v = split(self.q(x), H), split(self.k(x), self.kv_heads), split(self.v(x), self.kv_heads)
        k, v = k.repeat_interleave(H // self.kv_heads, 1), v.repeat_interleave(H // self.kv_heads, 1)
        return self.out(merge(attend(q, k, v)))


class LatentAttention(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.q, self.kv_down = nn.Linear(M, H * D, bias), nn.Linear(M, C, bias)
        self.k_up, self.v_up = nn.Linear(C, H * D, bias), nn.Linear(C, H * E, bias)
        self.out = nn.Linear(H * E, M, bias)

    def forward(self, x):
        latent = self.kv_down(x)
        q, k, v = split(self.q(x), H), split(self.k_up(latent), H), split(self.v_up(latent), H)
        return self.out(merge(attend(q, k, v)))


ONE = {"input_dim": M, "dim_k": D, "dim_v": E}
MANY = {"input_dim": M, "heads": H, "dim_k": H * D, "dim_v": H * E}
FOUNDING = {
    "self": (SelfAttention, attn.SelfAttentionConfig(**ONE)),
    "cross": (CrossAttention, attn.CrossAttentionConfig(**ONE, context_dim=X)),
    "causal": (CausalAttention, attn.CausalAttentionConfig(**ONE)),
    "multi_head": (MultiHeadAttention, attn.MultiHeadAttentionConfig(**MANY)),
    "multi_query": (lambda bias: MultiHeadAttention(bias, 1), attn.MultiQueryAttentionConfig(**MANY)),
    "grouped_query": (
        lambda bias: MultiHeadAttention(bias, K),
        attn.GroupedQueryAttentionConfig(**MANY, kv_heads=K),
    ),
    "latent": (LatentAttention, attn.MultiHeadLatentAttentionConfig(**MANY, kv_lora_rank=C)),
}


def test_every_founding_variant_is_here():
    assert FOUNDING.keys() <= attn.VARIANTS.keys()
    assert all(cfg.variant == name for name, (_, cfg) in FOUNDING.items())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", FOUNDING)
def test_a_plain_module_loads_as_it_is_and_everything_says_the_same(name, bias):
    torch.manual_seed(0)
    write, cfg = FOUNDING[name]
    cfg, plain = cfg.replace(bias=bias), write(bias)
    sides = [draw(B, T, M, dtype="float32"), draw(B, S, X, seed=1, dtype="float32")][: 2 if name == "cross" else 1]
    expected = plain(*map(torch.from_numpy, sides)).detach().numpy()

    module = attn_torch.build(cfg)
    module.load_state_dict(plain.state_dict(), strict=True)
    plain.load_state_dict(module.state_dict(), strict=True)
    assert error(module(*map(torch.from_numpy, sides)).detach().numpy(), expected) < 1e-6

    weights = attn_torch.to_neutral(cfg, module)
    assert error(JAX(cfg, weights, *sides, compiled=True), expected) < 1e-6
    assert error(attn.reference(cfg, weights, *sides), expected) < 1e-6


def everywhere(cfg, state, *sides, **call) -> list[np.ndarray]:
    """What both twins and the reference say with the weights of that state dict."""
    module = attn_torch.build(cfg)
    module.load_state_dict(state, strict=True)
    weights = attn_torch.to_neutral(cfg, module)
    with torch.no_grad():
        in_torch = module(*map(torch.from_numpy, sides), **{n: torch.from_numpy(a) for n, a in call.items()})
    in_jax = JAX(cfg, weights, *sides, **call, compiled=True)
    return [in_torch.numpy(), in_jax, attn.reference(cfg, weights, *sides, **call)]


@pytest.mark.parametrize("reads", [False, True])
def test_the_module_of_pytorch_says_the_same(reads):
    torch.manual_seed(0)
    width = H * D
    theirs = nn.MultiheadAttention(width, H, kdim=X if reads else None, vdim=X if reads else None, batch_first=True)
    nn.init.normal_(theirs.in_proj_bias)
    nn.init.normal_(theirs.out_proj.bias)
    names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
    projections = [getattr(theirs, name) for name in names] if reads else theirs.in_proj_weight.chunk(3)
    state = {"out.weight": theirs.out_proj.weight, "out.bias": theirs.out_proj.bias}
    for name, weight, bias in zip("qkv", projections, theirs.in_proj_bias.chunk(3), strict=True):
        state |= {f"{name}.weight": weight, f"{name}.bias": bias}
    cfg = attn.MultiHeadAttentionConfig(input_dim=width, heads=H, bias=True, context_dim=X if reads else None)

    x, length = draw(B, T, width, dtype="float32"), S if reads else T
    sides = [x, draw(B, S, X, seed=1, dtype="float32")] if reads else [x]
    allowed = np.random.default_rng(0).random((T, length)) < 0.6
    allowed[:, 0] = True
    real = np.arange(length) < np.array([length, length - 2, length - 5])[:, None]
    queries, keys = torch.from_numpy(x), torch.from_numpy(sides[-1])
    # There, True means that a key is hidden, and that a token is padding.
    hidden = {"attn_mask": torch.from_numpy(~allowed), "key_padding_mask": torch.from_numpy(~real)}
    expected = theirs(queries, keys, keys, **hidden, need_weights=False)[0].detach().numpy()
    shown = {"allowed": allowed, "context_valid" if reads else "valid": real}
    for y in everywhere(cfg, state, *sides, **shown):
        seen = np.ones((B, T), bool) if reads else real
        assert error(y[seen], expected[seen]) < 1e-5


@pytest.mark.parametrize("reads", [False, True])
def test_the_module_of_flax_says_the_same(reads):
    theirs = flax.linen.MultiHeadDotProductAttention(num_heads=H, qkv_features=H * D, out_features=M)
    x = draw(B, T, M, dtype="float32")
    sides = [x, draw(B, S, X, seed=1, dtype="float32")] if reads else [x]
    allowed = np.random.default_rng(0).random((B, H, T, S if reads else T)) < 0.6
    allowed[..., 0] = True
    shapes = jax.eval_shape(theirs.init, jax.random.key(0), *sides)["params"]
    seeds = iter(range(8))
    params = jax.tree.map(lambda a: 0.3 * draw(*a.shape, seed=next(seeds), dtype="float32"), shapes)
    expected = np.asarray(jax.jit(theirs.apply)({"params": params}, *sides, mask=allowed))
    ours = {"q": params["query"], "k": params["key"], "v": params["value"], "out": params["out"]}
    cfg = attn.MultiHeadAttentionConfig(
        input_dim=M, heads=H, dim_k=H * D, dim_v=H * D, bias=True, context_dim=X if reads else None
    )
    weights = attn_jax.to_neutral(cfg, {"params": ours})
    for y in everywhere(cfg, attn_torch.from_neutral(cfg, weights), *sides, allowed=allowed):
        assert error(y, expected) < 1e-5
