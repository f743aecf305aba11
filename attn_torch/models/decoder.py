"""A decoder: tokens in, logits of the next token out."""

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from attn.call import check_range, check_tokens
from attn.models.decoder import DecoderConfig
from attn_torch.caches.cache import Cache
from attn_torch.functional import capped, scaled, select, wide
from attn_torch.layers import ATTENTIONS
from attn_torch.models.block import Block
from attn_torch.parts import declare
from attn_torch.scope import check_values, concrete, survey
from attn_torch.tokens import describe


class Decoder(nn.Module):
    """logits = norm(block_L(... block_1(embed[tokens] + positions[p]))) Whead.

    Attributes:
        cfg: the model's config.
        dtype: what inputs and parameters are cast to on use; None computes in the parameters' own dtype.
        kernel: the name of an attention kernel to force; None chooses by what a call needs.
    """

    def __init__(self, cfg: DecoderConfig, dtype: torch.dtype | None = None, kernel: str | None = None):
        super().__init__()
        self.cfg = cfg
        self.dtype = dtype
        self.kernel = kernel
        declare(self, cfg, dtype)
        self.layers = nn.ModuleList(
            Block(block, ATTENTIONS[type(block.attention)](block.attention, dtype, kernel), dtype)
            for block in cfg.blocks
        )

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        positions: Int[Tensor, "B T"] | None = None,
        valid: Bool[Tensor, "B T"] | None = None,
        segments: Int[Tensor, "B T"] | None = None,
        cache: Cache | None = None,
    ) -> Any:
        """logits [B T V], at least float32; with a cache, (logits, cache). Where a token is invalid they are exactly 0.

        Raises:
            ValueError: an argument contradicts the config or another argument; nothing is computed.
        """
        call = {"positions": positions, "valid": valid, "segments": segments}
        self.check(tokens, **call)
        if cache is not None:
            cache.check(self.cfg, tokens.shape[0], call)
        ledgers = () if cache is None else cache.ledgers
        check_values(call, ledgers, tokens.shape[1])
        self._check_places(*tokens.shape, **call, counts=ledgers[0].counts if ledgers else None, device=tokens.device)
        scopes = [survey(*tokens.shape, **call, ledger=ledger, device=tokens.device) for ledger in ledgers or (None,)]
        valid = scopes[0].queries.valid
        tokens = select(valid, tokens.long())
        logits, stores = self._through(scopes, tokens, cache)
        if cache is None:
            return logits
        cache = cache.after(tuple(scope.ledger for scope in scopes), stores)
        return cache.poison(logits), cache

    def check(
        self,
        tokens: Int[Tensor, "B T"],
        valid: Bool[Tensor, "B T"] | None = None,
        positions: Int[Tensor, "B T"] | None = None,
        segments: Int[Tensor, "B T"] | None = None,
    ) -> None:
        """Refuse tokens that are not the model's; what stands at an invalid token does not matter.

        Raises:
            ValueError: a shape or dtype is wrong, or a token is not in the vocabulary.
        """
        check_tokens(self.cfg, tokens, positions=positions, valid=valid, segments=segments)
        if concrete(tokens, valid) and tokens.numel():
            real = select(valid, tokens.long())
            check_range("tokens", int(real.min()), int(real.max()), self.cfg.vocab_size)

    def _check_places(self, batch, length, **rows):
        if self.cfg.learned_positions is not None and concrete():
            tokens, _, _ = describe(batch, length, **rows)
            places = select(tokens.valid, tokens.positions)
            if concrete(places) and places.numel():
                check_range("positions", int(places.min()), int(places.max()), self.cfg.learned_positions)

    def _through(self, scopes, tokens, cache):
        layers = range(self.cfg.layers)
        of_layer = [0 for _ in layers] if cache is None else cache.layers
        stores = [None for _ in layers] if cache is None else cache.stores
        queries = scopes[0].queries
        x = scaled(self.embed(tokens), self.cfg.embed_scale)
        if self.cfg.learned_positions is not None:
            x = x + self.positions(select(queries.valid, queries.positions))
        x = select(queries.valid, x)
        kept = []
        for layer, scope, store in zip(self.layers, of_layer, stores, strict=True):
            x, store = layer(scopes[scope], x, store)
            kept.append(store)
        x = self.norm(x)
        logits = self.embed.attend(x) if self.cfg.tied else self.head(x)
        logits = scaled(logits.to(wide(logits.dtype)), self.cfg.logit_scale)
        return select(queries.valid, capped(logits, self.cfg.logit_softcap)), tuple(kept)
