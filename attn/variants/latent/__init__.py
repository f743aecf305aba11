"""The latent family, one page per variant."""
