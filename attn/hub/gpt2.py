"""GPT-2 (Radford et al. 2019) in the layout of Hugging Face.

Layer norms, learned positions, biases everywhere. Matrices are stored [inputs, outputs], and those of queries, keys and
values as one, side by side. Old files hold the causal masks too, and lack the prefix.
"""

from attn.hub.fields import Always, Field, Times, TrainingOnly
from attn.hub.heads import Heads, Width
from attn.hub.known import HARMLESS
from attn.hub.llama import ACTIVATIONS
from attn.hub.page import Page, Rule, Split, Turn
from attn.masks import Causal

GPT2 = Page(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    fields=(
        Field("vocab_size", "vocab_size"),
        Field("n_positions", "learned_positions"),
        Field("n_layer", "layers"),
        Width("n_embd"),
        Heads("n_head", "n_embd"),
        Field("n_inner", "mlp.hidden_dim", absent=Times("n_embd", 4)),
        Field("activation_function", "mlp.activation", absent="gelu_new", values=ACTIVATIONS[::-1]),
        Field("layer_norm_epsilon", "norm.eps", absent=1e-5),
        Field("tie_word_embeddings", "tied", absent=True),
        TrainingOnly("attn_pdrop", "attention.dropout"),
        Always((("attention.bias", (True,) * 4), ("attention.mask", Causal()), ("attention.rope", None))),
        Always((("mlp.bias", True), ("mlp.gated", False), ("norm.kind", "layer"))),
    ),
    tensors=(
        Rule("transformer.wte", "embed"),
        Rule("transformer.wpe", "positions"),
        Rule("transformer.h.{i}.ln_1", "layers.{i}.attention_norm"),
        Rule(
            "transformer.h.{i}.attn.c_attn",
            ("layers.{i}.attention.q", "layers.{i}.attention.k", "layers.{i}.attention.v"),
            (Split(axis=-1), Turn()),
        ),
        Rule("transformer.h.{i}.attn.c_proj", "layers.{i}.attention.out", (Turn(),)),
        Rule("transformer.h.{i}.ln_2", "layers.{i}.mlp_norm"),
        Rule("transformer.h.{i}.mlp.c_fc", "layers.{i}.mlp.up", (Turn(),)),
        Rule("transformer.h.{i}.mlp.c_proj", "layers.{i}.mlp.down", (Turn(),)),
        Rule("transformer.ln_f", "norm"),
        Rule("lm_head", "head"),
    ),
    prefix="transformer.",
    head=("lm_head.weight", "transformer.wte.weight"),
    buffers=("transformer.h.{i}.attn.bias", "transformer.h.{i}.attn.masked_bias"),
    harmless=HARMLESS | {"scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True},
    written={"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
)
