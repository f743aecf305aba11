"""Kernels: fast forms of attention beside the plain one, and the rule that picks one before anything is computed."""

from attn_jax.kernels.choice import attend, check_kernel, explain

__all__ = ["attend", "check_kernel", "explain"]
