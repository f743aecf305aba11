"""Mechanisms: the few computations behind the many variants."""
