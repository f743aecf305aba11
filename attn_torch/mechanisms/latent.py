"""Latent attention: the keys and values of all heads are read from one small latent per token, in two forms."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attn.kernels import FORMS
from attn.variants.latent.latent import MultiHeadLatentAttentionConfig
from attn_torch.mechanisms.base import AttentionModule
from attn_torch.rotary import Tables
from attn_torch.scope import Scope


class LatentAttention(AttentionModule):
    """y = concat_h( softmax(q_h k_h^T * scale) v_h ) Wo with k_h = l Wk_h, v_h = l Wv_h and the latent l = c Wdown.

    `kernel` may also name a form: "expanded" writes keys and values out, "absorbed" moves queries to the latents.
    """

    def __init__(
        self, cfg: MultiHeadLatentAttentionConfig, dtype: torch.dtype | None = None, kernel: str | None = None
    ):
        super().__init__(cfg, dtype, kernel)
        if cfg.rope is not None:
            self.rotary = Tables(cfg.rope, cfg.rope.rotated(cfg.rope_dim))

    def within(
        self,
        scope: Scope,
        x: Float[Tensor, "B T M"],
        context: Float[Tensor, "B S X"] | None = None,
        store: Any = None,
    ) -> tuple[Tensor, Any]:
        """(y, store) in a scope that is already surveyed."""
        flat, flat_keys = self._selected(scope, x, context)
        q = self._queries(scope, flat)
        kept, store = self._keep(scope, self._new(scope, flat_keys), store)
        kept = {name: values.to(q.dtype) for name, values in kept.items()}
        if self._absorbs(q.shape[1], kept["latent"].shape[1]):
            q, k, v = self._absorbed(q, kept)
            attended = self._out_of_latent(self._attend(scope, q, k, v))
        else:
            k, v = self._expanded(kept)
            attended = self._attend(scope, q, k, v)
        return self._finish(scope, flat, attended), store

    def weights_within(
        self, scope: Scope, x: Float[Tensor, "B T M"], context: Float[Tensor, "B S X"] | None = None
    ) -> Float[Tensor, "B H T S"]:
        """The attention weights in a scope that is already surveyed."""
        flat, flat_keys = self._selected(scope, x, context)
        k, _ = self._expanded(self._new(scope, flat_keys))
        return self._weights(scope, self._queries(scope, flat), k)

    def _queries(self, scope, flat):
        normed = self.cfg.latent_norm is not None
        if self.cfg.q_lora_rank is None:
            q = self.q(*flat)
        else:
            latent = self.q_down(*flat)
            q = self.q_up(self.q_norm(latent) if normed else latent)
        if self.cfg.rope is None:
            return q
        width = self.cfg.head_dim
        turned = self._turn(scope, q[..., width:])
        return torch.cat([q[..., :width], turned], dim=-1)

    def _new(self, scope, flat):
        """What is kept of the tokens that this call brings: the normed latent, and the rotated key of all heads."""
        if flat is None:
            return None
        latent = self.kv_down(*flat)
        new = {"latent": latent if self.cfg.latent_norm is None else self.kv_norm(latent)}
        if self.cfg.rope_dim is not None:
            shared = self.k_rope(*flat)
            new["k_rope"] = self._turn(scope, shared[:, :, None], of_keys=True)[:, :, 0]
        return new

    def _expanded(self, kept):
        k, v = self.k_up(kept["latent"]), self.v_up(kept["latent"])
        if self.cfg.rope_dim is None:
            return k, v
        shared = kept["k_rope"][:, :, None]
        shared = shared.expand(*k.shape[:3], -1)
        return torch.cat([k, shared], dim=-1), v

    def _absorbs(self, queries, keys):
        return self.cfg.absorbs(queries, keys) if self.kernel not in FORMS else self.kernel == "absorbed"

    def _absorbed(self, q, kept):
        """Queries in the latent space, [Wk_h q_h | q_rope], over the key [l | k_rope] and the value l of all heads."""
        width = self.cfg.head_dim
        plain, turned = q[..., :width], q[..., width:]
        k, v = [kept["latent"]], [kept["latent"]]
        moved = [self.k_up.into(plain)]
        if self.cfg.rope_dim is not None:
            moved.append(turned)
            k.append(kept["k_rope"])
        one = torch.ones_like(kept["latent"][..., :1])
        if self.k_up.biased:
            # q . (l Wk + b) = (Wk q) . l + q . b: the bias meets a number that is 1 in every key.
            moved.append(self.k_up.onto_bias(plain))
            k.append(one)
        if self.v_up.biased:
            # Weights may sum to less than 1; the same 1 in every value keeps count.
            v.append(one)
        q, k, v = (torch.cat(parts, dim=-1) for parts in (moved, k, v))
        return q, k[:, :, None], v[:, :, None]

    def _out_of_latent(self, attended):
        """Each head's values, (sum of weights times latents) Wv_h."""
        width = self.cfg.kv_lora_rank
        total = attended[..., width:] if self.v_up.biased else None
        return self.v_up.by_head(attended[..., :width], total)
