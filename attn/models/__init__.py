"""Models: blocks, and what is built of them, around an attention config."""

from attn.models.decoder import DecoderConfig

MODELS = {"decoder": DecoderConfig}
"""Every model, by its name."""

__all__ = [
    "DecoderConfig",
    "MODELS",
]
