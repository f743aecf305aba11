"""A real model from its files, in both frameworks: each tells the same story."""

from pathlib import Path

import numpy as np
import torch

import attn
import attn_jax
import attn_torch
from attn.hub.llama2c_tokenizer import Llama2cTokenizer

FOLDER = Path(__file__).parent / "data" / "stories260K"

cfg, weights = attn.hub.read(FOLDER)  # a Hugging Face folder; the llama2.c file beside it works too
tokenizer = Llama2cTokenizer.read(FOLDER / "tok512.bin")
prompt = np.array([tokenizer.encode("Once upon a time, there was a big dog")], np.int32)

module = attn_torch.build(cfg)
module.load_state_dict(attn_torch.from_neutral(cfg, weights))
in_torch = attn_torch.generate(module, torch.from_numpy(prompt), steps=60)[0].tolist()

variables = attn_jax.from_neutral(cfg, weights)
in_jax = attn_jax.generate(attn_jax.build(cfg), variables, prompt, steps=60)[0].tolist()

print(tokenizer.decode(in_torch))
print(f"the same in JAX: {in_jax == in_torch}")
