"""The plan that a page becomes: made of names and shapes, shortened, and run when a tensor is asked for."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import attn
from attn.hub.engine import Linked, check, plan
from attn.hub.gpt2 import GPT2
from attn.hub.llama import LLAMA
from attn.hub.page import Page, Rule, SplitWithin, Turn
from attn.hub.steps import Cut, Join, Pairing, Reshape, Transpose, inverse, simplify
from attn.masks import Causal
from tests.cases import refused
from tests.checkpoints import NARROW, ROPE, WIDE, D, H, K, L, M, P, U, V, grouped, llama, llama_shapes, numbered


class Counted(Mapping):
    """A mapping that notes which of its arrays were asked for."""

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self.arrays, self.asked = arrays, []
        self.shapes = {name: array.shape for name, array in arrays.items()}
        self.dtypes = {name: array.dtype for name, array in arrays.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        self.asked.append(name)
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


def steps_of(page: Page, cfg: Any, name: str) -> tuple:
    return next(link.steps for link in plan(page, cfg) if name in link.targets)


def test_inverse_operations_cancel_before_a_plan_runs():
    cfg = attn.DecoderConfig(
        vocab_size=V,
        layers=L,
        attention=attn.MultiHeadAttentionConfig(input_dim=M, heads=H, bias=True, mask=Causal()),
        mlp=attn.MLPConfig(input_dim=M, hidden_dim=U, gated=False, bias=True),
        norm=attn.NormConfig(kind="layer"),
        learned_positions=P,
    )
    flat, headed = ((M, M),) * 3, ((M, H, M // H),) * 3
    # The transpose of the page and that of the leaf are gone.
    assert steps_of(GPT2, cfg, "layers.0.attention.q.kernel") == (Cut(-1, (M, M, M)), Reshape(flat, headed))
    assert steps_of(GPT2, cfg, "layers.0.mlp.up.kernel") == ()
    assert steps_of(GPT2, cfg, "embed.embedding") == ()
    flat, headed = ((M, WIDE),), ((M, H, D),)
    assert steps_of(LLAMA, llama(), "layers.0.attention.q.kernel") == (Transpose(), Reshape(flat, headed))
    interleaved = llama(grouped(rope=ROPE | {"layout": "interleaved"}))
    steps = (Pairing(K, D, D, interleave=True), Transpose(), Reshape(((M, NARROW),), ((M, K, D),)))
    assert steps_of(LLAMA, interleaved, "layers.0.attention.k.kernel") == steps


def test_a_chain_and_its_inverse_leave_nothing():
    chain = (
        Cut(0, (2, 3)),
        Transpose(),
        Reshape(((2, 7), (3, 7)), ((14,), (21,))),
        Reshape(((14,), (21,)), ((7, 2), (7, 3))),
        Join(1, (2, 3)),
        Pairing(1, 7, 4, interleave=True),
    )
    assert simplify(chain + inverse(chain)) == ()
    assert len(simplify(chain)) == len(chain) - 1
    assert simplify((Reshape(((6,),), ((2, 3),)), Reshape(((2, 3),), ((6,),)))) == ()
    assert simplify((Reshape(((6,),), ((6,),)),)) == ()


@given(st.integers(1, 4), st.integers(0, 4), st.integers(0, 3), st.booleans())
def test_pairing_is_undone_by_its_inverse(heads, half, rest, interleave):
    step = Pairing(heads, 2 * half + rest, 2 * half, interleave)
    rows = np.arange(heads * step.width * 2).reshape(-1, 2)
    np.testing.assert_array_equal(step.inverse().run(step.run([rows]))[0], rows)


def test_pairing_moves_halves_to_neighbours_and_leaves_the_rest():
    rows = np.array([0, 1, 2, 3, 90, 10, 11, 12, 13, 91])
    assert Pairing(2, 5, 4, interleave=True).run([rows])[0].tolist() == [0, 2, 1, 3, 90, 10, 12, 11, 13, 91]
    assert Pairing(2, 5, 4, interleave=False).run([rows])[0].tolist() == [0, 2, 1, 3, 90, 10, 12, 11, 13, 91]
    rows = np.arange(6)
    assert Pairing(1, 6, 6, interleave=True).run([rows])[0].tolist() == [0, 3, 1, 4, 2, 5]
    assert Pairing(1, 6, 6, interleave=False).run([rows])[0].tolist() == [0, 2, 4, 1, 3, 5]


def test_a_page_that_forgets_or_repeats_a_weight_is_refused():
    rules = [rule for rule in LLAMA.tensors if rule.ours != "norm"]
    page = Page("odd", "Odd", (), (*rules, Rule("again", "embed"), Rule("lm_head", "embed", (Turn(),))))
    text = (
        "page of odd does not fit the config: norm.scale has no place; embed.embedding is filled 3 times; "
        "lm_head.weight is used 2 times."
    )
    with refused(text):
        plan(page, llama())


def test_a_tensor_is_read_when_it_is_asked_for_and_not_before():
    links = plan(LLAMA, llama())
    source = Counted(numbered(llama_shapes()))
    check("weights do not fit", links, source)
    weights = Linked(links, source)
    assert weights.shapes == llama().shapes()
    assert set(weights.dtypes.values()) == {np.dtype(np.float32)}
    assert "norm.scale" in weights
    assert source.asked == []
    array = weights["layers.1.attention.q.kernel"]
    assert source.asked == ["model.layers.1.self_attn.q_proj.weight"]
    assert array.flags.c_contiguous
    assert array.flags.owndata
    array[:] = 0
    assert weights["norm.scale"] is not source.arrays["model.norm.weight"]
    assert source.arrays["model.layers.1.self_attn.q_proj.weight"].all()


def test_a_page_may_take_apart_what_is_fused_within_each_head():
    """The per-head [k|v] of DeepSeek's kv_b_proj, as a page of its own."""
    latent = attn.MultiHeadLatentAttentionConfig(
        input_dim=M, heads=H, kv_lora_rank=5, dim_k=H * 7, dim_v=H * 3, mask=Causal()
    )
    cfg = llama(latent)
    kept = [rule for rule in LLAMA.tensors if "self_attn" not in rule.foreign]
    own = [Rule(f"layers.{{i}}.{part}", f"layers.{{i}}.attention.{part}") for part in ("q", "kv_down", "out")]
    fused = Rule("kv_b.{i}", ("layers.{i}.attention.k_up", "layers.{i}.attention.v_up"), (SplitWithin("H"),))
    page = Page("deepseek", "Deepseek", (), (*kept, *own, fused))
    links = plan(page, cfg)
    stored = numbered({name: shape for link in links for name, shape in link.sources.items()})
    weights = Linked(links, stored)
    assert stored["kv_b.1.weight"].shape == (H * 10, 5)
    for h in range(H):
        rows = stored["kv_b.1.weight"][h * 10 : (h + 1) * 10]
        np.testing.assert_array_equal(weights["layers.1.attention.k_up.kernel"][:, h], rows[:7].T)
        np.testing.assert_array_equal(weights["layers.1.attention.v_up.kernel"][:, h], rows[7:].T)
    again = Linked(tuple(link.inverse() for link in links), weights)
    for name, array in stored.items():
        np.testing.assert_array_equal(again[name], array)


def test_only_the_last_rows_of_each_head_change_their_rotary_layout():
    rows = np.array([90, 0, 1, 2, 3, 91, 10, 11, 12, 13])
    assert Pairing(2, 5, 4, True, 1).run([rows])[0].tolist() == [90, 0, 2, 1, 3, 91, 10, 12, 11, 13]
    rows = np.array([90, 0, 1, 2, 3, 4, 5])
    step = Pairing(1, 7, 6, True, 1)
    assert step.run([rows])[0].tolist() == [90, 0, 3, 1, 4, 2, 5]
    assert step.inverse().run(step.run([rows]))[0].tolist() == rows.tolist()
