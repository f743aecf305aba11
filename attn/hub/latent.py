"""What config.json says of latent attention, and where its tensors stand; the page of each family takes it from here.

One matrix holds the latent and the shared rotary key, another the keys and the values of each head.
"""

from dataclasses import dataclass
from typing import Any

from attn.hub.facts import Facts
from attn.hub.fields import REQUIRED, Always, Fields, shared, size
from attn.hub.known import SILENT
from attn.hub.llama import BASICS, LLAMA
from attn.hub.page import Pairs, Rule, Split, SplitWithin
from attn.masks import Causal
from attn.variants.latent.latent import LatentNorm

# The norms on the latents do not follow rms_norm_eps.
LATENT = (*BASICS, Always((("attention.mask", Causal()), ("attention.latent_norm", LatentNorm(eps=1e-6)))))
"""What every format of latent attention says in the same words and with the same defaults."""

DERIVED = SILENT | {"auto_map", "embedding_initializer_range", "head_dim", "num_key_value_heads", "qk_head_dim"}
"""Fields that say nothing of the logits: some follow from others here, and transformers sets head_dim to R."""

NAMES = {
    "heads": "num_attention_heads",
    "kv_lora_rank": "kv_lora_rank",
    "q_lora_rank": "q_lora_rank",
    "nope": "qk_nope_head_dim",
    "rope_dim": "qk_rope_head_dim",
    "value": "v_head_dim",
}
"""The fields of H, C, Q, D, R and E."""


@dataclass(frozen=True)
class LatentHeads:
    """How many heads there are, how wide each part of them is, how wide the latents are, and which projections shift.

    Attributes:
        q_lora_rank: Q of a file that lacks the field; null projects queries directly.
        shares: whether E is hidden_size / H where no field says it; otherwise one must.
        divides: whether the format wants hidden_size to be a multiple of H.
    """

    q_lora_rank: int
    shares: bool = False
    divides: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (*NAMES.values(), "attention_bias")

    @property
    def paths(self) -> tuple[str, ...]:
        own = ("variant", "heads", "dim_k", "dim_v", "kv_lora_rank", "q_lora_rank", "rope_dim", "bias", "kv_heads")
        return tuple(f"attention.{name}" for name in own)

    def read(self, fields: Fields) -> Facts:
        heads = size(fields, NAMES["heads"])
        queries = fields.get(NAMES["q_lora_rank"], self.q_lora_rank)
        queries = None if queries is None else size({NAMES["q_lora_rank"]: queries}, NAMES["q_lora_rank"])
        own = {
            "variant": "latent",
            "heads": heads,
            "dim_k": heads * size(fields, NAMES["nope"]),
            "dim_v": heads * size(fields, NAMES["value"], self._value(fields, heads)),
            "kv_lora_rank": size(fields, NAMES["kv_lora_rank"]),
            "q_lora_rank": queries,
            "rope_dim": size(fields, NAMES["rope_dim"]),
            "bias": _biases(_flag(fields, "attention_bias"), queries),
        }
        return {f"attention.{name}": value for name, value in own.items()}

    def _value(self, fields: Fields, heads: int) -> Any:
        if not self.shares or fields.get(NAMES["value"]) is not None:
            return REQUIRED
        return size(fields, "hidden_size") // heads

    def write(self, facts: Facts) -> dict[str, Any]:
        variant, heads, dim_k, dim_v, latent, queries, rope_dim, bias, _ = (shared(facts, path) for path in self.paths)
        width = facts["mlp.input_dim"]
        if variant != "latent":
            raise ValueError(f"attention.variant must be 'latent', not {variant!r}")
        if rope_dim is None:
            raise ValueError("attention.rope_dim must be a positive integer, not None")
        if self.divides and width % heads:
            raise ValueError(f"attention.heads must divide input_dim={width}, not {heads}")
        biases = [_biases(flag, queries) for flag in (False, True)]
        if bias not in biases:
            raise ValueError(f"attention.bias must be one of {biases[0]}, {biases[1]}, not {bias}")
        sizes = {"heads": heads, "kv_lora_rank": latent, "q_lora_rank": queries, "rope_dim": rope_dim}
        sizes |= {"nope": dim_k // heads, "value": dim_v // heads}
        written = {NAMES[name]: value for name, value in sizes.items()}
        return written | {"num_key_value_heads": heads, "attention_bias": bias == biases[1]}


def _flag(fields: Fields, name: str) -> bool:
    value = fields.get(name)
    value = False if value is None else value
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, not {value!r}")
    return value


def _biases(flag: bool, q_lora_rank: int | None) -> tuple[bool, ...]:
    """The answer for each projection: those that read or write the model's width shift, but not a direct q."""
    queries = (False,) if q_lora_rank is None else (flag, False)
    kv_down, k_rope, k_up, v_up, out = flag, flag, False, False, flag
    return (*queries, kv_down, k_rope, k_up, v_up, out)


def tensors(layout: str | None = None) -> tuple[Rule, ...]:
    """Where latent attention stands, and around it what stands in a Llama.

    `layout` is the file's rotary layout; None where a field says it, so that nothing has to move.
    """
    queries = () if layout is None else (Pairs("H", layout, last="R"),)
    keys = () if layout is None else (Pairs(None, layout, last="R"),)
    theirs, ours = "model.layers.{i}.self_attn.", "layers.{i}.attention."
    return (
        *(rule for rule in LLAMA.tensors if ".self_attn." not in rule.foreign),
        Rule(f"{theirs}q_proj", f"{ours}q", queries),
        Rule(f"{theirs}q_a_proj", f"{ours}q_down"),
        Rule(f"{theirs}q_a_layernorm", f"{ours}q_norm"),
        Rule(f"{theirs}q_b_proj", f"{ours}q_up", queries),
        Rule(f"{theirs}kv_a_proj_with_mqa", (f"{ours}kv_down", f"{ours}k_rope"), (*keys, Split())),
        Rule(f"{theirs}kv_a_layernorm", f"{ours}kv_norm"),
        Rule(f"{theirs}kv_b_proj", (f"{ours}k_up", f"{ours}v_up"), (SplitWithin("H"),)),
        Rule(f"{theirs}o_proj", f"{ours}out"),
    )
