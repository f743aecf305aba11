"""A training that begins in JAX and goes on in PyTorch, from one folder, as if nothing had happened."""

import tempfile
from pathlib import Path

import torch  # noqa: F401  before jax: after it, PyTorch's import can crash the process

import attn
import attn_jax
import attn_torch
from attn.batches import Batches
from attn.characters import CharTokenizer

text = (Path(__file__).parent / "data" / "tinyshakespeare.txt").read_text(encoding="utf-8")[:50_000]
tokenizer = CharTokenizer.of(text)
tokens = tokenizer.encode(text)

attention = attn.MultiQueryAttentionConfig(input_dim=32, heads=4, mask=attn.Causal(), rope=attn.Rope())
mlp = attn.MLPConfig(input_dim=32, hidden_dim=64)
cfg = attn.DecoderConfig(vocab_size=tokenizer.vocab_size, layers=2, attention=attention, mlp=mlp)
train = attn.TrainConfig(steps=20, batch=8, context=32, learning_rate=3e-3)
fixed = [Batches(train, tokens).at(0)]

with tempfile.TemporaryDirectory() as folder:
    module = attn_jax.build(cfg)
    variables = attn_jax.from_neutral(cfg, attn.init_weights(cfg, seed=0))
    state = attn_jax.init_state(module, variables, train, tokenizer=tokenizer)
    state = attn_jax.train(module, state, tokens, until=10, folder=folder)
    before = attn_jax.evaluate(module, state.variables, fixed)

    module, state = attn_torch.load_training(folder)  # weights, moments, step and losses
    after = attn_torch.evaluate(module, fixed)
    state = attn_torch.train(module, state, tokens, folder=folder)

print(f"the loss on a batch: {before:.2f} in JAX, {abs(after - before):.0e} apart in PyTorch")
print(
    f"step {state.history.step} of {train.steps}: from {state.history.losses[0]:.2f} to {state.history.losses[-1]:.2f}"
)
