"""The block kernel of the JAX twin against the plain form: values and gradients, under every rule and option."""

from functools import partial
from itertools import count, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
import attn_jax
from attn.masks import Causal, Chunked, Full, Prefix, SlidingWindow
from attn.tolerance import bound, by_row, floors, row_error
from attn_jax.kernels import blocks
from attn_jax.scope import survey
from attn_jax.scoring import Scoring
from tests.cases import draw, weights_of

B, M, X, H, K, D, E = 2, 11, 13, 6, 3, 7, 5

RULES = {
    "full": Full(),
    "causal": Causal(),
    "window": SlidingWindow(width=50),
    "both_sides": SlidingWindow(width=37, symmetric=True),
    "chunks": Chunked(width=70),
    "prefix": Prefix(length=140),
    "window_and_chunks": SlidingWindow(width=50) & Chunked(width=70),
    "window_or_prefix": SlidingWindow(width=50) | Prefix(length=20),
    "wide_window": SlidingWindow(width=150),
    "wide_both_sides": SlidingWindow(width=80, symmetric=True),
}
SIZES = (1, 31, 127, 129, 1000)


def rows_of(name: str, T: int) -> dict[str, np.ndarray]:
    """What a call brings along, by the name of the argument; a context has 1.5 T tokens, or a third of T."""
    rng = np.random.default_rng(T)
    padding = np.arange(T) < np.array([[T], [1 + T // 3]])
    runs = np.cumsum(rng.random((B, T)) < 9 / T, axis=1)
    positions = rng.permuted(np.tile(np.arange(T), (B, 1)), axis=1)
    return {
        "nothing": {},
        "valid": {"valid": padding},
        "left_padding": {"valid": padding[:, ::-1]},
        "holes": {"valid": rng.random((B, T)) < 0.6},
        "segments": {"segments": runs},
        "valid_and_segments": {"valid": padding, "segments": runs},
        "positions": {"positions": positions},
        "allowed": {"allowed": rng.random((B, 1, T, T)) < 0.2},
        "allowed_by_head": {"allowed": rng.random((1, H, T, T)) < 0.7},
        "context": {"context_length": T + T // 2},
        "context_that_is_short": {"context_length": -(-T // 3), "context_valid": rng.random((B, -(-T // 3))) < 0.8},
        "context_positions": {
            "context_length": T + T // 2,
            "positions": positions,
            "context_positions": np.arange(T + T // 2) - T // 4 + T,
            "context_valid": rng.random((B, T + T // 2)) < 0.8,
        },
    }[name]


BIASES = {"bias": (1, 1), "bias_by_row": (B, 1), "bias_by_head": (1, H), "bias_by_both": (B, H)}
OPTIONS = ("sinks", "softcap", "alibi", "t5", *BIASES)


def config_of(rule, options=(), heads=(H, K)):
    """A layer with that rule and those options."""
    named = {"sinks": "sinks" in options, "softcap": 1.5 if "softcap" in options else None}
    named |= {"position_bias": {"kind": "alibi"}} if "alibi" in options else {}
    named |= {"position_bias": {"kind": "t5", "max_distance": 20}} if "t5" in options else {}
    sizes = {"input_dim": M, "heads": heads[0], "dim_k": heads[0] * D, "dim_v": heads[0] * E}
    return attn.GroupedQueryAttentionConfig(**sizes, kv_heads=heads[1], mask=rule.model_dump(), **named)


def assert_blocks_are_plain(rule, T, rows="nothing", options=(), dtype="float64", heads=(H, K)):
    """Values and the gradients of x, context, bias and of each weight, under the bound."""
    call = {name: row for name, row in rows_of(rows, T).items() if name != "context_length"}
    cfg, S = config_of(rule, options, heads), rows_of(rows, T).get("context_length", T)
    call["x"] = draw(B, T, M, seed=1, dtype=dtype)
    if rows.startswith("context"):
        cfg = cfg.replace(context_dim=X)
        call["context"] = draw(B, S, X, seed=2, dtype=dtype)
    for option in set(options) & set(BIASES):
        call["bias"] = draw(*BIASES[option], T, S, seed=5, dtype=dtype)
    wanted = {name: call.pop(name) for name in ("x", "context", "bias") if name in call}
    direction = draw(B, T, M, seed=7, dtype=dtype)
    with jax.enable_x64(dtype == "float64"):
        variables = attn_jax.from_neutral(cfg, weights_of(cfg, dtype))

        def run(kernel):
            def loss(variables, wanted):
                y = attn_jax.build(cfg, kernel=kernel).apply(variables, **wanted, **call)
                return (y * direction).sum(), y

            (of_weights, found), y = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(variables, wanted)
            found = {name: np.array(gradient) for name, gradient in found.items()}
            return np.array(y), by_row(cfg, found | attn_jax.to_neutral(cfg, of_weights))

        (y, found), (expected, gradients) = run("blocks"), run("plain")
    assert y.dtype == dtype
    assert row_error(y, expected) <= bound(cfg, T, S, dtype)
    floor = floors(gradients, {name: float(np.linalg.norm(gradient)) for name, gradient in gradients.items()})
    for name, gradient in gradients.items():
        limit = bound(cfg, T, S, dtype, gradient=True, batch=B)
        assert row_error(found[name], gradient, floor[name]) <= limit, name


@pytest.mark.parametrize(
    ("rule", "T", "rows", "options", "dtype"),
    [
        ("causal", 1, "nothing", ("alibi",), "float64"),
        ("full", 31, "nothing", ("sinks", "bias_by_head"), "float64"),
        ("causal", 1000, "nothing", (), "float32"),
        ("window", 1000, "segments", ("softcap",), "float64"),
        ("both_sides", 129, "allowed_by_head", ("bias",), "float64"),
        ("chunks", 127, "positions", ("bias_by_row",), "float64"),
        ("prefix", 129, "holes", ("alibi", "sinks"), "float32"),
        ("window_and_chunks", 129, "valid_and_segments", (), "float64"),
        ("window_or_prefix", 127, "left_padding", (), "float64"),
        ("causal", 129, "context_positions", ("bias_by_both",), "float64"),
        ("wide_window", 1000, "nothing", ("sinks", "softcap"), "float64"),
        ("full", 1000, "context_that_is_short", ("sinks",), "float64"),
        ("causal", 129, "context_that_is_short", ("softcap",), "float64"),
        ("wide_both_sides", 1000, "allowed_by_head", ("alibi", "bias_by_both"), "float64"),
        ("causal", 1000, "nothing", ("t5",), "float32"),
        ("full", 129, "nothing", ("t5", "bias_by_row"), "float64"),
        ("wide_window", 1000, "nothing", ("t5",), "float64"),
        ("window", 127, "valid_and_segments", ("t5", "softcap"), "float64"),
        ("both_sides", 1000, "positions", ("t5", "sinks"), "float32"),
        ("full", 127, "context_positions", ("t5",), "float64"),
        ("full", 129, "context", ("t5",), "float64"),
    ],
)
def test_blocks_give_the_values_and_gradients_of_the_plain_form(rule, T, rows, options, dtype):
    assert_blocks_are_plain(RULES[rule], T, rows, options, dtype)


ROWS = ("nothing", "valid", "left_padding", "holes", "segments", "valid_and_segments", "positions", "allowed")
ROWS += ("allowed_by_head", "context", "context_positions")


def every_pair() -> list[tuple]:
    """Each rule with each thing a call brings; sizes, options, dtypes and groups go round, out of step."""
    rng = np.random.default_rng(0)
    found = []
    for n, (rule, rows) in enumerate(product(RULES, ROWS)):
        options = tuple(sorted({OPTIONS[n % 4], OPTIONS[4 + n // 4 % 4]} if rng.random() < 0.7 else ()))
        heads = ((H, K), (H, 1), (H, H), (1, 1))[int(rng.integers(4))]
        heads = (H, K) if rows.endswith("head") else heads
        if heads == (1, 1):
            options = tuple(option for option in options if not option.endswith(("head", "both")))
        found.append((rule, SIZES[n % 5], rows, options, ("float64", "float32")[n // 2 % 2], heads))
    return found


@pytest.mark.full
@pytest.mark.parametrize(("rule", "T", "rows", "options", "dtype", "heads"), every_pair())
def test_blocks_are_the_plain_form_under_every_rule_with_all_that_a_call_brings(rule, T, rows, options, dtype, heads):
    assert_blocks_are_plain(RULES[rule], T, rows, options, dtype, heads)


@pytest.mark.full
@pytest.mark.parametrize("T", SIZES)
@pytest.mark.parametrize("rule", RULES)
def test_no_size_is_special(rule, T):
    assert_blocks_are_plain(RULES[rule], T)


# What is hidden is not read.


def blocks_of(rule, q, k, v, **call):
    """The block kernel on [T D], one row and one head."""
    q, k, v = (jnp.asarray(x)[None, :, None] for x in (q, k, v))
    scope = survey(1, q.shape[1], **call)
    return blocks.attend(rule, scope, Scoring(D**-0.5), q, k, v, None)[0, :, 0]


def poisoned(T: int, hidden: slice) -> list[np.ndarray]:
    """q, k and v, where k and v are NaN in a part and infinite in its first row."""
    q, k, v = (draw(T, D, seed=seed, dtype="float32") for seed in range(3))
    for x in (k, v):
        x[hidden] = np.nan
        x[hidden.start] = np.inf
    return [q, k, v]


@pytest.mark.parametrize("how", ["window", "segments"])
def test_blocks_that_no_query_of_a_block_can_see_are_never_read(how):
    # What the last block of queries cannot see, all keys but 150 before it or another segment, is poisoned.
    if how == "window":
        T, last, hidden, rule, call = 1024, 768, 608, SlidingWindow(width=150), {}
    else:
        T, last, hidden, rule, call = 512, 384, 256, Causal(), {"segments": jnp.arange(512) // 256}
    q, k, v = poisoned(T, slice(0, hidden))

    def loss(q, k, v):
        return (blocks_of(rule, q, k, v, **call)[last:] ** 2).sum()

    y, gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(q, k, v)
    clean = [np.where(np.arange(T)[:, None] < hidden, 0, x) for x in (q, k, v)]
    expected, slopes = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(*clean)
    assert np.isfinite(y)
    np.testing.assert_array_equal(y, expected)
    for gradient, slope in zip(gradients, slopes, strict=True):
        np.testing.assert_array_equal(gradient[last:], slope[last:])
        assert np.isfinite(slope).all()


def test_nan_in_padding_reaches_nothing():
    cfg = config_of(SlidingWindow(width=30))
    T, rng = 127, np.random.default_rng(0)
    valid = np.stack([np.arange(T) >= 90, rng.random(T) < 0.5])
    x = np.where(valid[..., None], draw(B, T, M), np.nan)
    with jax.enable_x64(True):
        variables = attn_jax.from_neutral(cfg, weights_of(cfg))

        def loss(variables, x, kernel):
            y = attn_jax.build(cfg, kernel=kernel).apply(variables, x, valid=valid)
            return (y**2).sum(), y

        both = [jax.grad(loss, (0, 1), has_aux=True)(variables, x, kernel) for kernel in ("blocks", "plain")]
        for found, expected in zip(*map(jax.tree.leaves, both), strict=True):
            assert row_error(found, expected) <= bound(cfg, T, T, "float64", gradient=True, batch=B)
        assert not np.array(both[0][1])[~valid].any()
        assert not np.array(both[0][0][1])[~valid].any()


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("sunk", [False, True])
def test_queries_that_see_nothing_give_0_and_move_nothing(sunk, dtype):
    # Rows 5 and 7 lie in a block of others that see something; rows 128 to 255 make up a whole block.
    T, blind = 256, np.isin(np.arange(256), [5, 7, *range(128, 256)])
    with jax.enable_x64(dtype == "float64"):
        q, k, v, direction = (jnp.asarray(draw(1, T, 1, D, seed=seed), dtype) for seed in range(4))
        sinks = jnp.asarray(draw(1), dtype) if sunk else None
        scope = survey(1, T, allowed=jnp.asarray(np.tril(np.ones((T, T), bool)) & ~blind[:, None])[None])

        def value(*arrays):
            return blocks.attend(Full(), scope, Scoring(D**-0.5, sinks=arrays[3]), *arrays[:3], None)

        y, pull = jax.vjp(jax.jit(value), q, k, v, sinks)
        assert not np.array(y, float)[0, blind].any()
        assert np.array(y, float)[0, ~blind].all()
        for gradient in jax.tree.leaves(jax.jit(pull)(jnp.where(blind[:, None, None], direction, 0))):
            assert not np.array(gradient, float).any()
        assert all(np.isfinite(np.array(x, float)).all() for x in jax.tree.leaves(jax.jit(pull)(direction)))


# Dropout: the weights are seen through values that are the identity.


def test_dropout_drops_the_same_weights_in_both_passes():
    T, rate = 127, 0.3
    with jax.enable_x64(True):
        q, k = (jnp.array(draw(B, T, h, D, seed=h)) for h in (H, K))
        direction, one = jnp.array(draw(B, T, H, T)), jnp.broadcast_to(jnp.eye(T)[:, None], (B, T, K, T))
        scope, scoring = survey(B, T), Scoring(D**-0.5, dropout=rate, rng=jax.random.key(3))

        @jax.jit
        def through_blocks(q, k, v):
            return blocks.attend(Causal(), scope, scoring, q, k, v, None)

        dropped, pull = jax.vjp(through_blocks, q, k, one)
        keep = np.array(dropped).swapaxes(1, 2) != 0

        @jax.jit
        def written_out(q, k, v):
            scores = jnp.einsum("btkgd,bskd->bkgts", q.reshape(B, T, K, H // K, D), k).reshape(B, H, T, T) * D**-0.5
            weights = jax.nn.softmax(jnp.where(np.tril(np.ones((T, T), bool)), scores, -jnp.inf), axis=-1)
            weights = jnp.where(keep, weights / (1 - rate), 0).reshape(B, K, H // K, T, T)
            return jnp.einsum("bkgts,bske->btkge", weights, v).reshape(B, T, H, T)

        expected, push = jax.vjp(written_out, q, k, one)
        cfg = config_of(Causal())
        assert row_error(dropped, expected) <= bound(cfg, T, T, "float64")
        for found, gradient in zip(pull(direction), push(direction), strict=True):
            assert row_error(found, gradient) <= bound(cfg, T, T, "float64", gradient=True, batch=B)
        share = keep[..., np.tril(np.ones((T, T), bool))].mean()
        assert abs(share - (1 - rate)) < 5 * np.sqrt(rate * (1 - rate) / (B * H * T * (T + 1) / 2))
        assert len({keep[b, h].tobytes() for b in range(B) for h in range(H)}) == B * H


# What compiling says.


def memory_of(attend, T: int, rows: str) -> int:
    """The temporary bytes of a forward and backward pass under a causal rule with T5's bias."""

    def loss(q, k, v, relative, valid):
        scope = survey(1, T, **({"valid": valid} if rows == "valid" else {}))
        return (attend(Causal(), scope, Scoring(0.25, relative=relative), q, k, v, None) ** 2).sum()

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (*[(1, T, 2, 16)] * 3, (2, 257), (1, T))]
    shapes[-1] = jax.ShapeDtypeStruct((1, T), bool)
    return jax.jit(jax.grad(loss, (0, 1, 2, 3))).lower(*shapes).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("rows", ["nothing", "valid"])
def test_memory_grows_with_the_length_and_not_with_its_square(rows):
    short, long = memory_of(blocks.attend, 2048, rows), memory_of(blocks.attend, 8192, rows)
    assert long < 4.5 * short
    # The plain form keeps T x S scores for each of two heads.
    assert long < 8192 * 8192 * 2 * 4 / 20


def test_new_numbers_do_not_compile_again(monkeypatch):
    calls = count()
    forward = blocks.forward
    monkeypatch.setattr(blocks, "forward", lambda *args: (next(calls), forward(*args))[1])
    T = 257
    run = jax.jit(
        lambda q, k, v, valid: blocks.attend(Causal(), survey(1, T, valid=valid), Scoring(0.3), q, k, v, None)
    )
    for seed in range(3):
        q, k, v = (draw(1, T, 1, 3, seed=seed + n, dtype="float32") for n in range(3))
        run(q, k, v, np.arange(T)[None] > 50 * seed).block_until_ready()
    assert next(calls) == 1
    # Nor do calls outside of `jit`.
    for seed in range(3):
        blocks.attend(Causal(), survey(1, T), Scoring(0.7), *(draw(1, T, 1, 3, seed=seed) for _ in range(3)), None)
    assert next(calls) == 3


def test_blocks_work_inside_of_vmap_checkpoint_and_scan():
    T, rule = 31, SlidingWindow(width=9)
    q, k, v = (jnp.array(draw(4, T, 2, 3, seed=seed, dtype="float32")) for seed in range(3))
    scoring = Scoring(0.5)

    def attended(q, k, v):
        return blocks.attend(rule, survey(q.shape[0], T), scoring, q, k, v, None)

    def loss(f, q):
        return (f(q) ** 2).sum()

    def mapped(q):
        return jax.vmap(lambda q, k, v: attended(q[None], k[None], v[None])[0])(q, k, v)

    def scanned(q):
        return jax.lax.scan(lambda _, row: (None, attended(*(x[None] for x in row))[0]), None, (q, k, v))[1]

    forms = (lambda q: attended(q, k, v), mapped, scanned, jax.checkpoint(lambda q: attended(q, k, v)))
    first, *others = [jax.jit(jax.value_and_grad(partial(loss, form)))(q) for form in forms]
    for other in others:
        np.testing.assert_allclose(other[0], first[0], rtol=1e-6)
        np.testing.assert_allclose(other[1], first[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", [None, 6])
def test_a_prompt_and_steps_on_a_cache_are_the_whole(width):
    cfg = config_of(Causal() if width is None else SlidingWindow(width=width))
    x = draw(B, 13, M)
    with jax.enable_x64(True):
        variables = attn_jax.from_neutral(cfg, weights_of(cfg))
        module = attn_jax.build(cfg, kernel="blocks")
        whole = module.apply(variables, x)
        cache, found = attn_jax.init_cache(cfg, B, 17, dtype="float64"), []
        for part in (x[:, :9], x[:, 9:10], x[:, 10:11], x[:, 11:]):
            y, cache = module.apply(variables, part, cache=cache)
            found.append(y)
        assert row_error(np.concatenate(found, axis=1), whole) <= bound(cfg, 13, 17, "float64")
