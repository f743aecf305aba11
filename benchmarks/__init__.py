"""Benchmarks: attn beside its peers, interleaved in one process. `make bench` runs them and writes results/."""
