"""JAX's candidates: ours and the peers, all with the same weights and the same work."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import attn
import attn_jax
from attn_jax import kernels
from attn_jax.scope import survey
from attn_jax.scoring import Scoring
from benchmarks.cases import DIM, HEADS, WINDOW, Case, config
from benchmarks.comparing import OURS, Candidate

Weights = Mapping[str, np.ndarray]

BUILT_IN = "jax.nn.dot_product_attention"


def layers(case: Case) -> dict[str, Candidate | str]:
    """Every layer by its name, or why it cannot do this work."""
    from benchmarks.peers_keras import in_jax as keras

    weights = attn.init_weights(config(case), seed=0)
    made: dict[str, Candidate | str] = {OURS: ours(case, weights)}
    if case.rule == "window":
        made[f"{OURS}, causal without a window"] = ours(case._replace(rule="causal"), weights, like="itself")
    made[f"four projections and {BUILT_IN}"] = built_in(case, weights)
    made["Flax linen"] = linen(case, weights)
    made["Flax nnx"] = nnx(case, weights)
    made["Equinox"] = equinox(case, weights)
    made["Keras"] = keras(case, weights)
    return made


def kernel(case: Case) -> dict[str, Candidate | str]:
    """Attention without projections: x is (q, k, v)."""
    scoring = Scoring((DIM // HEADS) ** -0.5)

    def bare(case: Case, like: str) -> Candidate:
        rule = config(case).rule
        return Candidate(lambda _, x: kernels.attend(rule, survey(1, case.T), scoring, *x), {}, like)

    if case.rule == "window":
        return {
            OURS: bare(case, OURS),
            f"{OURS}, causal without a window": bare(case._replace(rule="causal"), "itself"),
        }

    def fused(_: Any, x: Any) -> jax.Array:
        return jax.nn.dot_product_attention(*x, **_built_in(case))

    return {OURS: bare(case, OURS), BUILT_IN: Candidate(fused, {})}


def ours(case: Case, weights: Weights, like: str = OURS, **options: Any) -> Candidate:
    """attn_jax; `options` are more of its config's fields."""
    cfg = config(case, **options)
    return Candidate(attn_jax.build(cfg).apply, attn_jax.from_neutral(cfg, weights), like)


def built_in(case: Case, weights: Weights) -> Candidate:
    """Four products and JAX's own attention."""

    def function(w: Any, x: Any) -> jax.Array:
        q, k, v = (jnp.einsum("btm,mhd->bthd", x, w[name]) for name in ("q", "k", "v"))
        return jnp.einsum("bthd,hdm->btm", jax.nn.dot_product_attention(q, k, v, **_built_in(case)), w["out"])

    return Candidate(function, {name: jnp.asarray(weights[f"{name}.kernel"]) for name in ("q", "k", "v", "out")})


def _built_in(case: Case) -> dict[str, Any]:
    return {
        "is_causal": case.rule != "full",
        "local_window_size": (WINDOW - 1, 0) if case.rule == "window" else None,
    }


def linen(case: Case, weights: Weights) -> Candidate | str:
    """flax.linen.MultiHeadDotProductAttention, which takes a mask."""
    import flax.linen as nn

    if case.kv_heads != HEADS:
        return "it has as many key heads as query heads"
    module = nn.MultiHeadDotProductAttention(HEADS, use_bias=False, deterministic=True)
    names = {"query": "q", "key": "k", "value": "v", "out": "out"}
    parameters = {name: {"kernel": jnp.asarray(weights[f"{part}.kernel"])} for name, part in names.items()}
    return Candidate(lambda w, x: module.apply({"params": w}, x, x, mask=_mask(case, x)), parameters)


def nnx(case: Case, weights: Weights) -> Candidate:
    """flax.nnx.MultiHeadAttention; causal is a word of its call, a window a mask."""
    from flax import nnx

    options = {"num_kv_heads": case.kv_heads, "use_bias": False, "decode": False, "rngs": nnx.Rngs(0)}
    graph, state = nnx.split(nnx.MultiHeadAttention(HEADS, DIM, **options))
    for name, part in {"query": "q", "key": "k", "value": "v", "out": "out"}.items():
        state[name]["kernel"] = state[name]["kernel"].replace(jnp.asarray(weights[f"{part}.kernel"]))

    def function(state: Any, x: Any) -> jax.Array:
        mask = _mask(case, x) if case.rule == "window" else None
        return nnx.merge(graph, state)(x, mask=mask, is_causal=case.rule == "causal")

    return Candidate(function, state)


def equinox(case: Case, weights: Weights) -> Candidate | str:
    """equinox.nn.MultiheadAttention, which knows no batch and takes a mask."""
    import equinox as eqx

    if case.kv_heads != HEADS:
        return "it has as many key heads as query heads"
    module = eqx.nn.MultiheadAttention(HEADS, DIM, key=jax.random.key(0))
    parts = ("query_proj", "key_proj", "value_proj", "output_proj")
    flat = [weights[f"{name}.kernel"].reshape(DIM, -1).T for name in ("q", "k", "v")]
    flat.append(weights["out.kernel"].reshape(-1, DIM).T)
    module = eqx.tree_at(lambda m: [getattr(m, part).weight for part in parts], module, [*map(jnp.asarray, flat)])
    parameters, rest = eqx.partition(module, eqx.is_array)

    def function(parameters: Any, x: Any) -> jax.Array:
        layer = eqx.combine(parameters, rest)
        mask = None if case.rule == "full" else _mask(case, x)[0, 0]
        return jax.vmap(lambda row: layer(row, row, row, mask=mask))(x)

    return Candidate(function, parameters)


def _mask(case: Case, x: Any) -> jax.Array | None:
    """[1 1 T S], made from the numbers of rows and columns as flax's own helpers do."""
    if case.rule == "full":
        return None
    q, k = jnp.arange(x.shape[1])[:, None], jnp.arange(x.shape[1])
    return ((k <= q) & (k > q - WINDOW) if case.rule == "window" else k <= q)[None, None]


def called(cfg: Any, call: Mapping[str, np.ndarray], kernel: str | None) -> Candidate:
    """Ours with these arguments, in training where the config drops weights."""
    module = attn_jax.build(cfg, kernel=kernel)
    given = {name: jnp.asarray(array) for name, array in call.items()}
    fixed = {"deterministic": False, "rngs": {"dropout": jax.random.key(0)}} if cfg.dropout else {}
    variables = attn_jax.from_neutral(cfg, attn.init_weights(cfg, seed=0))

    def function(variables: Any, x: Any) -> jax.Array:
        # Behind the barrier the arguments are what they are in training: arrays that arrive with the batch.
        return module.apply(variables, x, **fixed, **jax.lax.optimization_barrier(given))

    return Candidate(function, variables, "itself" if cfg.dropout else OURS)
