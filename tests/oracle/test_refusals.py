"""Law 12, each part said by a sentence: what is given is heard or refused, and no index ever means its neighbour."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn
from attn.positions import LONGEST
from tests.cases import (
    CASES,
    READING,
    WITHIN,
    B,
    H,
    K,
    M,
    S,
    T,
    assert_close,
    decoder,
    draw,
    in_both,
    in_both_for,
    keys_of,
    refused,
    sides_of,
    weights_of,
)
from tests.twins import TWINS, by_every_kernel

ARGUMENTS = {
    "positions": lambda cfg: np.arange(T) * 2 + 1,
    "valid": lambda cfg: np.arange(T) % 3 != 1,
    "segments": lambda cfg: np.arange(T) // 4,
    "allowed": lambda cfg: np.add.outer(np.arange(T), np.arange(keys_of(cfg))) % 3 != 1,
    "bias": lambda cfg: draw(T, keys_of(cfg), seed=5),
    "context_positions": lambda cfg: np.arange(S) * 2,
    "context_valid": lambda cfg: np.arange(S) % 3 != 1,
}


def heard() -> list[tuple[str, str]]:
    """Every argument that a case reads and that is not given in pairs."""
    found = []
    for name, argument in product(CASES, ARGUMENTS):
        placed = CASES[name].rule.kind != "full" or getattr(CASES[name], "rope", None) is not None
        if argument.startswith("context_") <= (name in READING) and (not argument.endswith("positions") or placed):
            found.append((name, argument))
    return found


@in_both_for("name argument", heard(), [("grouped_query", a) for a in ("positions", "valid", "segments", "allowed")])
def test_every_argument_is_heard(twin, name, argument):
    cfg, sides = CASES[name], sides_of(CASES[name])
    if argument == "segments" and cfg.reads is not None:
        given = {"segments": ARGUMENTS["segments"](cfg), "context_segments": np.arange(S) // 5}
    else:
        given = {argument: ARGUMENTS[argument](cfg)}
    for y in by_every_kernel(twin, cfg, weights_of(cfg), *sides, **given).values():
        assert abs(y - twin(cfg, weights_of(cfg), *sides)).max() > 1e-3
        assert_close(y, attn.reference(cfg, weights_of(cfg), *sides, **given))


@in_both
def test_an_unknown_kernel_is_refused(twin):
    with pytest.raises(ValueError, match=rf"^kernel must be one of {', '.join(twin.kernels)}\b.*; got 'fast'\.$"):
        twin(CASES["self"], weights_of(CASES["self"]), *sides_of(CASES["self"]), options={"kernel": "fast"})


@in_both
def test_a_form_of_latent_attention_is_refused_where_nothing_is_latent(twin):
    pair = decoder(attention=(CASES["grouped_query"], CASES["multi_query"]))
    for cfg, names in ((CASES["multi_query"], "multi_query"), (pair, "grouped_query, multi_query")):
        with refused(f"kernel 'absorbed' is a form of latent attention; got a config of {names}."):
            twin.module(cfg, weights_of(cfg, "float32"), kernel="absorbed")
    twin.module(decoder(), weights_of(decoder(), "float32"), kernel="absorbed")  # one of its layers is latent


def test_a_kernel_that_is_forced_runs_or_says_why_not():
    cfg, torch_twin = CASES["multi_query"], TWINS[1]
    call = {"options": {"kernel": "sdpa_causal"}}
    with refused("kernel 'sdpa_causal' cannot run this call: the rule is 'sliding_window', not causal."):
        torch_twin(cfg, weights_of(cfg), *sides_of(cfg), **call)
    cfg = CASES["grouped_query"]
    with refused("kernel 'sdpa_causal' cannot run this call: positions may differ from indices."):
        torch_twin(cfg, weights_of(cfg), *sides_of(cfg), **call, positions=np.arange(T))


@pytest.mark.parametrize("argument", ["context", "context_positions", "context_valid", "context_segments"])
def test_a_context_that_is_not_read_is_refused(argument):
    given = {
        "context": draw(B, S, M),
        "context_positions": np.arange(S),
        "context_valid": np.ones(S, bool),
        "context_segments": np.zeros(S, int),
    }[argument]
    text = f"{argument} is not read by a config without context_dim; got an array of shape {given.shape}."
    for name in WITHIN:
        for run in (*TWINS, attn.reference):
            with refused(text):
                run(CASES[name], weights_of(CASES[name]), *sides_of(CASES[name]), **{argument: given})


@pytest.mark.parametrize("name", READING)
def test_a_context_that_is_read_is_required(name):
    for run in (*TWINS, attn.reference):
        with refused("context is required, for keys and values of width 19; got None."):
            run(CASES[name], weights_of(CASES[name]), sides_of(CASES[name])[0])


@pytest.mark.parametrize("name", READING)
def test_segments_of_one_side_alone_are_refused(name):
    cfg = CASES[name]
    for argument, size in (("segments", T), ("context_segments", S)):
        for run in (*TWINS, attn.reference):
            with refused(f"segments and context_segments must be given together; got only {argument}."):
                run(cfg, weights_of(cfg), *sides_of(cfg), **{argument: np.zeros(size, int)})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"x": (B, T, M + 1)}, f"x has shape ({B}, {T}, {M + 1}); expected [B T M] with M={M}."),
        ({"x": (T, M)}, f"x has shape ({T}, {M}); expected [B T M] with M={M}."),
        ({"context": (B + 1, S, 19)}, f"context has shape ({B + 1}, {S}, 19); expected [B S X] with B={B}, X=19."),
        ({"positions": (S,)}, f"positions has shape ({S},); expected [T] with T={T}."),
        ({"valid": (1, T)}, f"valid has shape (1, {T}); expected [B T] with B={B}, T={T}."),
        ({"context_valid": (B, T)}, f"context_valid has shape ({B}, {T}); expected [B S] with B={B}, S={S}."),
        ({"allowed": (S, T)}, f"allowed has shape ({S}, {T}); expected [T S] with T={T}, S={S}."),
        (
            {"bias": (B, K, T, S)},
            f"bias has shape ({B}, {K}, {T}, {S}); expected [B|1 H|1 T S] with B={B}, H={H}, T={T}, S={S}.",
        ),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_in_the_same_words(given, text):
    cfg = CASES["multi_head_reading"]
    sides = dict(zip(("x", "context"), sides_of(cfg), strict=True))
    for name, shape in given.items():
        kind = bool if name in ("valid", "context_valid", "allowed") else int if name == "positions" else float
        sides[name] = np.zeros(shape, kind)
    for run in (*TWINS, attn.reference):
        with refused(text):
            run(
                cfg,
                weights_of(cfg),
                sides["x"],
                sides["context"],
                **{n: a for n, a in sides.items() if n in given and n not in ("x", "context")},
            )


@in_both
@pytest.mark.parametrize("position", [-1, LONGEST])
def test_a_position_out_of_range_is_refused(twin, position):
    for name, argument in (("grouped_query", "positions"), ("self", "positions"), ("cross", "context_positions")):
        cfg = CASES[name]
        positions = np.arange(keys_of(cfg))
        positions[4] = position
        with refused(f"{argument} must lie between 0 and {LONGEST - 1}; got {position}."):
            twin(cfg, weights_of(cfg), *sides_of(cfg), **{argument: positions})


@in_both
@pytest.mark.parametrize("position", [-1, LONGEST, LONGEST + 3])
def test_a_position_out_of_range_gives_nan_in_compiled_code(twin, position):
    cfg = CASES["grouped_query"]
    positions = np.tile(np.arange(T), (B, 1))
    positions[2, 4] = position
    y = twin(cfg, weights_of(cfg), *sides_of(cfg), positions=positions, compiled=True)
    assert np.isnan(y[2, 4]).all()
    others = np.arange(B) != 2
    assert_close(y[others], twin(cfg, weights_of(cfg), *sides_of(cfg))[others])


@in_both
@pytest.mark.parametrize("token", [-1, 29])
def test_a_token_out_of_range_is_refused(twin, token):
    cfg = decoder()
    tokens = np.random.default_rng(0).integers(0, 29, (B, T))
    tokens[2, 4] = token
    with refused(f"tokens must lie between 0 and 28; got {token}."):
        twin(cfg, weights_of(cfg), tokens)


@in_both
def test_a_token_out_of_range_gives_nan_in_compiled_code(twin):
    cfg = decoder()
    tokens = np.random.default_rng(0).integers(0, 29, (B, T))
    expected = attn.reference(cfg, weights_of(cfg), tokens)
    tokens[1, 4], tokens[3, 0] = -1, 29
    y = twin(cfg, weights_of(cfg), tokens, compiled=True)
    assert np.isnan(y[1, 4]).all()
    assert np.isnan(y[3, 0]).all()
    assert_close(y[[0, 2, 4]], expected[[0, 2, 4]])


@in_both
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"])
def test_tokens_of_every_integer_type_are_the_same(twin, dtype):
    cfg = decoder(vocab_size=300)
    tokens = np.random.default_rng(0).integers(0, 127, (B, T))
    expected = attn.reference(cfg, weights_of(cfg), tokens)
    assert_close(twin(cfg, weights_of(cfg), tokens.astype(dtype)), expected)


@in_both
def test_a_learned_position_beyond_the_table_is_refused(twin):
    cfg = decoder(learned_positions=T - 1)
    tokens = np.random.default_rng(0).integers(0, 29, (B, T))
    for run in (twin, attn.reference):
        with refused(f"positions must lie between 0 and {T - 2}; got {T - 1}."):
            run(cfg, weights_of(cfg), tokens)
        with refused(f"positions must lie between 0 and {T - 2}; got {T + 5}."):
            run(cfg, weights_of(cfg), tokens, positions=np.arange(T)[::-1] + 6)


@in_both
def test_padding_does_not_use_up_learned_positions(twin):
    cfg = decoder(learned_positions=T - 2)
    tokens = np.random.default_rng(0).integers(0, 29, (B, T))
    valid = np.tile(np.arange(T) < T - 2, (B, 1))
    expected = attn.reference(cfg, weights_of(cfg), tokens[:, : T - 2])
    assert_close(twin(cfg, weights_of(cfg), tokens, valid=valid)[:, : T - 2], expected)


def test_constants_of_compiled_code_are_looked_at_too():
    cfg, weights = decoder(learned_positions=T), weights_of(decoder(learned_positions=T), "float32")
    module, variables = TWINS[0].module(cfg, weights)
    cache = TWINS[0].init_cache(cfg, B, T, "float32")

    def run(tokens, **call):
        call = {name: value if name == "cache" else jnp.array(value) for name, value in call.items()}
        tokens = jnp.array(tokens)
        return jax.jit(lambda variables: module.apply(variables, tokens, **call))(variables)

    tokens, call = np.zeros((B, T), int), {"valid": np.arange(T) > 1, "positions": np.arange(T)}
    assert_close(run(tokens, **call), attn.reference(cfg, weights, tokens, **call), cfg, "float32")
    y, _ = run(tokens, valid=call["valid"], cache=cache)
    assert_close(y, attn.reference(cfg, weights, tokens, valid=call["valid"]), cfg, "float32")
    with refused("tokens must lie between 0 and 28; got 29."):
        run(tokens + 29)
    with refused(f"positions must lie between 0 and {LONGEST - 1}; got -1."):
        run(tokens, positions=np.arange(T) - 1)
    with refused(f"cache has {T} slots a row; got {T + 1} tokens in row 0."):
        run(np.zeros((B, T + 1), int), cache=cache)


def test_the_reference_refuses_what_the_twins_refuse():
    tokens = np.random.default_rng(0).integers(0, 29, (B, T))
    for token in (-1, 29):
        tokens[2, 4] = token
        with refused(f"tokens must lie between 0 and 28; got {token}."):
            attn.reference(decoder(), weights_of(decoder()), tokens)
    for position in (-1, LONGEST):
        cfg, positions = CASES["grouped_query"], np.arange(T)
        positions[4] = position
        with refused(f"positions must lie between 0 and {LONGEST - 1}; got {position}."):
            attn.reference(cfg, weights_of(cfg), *sides_of(cfg), positions=positions)
