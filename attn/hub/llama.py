"""Llama (Touvron et al. 2023; Llama 2 and 3) in the layout of Hugging Face; SmolLM2 and many others are written in it.

RMS norms, grouped heads, rotary pairs in halves, a gated MLP. A bias is either on all four projections or on none.
"""

from attn.hub.fields import Always, Field, TrainingOnly
from attn.hub.heads import Heads, Width
from attn.hub.known import HARMLESS
from attn.hub.page import Page, Pairs, Rule
from attn.hub.rotary import Rotary
from attn.masks import Causal

ACTIVATIONS = (
    ("silu", "silu"),
    ("relu", "relu"),
    ("gelu", "gelu"),
    ("gelu_pytorch_tanh", "gelu_tanh"),
    ("gelu_new", "gelu_tanh"),
)

BASICS = (
    Field("vocab_size", "vocab_size"),
    Field("num_hidden_layers", "layers"),
    Width("hidden_size"),
    Field("intermediate_size", "mlp.hidden_dim"),
    Field("hidden_act", "mlp.activation", absent="silu", values=ACTIVATIONS),
    Always((("norm.kind", "rms"), ("mlp.gated", True))),
    TrainingOnly("attention_dropout", "attention.dropout"),
)
"""What every format around Llama's block says in the same words and with the same defaults."""

SIZES = (
    *BASICS,
    Field("rms_norm_eps", "norm.eps", absent=1e-6),
    Field("tie_word_embeddings", "tied", absent=False),
    Rotary(),
)

LLAMA = Page(
    model_type="llama",
    architecture="LlamaForCausalLM",
    fields=(
        *SIZES,
        Heads("num_attention_heads", "hidden_size", "num_key_value_heads", "head_dim", divides=True),
        Field("attention_bias", "attention.bias", absent=False, values=((False, (False,) * 4), (True, (True,) * 4))),
        Field("mlp_bias", "mlp.bias", absent=False),
        Always((("attention.mask", Causal()),)),
    ),
    tensors=(
        Rule("model.embed_tokens", "embed"),
        Rule("model.layers.{i}.input_layernorm", "layers.{i}.attention_norm"),
        Rule("model.layers.{i}.self_attn.q_proj", "layers.{i}.attention.q", (Pairs("H"),)),
        Rule("model.layers.{i}.self_attn.k_proj", "layers.{i}.attention.k", (Pairs("K"),)),
        Rule("model.layers.{i}.self_attn.v_proj", "layers.{i}.attention.v"),
        Rule("model.layers.{i}.self_attn.o_proj", "layers.{i}.attention.out"),
        Rule("model.layers.{i}.post_attention_layernorm", "layers.{i}.mlp_norm"),
        Rule("model.layers.{i}.mlp.gate_proj", "layers.{i}.mlp.gate"),
        Rule("model.layers.{i}.mlp.up_proj", "layers.{i}.mlp.up"),
        Rule("model.layers.{i}.mlp.down_proj", "layers.{i}.mlp.down"),
        Rule("model.norm", "norm"),
        Rule("lm_head", "head"),
    ),
    prefix="model.",
    head=("lm_head.weight", "model.embed_tokens.weight"),
    buffers=("model.rotary_emb.inv_freq", "model.layers.{i}.self_attn.rotary_emb.inv_freq"),
    harmless=HARMLESS | {"partial_rotary_factor": 1.0, "rope_interleaved": False, "sliding_window": None},
    written={"bos_token_id": None, "eos_token_id": None, "pad_token_id": None},
)
