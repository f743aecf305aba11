"""The commands of `attn`, one in each file, as a function `run`."""
