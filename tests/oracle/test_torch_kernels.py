"""The kernels of attn_torch: each is the plain form, faster, and says why it was not chosen."""

import random
from itertools import product

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode

import attn
import attn_torch
from attn.kernels import Facts, Slower, span
from attn.masks import AllOf, AnyOf, Causal, Chunked, SlidingWindow
from attn.tolerance import bound, floors, row_error
from attn_torch.functional import attention_weights, positioned
from attn_torch.kernels import blocks, flash, sdpa
from attn_torch.kernels.choice import KERNELS, REFUSALS
from attn_torch.kernels.cuts import cuts, share
from attn_torch.kernels.unpadding import unpadded
from attn_torch.scope import survey
from attn_torch.scoring import Scoring
from tests import terms
from tests.cases import CASES, RULES, TWINS, assert_close, draw, refused, weights_of

TORCH = TWINS[1]
B, H, K, D, E = 2, 6, 3, 5, 7
SIZES = [1, 31, 127, 129, 1000]

WIDER = RULES | {
    "window_of_37": SlidingWindow(width=37),
    "symmetric_window_of_41": SlidingWindow(width=41, symmetric=True),
    "chunks_of_29": Chunked(width=29),
    "chunks_of_130": Chunked(width=130),
}
"""Rules whose borders fall inside blocks, on them, and beyond them."""

GIVEN = ["", "valid", "segments", "valid segments", "positions", "allowed", "bias", "context"]
GIVEN += ["shorter context positions", "shorter context positions context_valid"]
OPTIONS = ["", "sinks", "alibi", "softcap", "t5", "sinks alibi", "softcap sinks alibi", "softcap t5"]
EVERY = list(product(SIZES, WIDER, GIVEN, OPTIONS))
SMALL = [case for case in EVERY if case[0] < 1000]
SAMPLE = [*random.Random(0).sample(SMALL, 170), (1000, "window_of_37", "segments", "sinks")]
SAMPLE += [
    (1000, "window_of_37", "", "alibi"),
    (1000, "symmetric_window_of_41", "", ""),
    (1000, "chunks_of_130", "", ""),
    (1000, "causal", "shorter context context_valid", "sinks"),
    (1000, "full", "shorter context", "softcap"),
    (1000, "full", "shorter context positions", "alibi"),
]
SAMPLE += [(T, rule, "", "") for T in SIZES[:4] for rule in ("full", "causal")]
"""One seeded sample of the combinations, some cases of many blocks, and what needs no mask."""


class Call:
    """A call of a kernel: the operands of attention, and what is said of their tokens."""

    def __init__(self, T: int, rule, given: str = "", options: str = "", dtype: str = "float64", dropout: float = 0.0):
        rng = np.random.default_rng(0)
        given, options = given.split(), options.split()
        S = T + 6 if "context" in given else T
        S = -(-T // 3) if "shorter" in given else S
        rows = {
            "valid": rng.random((B, T)) < 0.7,
            "segments": (rng.random((B, T)) < 0.15).cumsum(1),
            "positions": rng.integers(0, 60, (B, T)),
            "allowed": rng.random((B, 1, T, S)) < 0.5,
            "context_valid": rng.random((B, S)) < 0.7,
        }
        rows["allowed"][:, :, 3::5] = False
        rows["allowed"][:, :, 0, 0] = True
        rows = {name: torch.from_numpy(row) for name, row in rows.items() if name in given}
        self.T, self.S, self.rule, self.valid = T, S, rule, rows.get("valid")
        self.scope = survey(B, T, S if "context" in given else None, **rows)
        shapes = {"q": (B, T, H, D), "k": (B, S, K, D), "v": (B, S, K, E)}
        shapes |= {"bias": (1, H, T, S)} if "bias" in given else {}
        shapes |= {"relative": (H, 41)} if "t5" in options else {}
        shapes |= {"sinks": (H,)} if "sinks" in options else {}
        arrays = {name: torch.from_numpy(rng.standard_normal(shape)) for name, shape in shapes.items()}
        self.operands = {name: array.to(getattr(torch, dtype)).requires_grad_() for name, array in arrays.items()}
        slopes = tuple(0.5 ** (h + 1) for h in range(H)) if "alibi" in options else None
        softcap = 2.0 if "softcap" in options else None
        relative, sinks = self.operands.get("relative"), self.operands.get("sinks")
        self.scoring = Scoring(0.4, softcap, slopes, relative, sinks, dropout)
        words = self.scope.given | ({"bias"} if "bias" in given else set())
        self.facts = Facts(rule, T, S, D, E, dtype, "cpu", True, words, self.scoring.options)

    def run(self, kernel: str) -> torch.Tensor:
        """y [B T H E]; zeros where a query is invalid, for nobody reads what stands there."""
        q, k, v = (self.operands[name] for name in "qkv")
        y = KERNELS[kernel](self.rule, self.scope, self.scoring, q, k, v, self.operands.get("bias"))
        return y if self.valid is None else y.masked_fill(~self.valid[:, :, None, None], 0)

    def found(self, kernel: str) -> dict[str, np.ndarray]:
        """y, and the gradient of every operand."""
        y = self.run(kernel)
        gradients = torch.autograd.grad((y * self.direction()).sum(), list(self.operands.values()))
        return {"y": y.detach().double().numpy()} | {
            name: gradient.double().numpy() for name, gradient in zip(self.operands, gradients, strict=True)
        }

    def direction(self) -> torch.Tensor:
        """What multiplies y; whatever stands where a query is invalid is multiplied by 0."""
        v = self.operands["v"]
        direction = torch.from_numpy(np.random.default_rng(1).standard_normal((B, self.T, H, v.shape[-1]))).to(v.dtype)
        return direction if self.valid is None else direction.masked_fill(~self.valid[:, :, None, None], 0)

    def least(self) -> dict[str, np.ndarray]:
        """What small rows of the gradients are measured against."""
        arrays = {name: operand.detach() for name, operand in self.operands.items()}
        q, k, v, bias, scoring = arrays["q"], arrays["k"], arrays["v"], arrays.get("bias"), self.scoring
        scoring = scoring._replace(relative=arrays.get("relative"), sinks=arrays.get("sinks"))
        bias = positioned(bias, scoring, self.scope.queries.positions, self.scope.keys.positions, q.dtype)
        weights = attention_weights(q, k, scoring, allowed=self.scope.mask(self.rule), bias=bias)
        numbers = (array.numpy() for array in (weights, q, k, v, self.direction()))
        return terms.least(*numbers, scoring.scale)

    @property
    def unseen(self) -> dict[str, np.ndarray]:
        """What must be exactly 0: rows of queries that see nothing, and of keys that nobody sees."""
        mask = self.scope.mask(self.rule)
        mask = torch.ones(B, 1, self.T, self.S) > 0 if mask is None else mask.expand(B, 1, self.T, self.S)
        mask = mask if self.valid is None else mask & self.valid[:, None, :, None]
        queries, keys = (~mask.any(axis)[:, 0].numpy() for axis in (-1, -2))
        return {"y": queries, "q": queries, "k": keys, "v": keys}

    def kernels(self) -> list[str]:
        """The kernels beside the plain one that can run this call, whether or not they are the fastest."""
        reasons = {name: refusal(self.facts) for name, refusal in REFUSALS.items() if name != "plain"}
        return [name for name, reason in reasons.items() if reason is None or isinstance(reason, Slower)]


def limit(call: Call, name: str, dtype: str) -> float:
    """How far a correct kernel may part from the plain form in float64."""
    cfg = attn.GroupedQueryAttentionConfig(input_dim=17, heads=H, kv_heads=K, dim_k=H * D, dim_v=H * E)
    return bound(cfg, call.T, call.S, dtype, gradient=name != "y", batch=B)


def assert_plain(case: tuple, dtype: str = "float64") -> None:
    """Every kernel that can run the call gives what the plain form gives in float64, and 0 where nothing is seen."""
    T, rule, given, options = case
    precise = Call(T, WIDER[rule], given, options)
    exact, call = precise.found("plain"), Call(T, WIDER[rule], given, options, dtype)
    gradients = {name: array for name, array in exact.items() if name != "y"}
    small = floors(gradients, {name: float(np.linalg.norm(array)) for name, array in gradients.items()})
    small |= {name: np.maximum(small[name], rows) for name, rows in precise.least().items()}
    for kernel in call.kernels():
        for name, array in call.found(kernel).items():
            assert row_error(array, exact[name], small.get(name)) <= limit(call, name, dtype), (kernel, name)
            if name in call.unseen:
                assert not array[call.unseen[name]].any(), (kernel, name)


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: "-".join(map(str, case)).replace(" ", "+"))
def test_every_kernel_is_the_plain_form(case):
    assert_plain(case)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("T", "rule"), list(product(SIZES, WIDER)))
def test_every_kernel_is_the_plain_form_in_every_combination(T, rule, dtype):
    every = list(product(GIVEN, OPTIONS))
    # At T=1000 each takes seconds: each rule and dtype has a sample of its own.
    for given, options in every if T < 1000 else random.Random(f"{rule} {dtype}").sample(every, 6):
        assert_plain((T, rule, given, options), dtype)


SEVERAL = [
    (127, "causal", "", "sinks"),
    (129, "window_of_37", "valid segments", "sinks alibi"),
    (31, "full", "bias", ""),
    (129, "causal", "", "t5"),
]
SEVERAL += [
    (129, "symmetric_window_of_41", "allowed", "alibi"),
    (129, "chunks_of_29", "segments", "softcap sinks alibi"),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", SEVERAL, ids=lambda case: "-".join(map(str, case)).replace(" ", "+"))
def test_other_dtypes_stay_within_their_rounding(case, dtype):
    if dtype == "float32":
        assert_plain(case, dtype)
        return
    T, rule, given, options = case
    call = Call(T, WIDER[rule], given, options, dtype)
    for kernel in call.kernels():
        y = call.run(kernel)
        assert y.dtype == torch.bfloat16
        gradients = torch.autograd.grad(y.float().sum(), list(call.operands.values()))
        assert all(gradient.dtype == torch.bfloat16 and gradient.isfinite().all() for gradient in gradients)
        exact = Call(T, WIDER[rule], given, options).found("plain")["y"]
        assert row_error(y.detach().double().numpy(), exact) <= limit(call, "y", dtype)


def test_the_sample_reaches_every_kernel_of_the_cpu():
    reached = {
        kernel for T, rule, given, options in SAMPLE for kernel in Call(T, WIDER[rule], given, options).kernels()
    }
    assert reached == KERNELS.keys() - {"plain", "flex"}


# What a block may leave out, and what it must not touch.


@pytest.mark.parametrize("name", WIDER)
def test_the_span_of_a_rule_holds_all_that_it_allows(name):
    behind, ahead = span(WIDER[name])
    q, k = np.arange(300)[:, None], np.arange(300)
    distances = (q - k)[WIDER[name].allows(q, k) > 0]
    assert (distances.max(), -distances.min()) <= (behind, ahead)
    if not isinstance(WIDER[name], AllOf | AnyOf):
        assert (distances.max(), -distances.min()) == (min(behind, 299), min(ahead, 299))


@pytest.mark.parametrize(
    "given", ["", "valid", "segments", "valid segments", "positions", "context", "shorter context"]
)
@pytest.mark.parametrize("name", WIDER)
def test_no_key_that_may_be_seen_is_cut_off(name, given):
    call = Call(129, WIDER[name], given)
    mask = call.scope.mask(call.rule)
    mask = np.ones((1, 1, call.T, call.S)) if mask is None else mask.expand(-1, -1, call.T, call.S).numpy()
    if call.valid is not None:
        mask = mask & call.valid[:, None, :, None].numpy()
    kept = np.zeros((call.T, call.S), bool)
    for block in cuts(call.rule, call.scope.given, call.T, call.S, 23):
        kept[block.queries, block.keys] = True
    assert not (mask > kept).any()


def test_a_window_costs_what_it_sees():
    for T in (1000, 2000, 8192):
        rule = SlidingWindow(width=256)
        pairs = share(cuts(rule, frozenset(), T, T, blocks.size(rule)), T, T) * T * T
        assert T * 256 < pairs < T * (256 + blocks.NARROW)
        padded = cuts(rule, unpadded(rule, frozenset({"valid", "segments"})), T, T, blocks.size(rule))
        assert padded == cuts(rule, frozenset(), T, T, blocks.size(rule))
    assert 0.5 < share(cuts(Causal(), frozenset({"segments"}), 4096, 4096, 256), 4096, 4096) < 0.54


def test_blocks_of_one_shape_are_one_call(monkeypatch):
    calls, attend = [], flash._attend
    monkeypatch.setattr(flash, "_attend", lambda q, *rest, **more: calls.append(q.shape[0]) or attend(q, *rest, **more))
    q, k, v = (torch.from_numpy(draw(1, 1000, heads, D)) for heads in (H, K, K))
    for rule, given in (
        (SlidingWindow(width=37), {}),
        (SlidingWindow(width=37), {"segments": torch.arange(1000) // 7}),
    ):
        calls.clear()
        blocks.attend(rule, survey(1, 1000, **given), Scoring(0.4), q, k, v, None)
        # The first block has no keys before it.
        assert calls == [1, 7]
    calls.clear()
    blocks.attend(Chunked(width=300), survey(1, 1000), Scoring(0.4), q, k, v, None)
    assert calls == [3, 1]
    # Of many rows each block is a call.
    calls.clear()
    blocks.attend(
        SlidingWindow(width=37), survey(9, 1000), Scoring(0.4), *(x.repeat(9, 1, 1, 1) for x in (q, k, v)), None
    )
    assert calls == [9] * 8


@pytest.mark.parametrize("options", ["", "sinks", "softcap", "alibi"])
@pytest.mark.parametrize("given", ["", "segments"])
def test_what_stands_outside_a_window_is_never_touched(given, options):
    for kernel in ("blocks", "chunked"):
        call = Call(400, SlidingWindow(width=37), given, options)
        if kernel not in call.kernels():
            continue
        clean = call.run(kernel)
        with torch.no_grad():
            call.operands["k"][:, :50] = torch.nan
            call.operands["v"][:, 350:] = torch.nan
        y = call.run(kernel)
        # Blocks of up to 128 queries: those that start beyond the first and end before the last are far from both.
        first, last = 134, 266
        assert y[:, first:last].equal(clean[:, first:last])
        assert y[:, :50].isnan().all()


class Largest(TorchDispatchMode):
    """The size of the largest tensor that is made."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **kwargs or {})
        sizes = [t.numel() for t in torch.utils._pytree.tree_leaves(made) if isinstance(t, torch.Tensor)]
        self.size = max(self.size, *sizes, 0)
        return made


@pytest.mark.parametrize(
    ("kernel", "options"), [("blocks", "sinks alibi"), ("chunked", "softcap alibi"), ("plain", "")]
)
def test_no_tensor_has_all_scores_in_it(kernel, options):
    sizes = []
    for T in (400, 800):
        call = Call(T, SlidingWindow(width=37), "segments", options)
        with Largest() as largest:
            call.found(kernel)
        sizes.append(largest.size)
    assert sizes[1] / sizes[0] > 3.9 if kernel == "plain" else sizes[1] / sizes[0] < 2.1


# Sinks, dropout, widths.


def test_a_sink_is_one_more_key_whose_value_is_0():
    q, k, v, sinks = draw(1, H, 1, D), draw(1, H, 2, D, seed=1), draw(1, H, 2, D, seed=2), draw(H, seed=3)
    y, lse = flash.attended(
        *map(torch.from_numpy, (q, k, v, sinks)), None, None, None, [], None, None, [1, 1, 0, 1, 0, 2], False, 0.3
    )
    scores = np.concatenate([np.einsum("bhtd,bhsd->bhts", q, k) * 0.3, sinks[None, :, None, None]], -1)
    total = np.exp(scores).sum(-1, keepdims=True)
    assert_close(y.numpy(), np.exp(scores[..., :2]) / total @ v)
    assert_close(lse.numpy(), np.log(total[..., 0]))


@pytest.mark.parametrize("by_distance", ["alibi", "t5"])
def test_the_flash_operators_keep_the_promises_that_a_compiler_relies_on(by_distance):
    call = Call(7, Causal(), "valid segments", f"sinks {by_distance}")
    q, k = (call.operands[name].detach().transpose(1, 2).requires_grad_() for name in "qk")
    v = torch.from_numpy(draw(B, K, 7, D)).requires_grad_()
    parts = cuts(call.rule, call.scope.given, 7, 7, 3)
    seen, positions = blocks.masks(call.rule, call.scope, parts), call.scope.queries.positions
    bias = torch.from_numpy(draw(1, 1, 7, 7))
    edges = [edge for part in parts for edge in (1, 1, *part)]
    relative, slopes = call.operands.get("relative"), list(call.scoring.slopes or ())
    relative = None if relative is None else relative.detach()
    inputs = q, k, v, call.scoring.sinks, seen, bias, relative, slopes, positions, positions, edges, False, 0.4
    torch.library.opcheck(torch.ops.attn.flash, inputs)


@pytest.mark.parametrize("options", ["", "sinks", "softcap", "alibi"])
def test_the_backward_pass_drops_the_weights_that_the_forward_pass_dropped(options):
    # With values that are the rows of an identity, y shows the weights, and the gradient of v is theirs.
    call = Call(300, SlidingWindow(width=280), "segments", options, dropout=0.4)
    eye = torch.eye(300, dtype=torch.float64)[None, :, None].expand(B, 300, K, 300)
    call.operands["v"] = eye.clone().requires_grad_()
    weights = call.run("chunked")
    direction = torch.from_numpy(draw(*weights.shape))
    (gradient,) = torch.autograd.grad((weights * direction).sum(), call.operands["v"])
    expected = torch.einsum("btkgs,btkge->bske", weights.unflatten(2, (K, -1)), direction.unflatten(2, (K, -1)))
    assert_close(gradient.numpy(), expected.detach().numpy())
    kept = Call(300, SlidingWindow(width=280), "segments", options)
    kept.operands["v"] = eye
    full, dropped = kept.run("plain"), weights == 0
    assert_close(weights.detach().numpy(), torch.where(dropped, 0, full / 0.6).detach().numpy())
    possible = int((full > 0).sum())
    assert abs(int((dropped & (full > 0)).sum()) / possible - 0.4) < 4 * (0.24 / possible) ** 0.5
    assert not torch.equal(weights, call.run("chunked"))


@pytest.mark.parametrize("name", ["full", "causal", "window_of_3"])
@pytest.mark.parametrize("widths", [(5, 7), (7, 5), (4, 4)])
def test_widths_of_keys_and_values_may_differ(name, widths, monkeypatch):
    monkeypatch.setattr("attn_torch.kernels.sdpa.MANY", 0)
    D, E = widths
    call = Call(31, RULES[name])
    for operand, width in (("q", D), ("k", D), ("v", E)):
        call.operands[operand] = torch.from_numpy(draw(*call.operands[operand].shape[:3], width)).requires_grad_()
    exact = call.found("plain")
    for kernel in call.kernels():
        for operand, array in call.found(kernel).items():
            assert row_error(array, exact[operand]) <= limit(call, operand, "float64")


@pytest.mark.parametrize(
    ("rule", "given"), [("full", ""), ("full", "context"), ("causal", ""), ("causal", "valid"), ("full", "bias")]
)
def test_many_keys_stand_behind_one_another(rule, given, monkeypatch):
    fused, taken = torch.nn.functional.scaled_dot_product_attention, []

    def spy(*arrays, **options):
        taken.extend(arrays)
        return fused(*arrays, **options)

    monkeypatch.setattr(sdpa, "LONG", 31)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    assert_plain((31, rule, given, ""))
    assert taken
    assert all(array.is_contiguous() for array in taken)


# The same through a module: caches, compiled code, the table.


@pytest.mark.parametrize("kernel", ["blocks", "chunked", "sdpa_masked"])
@pytest.mark.parametrize("option", [{}, {"sinks": True}, {"softcap": 2.0}])
def test_a_cache_is_read_by_every_kernel(kernel, option):
    cfg = CASES["grouped_query"].replace(**option)
    x, weights = draw(3, 11, cfg.input_dim), weights_of(cfg)
    reason = REFUSALS[kernel](
        Facts(cfg.rule, 4, 16, 7, 4, "float64", "cpu", False, frozenset({"cache"}), options_of(cfg))
    )
    if reason is not None and not isinstance(reason, Slower):
        pytest.skip(reason)
    cache, found = TORCH.init_cache(cfg, 3, 16), []
    for part in (x[:, :7], x[:, 7:8], x[:, 8:]):
        y, cache = TORCH(cfg, weights, part, cache=cache, options={"kernel": kernel})
        found.append(y)
    assert_close(np.concatenate(found, 1), TORCH(cfg, weights, x, options={"kernel": "plain"}))


def options_of(cfg) -> frozenset[str]:
    return frozenset(name for name in ("sinks", "softcap") if getattr(cfg, name))


COMPILED = [("blocks", {"sinks": True}), ("blocks", {"mask": {"kind": "sliding_window", "width": 4}})]
COMPILED += [("chunked", {"softcap": 2.0, "sinks": True}), ("sdpa_masked", {})]


@pytest.mark.parametrize(("kernel", "option"), COMPILED)
def test_every_kernel_compiles_to_one_graph(kernel, option):
    cfg = CASES["grouped_query"].replace(**option)
    module = TORCH.module(cfg, weights_of(cfg), kernel=kernel)
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    for seed in range(2):
        rng = np.random.default_rng(seed)
        x, valid = torch.from_numpy(rng.standard_normal((3, 11, 17))), torch.from_numpy(rng.random((3, 11)) < 0.7)
        found = []
        for function in (module, compiled):
            y = function(x, valid=valid)
            found.append([y, *torch.autograd.grad((y * y).sum(), list(module.parameters()))])
        for one, other in zip(*found, strict=True):
            assert (one - other).norm() <= 1e-12 * one.norm()
    assert counter.frame_count == 1


@pytest.mark.parametrize("options", ["", "sinks"])
def test_compiled_code_drops_the_same_weights_in_both_passes(options):
    call = Call(31, Causal(), "", options, dropout=0.4)
    eye = torch.eye(31, dtype=torch.float64)[None, :, None].expand(B, 31, K, 31)
    call.operands["v"] = eye.clone().requires_grad_()
    torch.compiler.reset()
    q, k, v = (call.operands[name] for name in "qkv")
    attend = torch.compile(
        lambda q, k, v: KERNELS["chunked"](call.rule, call.scope, call.scoring, q, k, v, None),
        fullgraph=True,
        backend="aot_eager",
    )
    weights = attend(q, k, v)
    direction = torch.from_numpy(draw(*weights.shape))
    (gradient,) = torch.autograd.grad((weights * direction).sum(), v)
    expected = torch.einsum("btkgs,btkge->bske", weights.unflatten(2, (K, -1)), direction.unflatten(2, (K, -1)))
    assert_close(gradient.numpy(), expected.detach().numpy())


# What is refused, and what is chosen.


BASE = {"input_dim": 32, "heads": 4, "kv_heads": 2, "dim_k": 32, "dim_v": 32}
NO_SINKS = "PyTorch's fused attention has no sinks"


@pytest.mark.parametrize(
    ("kernel", "option", "call", "text"),
    [
        ("sdpa_full", {"mask": {"kind": "causal"}}, {}, "the rule 'causal' hides keys"),
        ("sdpa_full", {}, {"valid": torch.ones(2, 5, dtype=torch.bool)}, "valid must enter a mask"),
        ("sdpa_full", {"sinks": True}, {}, "PyTorch's fused attention has no sinks"),
        ("sdpa_causal", {}, {}, "the rule is 'full', not causal"),
        (
            "sdpa_causal",
            {"mask": {"kind": "causal"}},
            {"positions": torch.arange(5)},
            "positions may differ from indices",
        ),
        ("sdpa_masked", {"softcap": 9.0, "sinks": True}, {}, "PyTorch's fused attention has no sinks or softcap"),
        ("blocks", {"softcap": 9.0}, {}, "PyTorch's flash kernel has no softcap"),
        ("blocks", {"dropout": 0.5}, {}, "PyTorch's flash kernel has no dropout"),
        (
            "blocks",
            {},
            {"bias": torch.zeros(5, 5, requires_grad=True)},
            "PyTorch's flash kernel has no gradient of a bias",
        ),
        ("flex", {}, {}, "FlexAttention has no backward pass off CUDA; got cpu"),
    ],
)
def test_a_forced_kernel_that_cannot_run_says_why(kernel, option, call, text):
    module = attn_torch.build(attn.GroupedQueryAttentionConfig(**BASE, **option), kernel=kernel)
    with refused(f"kernel {kernel!r} cannot run this call: {text}."):
        module(torch.zeros(2, 5, 32), **call)


def test_a_bias_that_does_not_learn_needs_no_kernel_that_could_teach_it():
    cfg = attn.GroupedQueryAttentionConfig(**BASE, mask=attn.SlidingWindow(width=9))
    weights, x, bias = weights_of(cfg), torch.from_numpy(draw(1, 600, 32)).requires_grad_(), draw(600, 600)
    found = []
    for kernel in (None, "blocks", "plain"):
        module = attn_torch.build(cfg, kernel=kernel)
        module.load_state_dict(attn_torch.from_neutral(cfg, weights))
        y = module(x, bias=torch.from_numpy(bias))
        found.append((y.detach().numpy(), torch.autograd.grad((y**2).sum(), x)[0].numpy()))
    (chosen, slope), (forced, again), (plain, expected) = found
    assert (chosen == forced).all()
    assert (slope == again).all()
    assert_close(chosen, plain)
    assert_close(slope, expected)


def test_an_unknown_kernel_is_refused_when_the_module_is_built():
    names = ", ".join([*KERNELS, "expanded", "absorbed"])
    with refused(f"kernel must be one of {names}; got 'fast'."):
        attn_torch.build(attn.GroupedQueryAttentionConfig(**BASE), kernel="fast")


def chosen(option: dict, queries: int, keys: int | None = None, **call) -> str:
    """The kernel that `explain` says would run."""
    cfg = attn.GroupedQueryAttentionConfig(**BASE, **option)
    call = {"batch": 2, "queries": queries, "keys": keys or queries, "dtype": "float32", "device": "cpu"} | call
    (name,) = [row.kernel for row in attn_torch.explain(cfg, **call) if row.chosen]
    return name


CAUSAL, WINDOW = {"mask": {"kind": "causal"}}, {"mask": {"kind": "sliding_window", "width": 256}}
CHUNKS = {"mask": {"kind": "chunked", "width": 512}}
LONG, CUDA, HALF = 4096, {"device": "cuda"}, {"dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("option", "queries", "call", "expected"),
    [
        ({}, 16, {}, "sdpa_full"),
        (CAUSAL, 16, {}, "sdpa_causal"),
        (CAUSAL, LONG, {"training": True}, "sdpa_causal"),
        (CAUSAL, 16, {"given": ("valid",)}, "sdpa_masked"),
        (CAUSAL, LONG, {"given": ("valid",)}, "blocks"),
        (CAUSAL, LONG, {"given": ("segments",)}, "blocks"),
        ({}, LONG, {"given": ("valid",)}, "sdpa_masked"),
        (WINDOW, 300, {}, "sdpa_masked"),
        (WINDOW, LONG, {}, "blocks"),
        (WINDOW, LONG, {"given": ("segments",), "training": True}, "blocks"),
        (WINDOW, LONG, {"given": ("positions",)}, "sdpa_masked"),
        (CHUNKS, LONG, {}, "blocks"),
        (CAUSAL | {"sinks": True}, 16, {}, "blocks"),
        (CAUSAL | {"sinks": True}, 8, {}, "plain"),
        (WINDOW | {"sinks": True}, LONG, {"given": ("cache",)}, "blocks"),
        (CAUSAL | {"position_bias": {"kind": "alibi"}}, 16, {}, "sdpa_masked"),
        (CAUSAL | {"position_bias": {"kind": "alibi"}}, LONG, {}, "blocks"),
        (CAUSAL | {"position_bias": {"kind": "t5"}}, LONG, {}, "blocks"),
        (CAUSAL | {"position_bias": {"kind": "t5"}}, LONG, {"training": True}, "chunked"),
        (CAUSAL | {"position_bias": {"kind": "t5"}}, 16, {"training": True}, "sdpa_masked"),
        (WINDOW | {"position_bias": {"kind": "t5"}}, LONG // 2, {"training": True}, "chunked"),
        (CAUSAL, LONG // 2, {"training": True, "given": ("bias",)}, "sdpa_masked"),
        (CAUSAL, LONG, {"training": True, "given": ("bias",)}, "chunked"),
        (CAUSAL | {"softcap": 30.0}, 16, {}, "plain"),
        (CAUSAL | {"softcap": 30.0}, LONG, {}, "chunked"),
        (WINDOW | {"softcap": 30.0, "sinks": True}, LONG, {"training": True}, "chunked"),
        (CAUSAL | {"dropout": 0.1}, 16, {"training": True}, "sdpa_causal"),
        (CAUSAL | {"dropout": 0.1}, LONG, {"training": True}, "chunked"),
        (CAUSAL, LONG, CUDA, "sdpa_causal"),
        (CAUSAL, LONG, CUDA | {"given": ("segments",), "training": True}, "flex"),
        (WINDOW, LONG, CUDA | {"training": True}, "flex"),
        (WINDOW, LONG, CUDA | {"dtype": "float64"}, "sdpa_masked"),
        (CAUSAL | {"softcap": 30.0, "sinks": True}, LONG, CUDA, "flex"),
        (CAUSAL | {"softcap": 30.0}, LONG, CUDA | {"dtype": "float64"}, "chunked"),
        (CAUSAL | {"softcap": 30.0}, 1, CUDA | {"given": ("cache",)}, "plain"),
        (CAUSAL | {"dropout": 0.1}, LONG, CUDA | {"training": True}, "sdpa_causal"),
        (CAUSAL | {"position_bias": {"kind": "alibi"}}, 1, CUDA | {"given": ("cache",)}, "sdpa_masked"),
        (CAUSAL | {"position_bias": {"kind": "alibi"}}, 1, CUDA | HALF | {"given": ("cache",)}, "plain"),
        (CAUSAL, 1, CUDA | HALF | {"given": ("cache",)}, "sdpa_masked"),
    ],
)
def test_the_choice(option, queries, call, expected):
    assert chosen(option, queries, **call) == expected


def test_a_model_is_not_explained():
    layer = attn.GroupedQueryAttentionConfig(**BASE, **CAUSAL)
    model = attn.DecoderConfig(vocab_size=5, layers=1, attention=layer, mlp={"input_dim": 32, "hidden_dim": 8})
    with refused("explain takes the config of one attention; got that of a decoder."):
        attn_torch.explain(model, batch=1, queries=1, keys=1, dtype="float32")


def test_the_table_names_every_kernel_with_its_reason():
    cfg = attn.GroupedQueryAttentionConfig(**BASE, **WINDOW)
    rows = attn_torch.explain(cfg, batch=2, queries=4096, keys=4096, dtype="float32", given=("segments",))
    assert [tuple(row) for row in rows] == [
        ("sdpa_full", False, "the rule 'sliding_window' hides keys"),
        ("sdpa_causal", False, "the rule is 'sliding_window', not causal"),
        ("blocks", True, "the first that can run this call"),
        ("flex", False, "FlexAttention has no backward pass off CUDA; got cpu"),
        ("chunked", False, "fused attention need not write out the scores"),
        ("sdpa_masked", False, "a faster kernel can run this call"),
        ("plain", False, "a faster kernel can run this call"),
    ]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("option", [CAUSAL, WINDOW, CAUSAL | {"sinks": True}, CAUSAL | {"dropout": 0.5}])
def test_what_is_explained_is_what_runs(option, training, monkeypatch):
    ran = []
    for name, kernel in list(KERNELS.items()):
        monkeypatch.setitem(KERNELS, name, lambda *args, name=name, kernel=kernel: ran.append(name) or kernel(*args))
    module = attn_torch.build(attn.GroupedQueryAttentionConfig(**BASE, **option)).train(training)
    for T in (5, 600):
        with torch.set_grad_enabled(training):
            module(torch.zeros(2, T, 32))
        assert ran.pop() == chosen(option, T, training=training)


# FlexAttention runs on CUDA; what it is told is tested on the CPU, where it has no backward pass.


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    ("rule", "given", "options"),
    [
        ("full", "", ""),
        ("full", "valid", "softcap"),
        ("causal", "", "sinks"),
        ("window_of_37", "segments", "softcap sinks alibi"),
        ("window_of_3", "valid segments", "alibi"),
        ("chunks_of_29", "positions", ""),
        ("prefix_of_3", "allowed", "sinks"),
        ("nested", "context", "softcap"),
        ("causal", "bias", "softcap sinks"),
    ],
)
def test_flex_attention_is_told_the_same(rule, given, options):
    torch.compiler.reset()
    call = Call(31, WIDER[rule], given, options)
    with torch.no_grad():
        call.operands = {name: array.detach() for name, array in call.operands.items()}
        y, expected = call.run("flex"), call.run("plain")
    assert row_error(y.numpy(), expected.numpy()) <= limit(call, "y", "float64")
    assert not y[(expected == 0).all(-1)].any()
