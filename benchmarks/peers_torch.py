"""PyTorch's candidates: ours, the floor, and the peers, all with the same weights and the same work."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attn
import attn_torch
from attn_torch import kernels
from attn_torch.scope import survey
from attn_torch.scoring import Scoring
from benchmarks.cases import DIM, HEADS, WINDOW, Case, config, masked
from benchmarks.comparing import FLOOR, OURS, Candidate
from benchmarks.side_torch import of_module

ROTARY = f"{OURS}, rotary"
Weights = Mapping[str, np.ndarray]


def layers(case: Case) -> dict[str, Candidate | str]:
    """Every layer by its name, or why it cannot do this work."""
    from benchmarks.peers_keras import in_torch as keras

    weights = weights_of(case)
    made: dict[str, Candidate | str] = {OURS: ours(case, weights)}
    if case.rule == "window":
        made[f"{OURS}, causal without a window"] = ours(case._replace(rule="causal"), weights, like="itself")
    made[FLOOR] = floor(case, weights)
    made[f"{FLOOR}, again"] = floor(case, weights)
    made["PyTorch nn.MultiheadAttention"] = multihead(case, weights)
    made["x-transformers"] = x_transformers(case, weights)
    made["Keras"] = keras(case, weights)
    made[ROTARY] = ours(case, weights, like="itself", rope=attn.Rope())
    made["transformers Llama, rotary, sdpa"] = llama(case, weights, "sdpa")
    # Giving its scores back moves the ratios of all others by five percent.
    made["transformers Llama, rotary, eager"] = (
        "it writes gigabytes of scores out" if case.T > 2048 else llama(case, weights, "eager")
    )
    return made


def kernel(case: Case) -> dict[str, Candidate | str]:
    """Attention without projections: x is (q, k, v)."""
    scoring = Scoring((DIM // HEADS) ** -0.5)

    def bare(case: Case, like: str) -> Candidate:
        rule = config(case).rule
        return Candidate(lambda x: kernels.attend(rule, survey(1, case.T), scoring, *x), [], like)

    if case.rule == "window":
        return {
            OURS: bare(case, OURS),
            f"{OURS}, causal without a window": bare(case._replace(rule="causal"), "itself"),
        }

    def fused(x: tuple[Tensor, ...]) -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in x)
        options = {"is_causal": case.rule == "causal", "enable_gqa": case.kv_heads != HEADS}
        return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)

    return {OURS: bare(case, OURS), "F.scaled_dot_product_attention": Candidate(fused, [])}


def weights_of(case: Case) -> Weights:
    """What all candidates of a case share."""
    return attn.init_weights(config(case), seed=0)


def ours(case: Case, weights: Weights, like: str = OURS, **options: Any) -> Candidate:
    """attn_torch; `options` are more of its config's fields."""
    cfg = config(case, **options)
    module = attn_torch.build(cfg)
    module.load_state_dict(attn_torch.from_neutral(cfg, weights))
    return of_module(module, like=like)


def floor(case: Case, weights: Weights) -> Candidate:
    """The floor of a case."""
    mask = masked(case) if case.rule == "window" else None
    return of_module(Floor(weights, mask, is_causal=case.rule == "causal"))


def tiny(dim: int, heads: int) -> dict[str, Candidate]:
    """Ours and the floor as small causal layers."""
    cfg = attn.MultiHeadAttentionConfig(input_dim=dim, heads=heads, mask=attn.Causal())
    weights = attn.init_weights(cfg, seed=0)
    module = attn_torch.build(cfg)
    module.load_state_dict(attn_torch.from_neutral(cfg, weights))
    floors = {name: of_module(Floor(weights, is_causal=True)) for name in (FLOOR, f"{FLOOR}, again")}
    return {OURS: of_module(module), **floors}


class Floor(nn.Module):
    """Four nn.Linear and one call of PyTorch's fused attention, with a mask for a window: nothing can be simpler."""

    def __init__(self, weights: Weights, mask: np.ndarray | None = None, **options: bool):
        super().__init__()
        self.sizes = [weights[f"{name}.kernel"].shape[1] for name in ("q", "k", "v")]
        for name in ("q", "k", "v", "out"):
            setattr(self, name, linear(matrix(weights, name)))
        self.mask = None if mask is None else torch.from_numpy(mask)
        self.options = {"enable_gqa": self.sizes[0] != self.sizes[1], **options}

    def forward(self, x: Tensor) -> Tensor:
        """y [B T M]."""
        parts = (self.q(x), self.k(x), self.v(x))
        q, k, v = (
            part.view(*x.shape[:2], size, -1).transpose(1, 2) for part, size in zip(parts, self.sizes, strict=True)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, **self.options)
        return self.out(y.transpose(1, 2).flatten(2))


def multihead(case: Case, weights: Weights) -> Candidate | str:
    """torch.nn.MultiheadAttention, which wants a mask that hides beside its `is_causal`."""
    if case.kv_heads != HEADS:
        return "it has as many key heads as query heads"
    module = nn.MultiheadAttention(DIM, HEADS, bias=False, batch_first=True).eval()
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.cat([matrix(weights, name) for name in ("q", "k", "v")]))
        module.out_proj.weight.copy_(matrix(weights, "out"))
    seen = masked(case)
    mask = None if seen is None else ~torch.from_numpy(seen)
    options = {"attn_mask": mask, "is_causal": case.rule == "causal", "need_weights": False}
    return of_module(module, lambda x: module(x, x, x, **options)[0])


def x_transformers(case: Case, weights: Weights) -> Candidate | str:
    """x-transformers' Attention on PyTorch's fused attention; its window counts the keys before the query."""
    from x_transformers.x_transformers import Attention

    past = WINDOW - 1 if case.rule == "window" else None
    options = {"causal": case.rule != "full", "flash": True, "kv_heads": case.kv_heads, "max_attend_past": past}
    module = Attention(DIM, dim_head=DIM // HEADS, heads=HEADS, **options).eval()
    # Its query head h reads key head h modulo K; ours, like everybody's, h // G.
    order = np.arange(HEADS).reshape(case.kv_heads, -1).T.reshape(-1)
    heads = {"q.kernel": weights["q.kernel"][:, order], "out.kernel": weights["out.kernel"][order]}
    module.load_state_dict({f"to_{name}.weight": matrix({**weights, **heads}, name) for name in ("q", "k", "v", "out")})
    return of_module(module)


def llama(case: Case, weights: Weights, kind: str = "eager") -> Candidate:
    """LlamaAttention of transformers; its angles come from outside, as in its model, and a window comes as a mask.

    They are rounded to float32, so that at long distances its values are those of `float32=True`.
    """
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaConfig, LlamaRotaryEmbedding

    sizes = {"hidden_size": DIM, "num_attention_heads": HEADS, "num_key_value_heads": case.kv_heads}
    cfg = LlamaConfig(**sizes, attn_implementation=kind)
    module = LlamaAttention(cfg, 0).eval()
    module.is_causal = case.rule != "full"
    module.load_state_dict(
        {f"{'o' if name == 'out' else name}_proj.weight": matrix(weights, name) for name in ("q", "k", "v", "out")}
    )
    angles = LlamaRotaryEmbedding(cfg)(torch.zeros(1), torch.arange(case.T)[None])
    mask = _llama_mask(case, kind)
    like = ours(case, weights, rope=attn.Rope(float32=True))
    return of_module(module, lambda x: module(x, angles, mask)[0], like=like)


def _llama_mask(case: Case, kind: str) -> Tensor | None:
    seen = masked(case)
    if seen is None or (kind == "sdpa" and case.rule == "causal"):
        return None
    mask = torch.from_numpy(seen)[None, None]
    return mask if kind == "sdpa" else torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)


def matrix(weights: Weights, name: str) -> Tensor:
    """A kernel as nn.Linear's weight [outputs, inputs]."""
    kernel = weights[f"{name}.kernel"]
    flat = kernel.reshape(-1, kernel.shape[-1]) if name == "out" else kernel.reshape(len(kernel), -1)
    return torch.from_numpy(flat.T.copy())


def linear(weight: Tensor) -> nn.Linear:
    """The nn.Linear of a weight."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    made.weight = nn.Parameter(weight)
    return made


def called(cfg: Any, call: Mapping[str, np.ndarray], kernel: str | None) -> Candidate:
    """Ours with these arguments, in training where the config drops weights."""
    module = attn_torch.build(cfg, kernel=kernel).train(cfg.dropout > 0)
    module.load_state_dict(attn_torch.from_neutral(cfg, attn.init_weights(cfg, seed=0)))
    given = {name: torch.from_numpy(array) for name, array in call.items()}
    return of_module(module, lambda x: module(x, **given), like="itself" if cfg.dropout else OURS)
