"""Caches: what is kept of the tokens already read."""
