"""AdamW as `attn.training` defines it, in optax, and its moments in and out of neutral form."""

import math
from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import unflatten_dict

from attn.training import TrainConfig, decayed, learning_rates
from attn_jax.weights import Variables, flax_path, from_neutral, to_neutral


def adamw(cfg: TrainConfig, module: nn.Module) -> optax.GradientTransformation:
    """The optimizer of a module's parameters; its schedule and its clipping are part of it."""
    shrinking = {leaf.name for leaf in decayed(module.cfg)}
    mask = unflatten_dict({flax_path(name): name in shrinking for name in module.cfg.shapes()})
    rates = learning_rates(cfg).astype(jnp.result_type(float))
    return optax.chain(
        optax.identity() if cfg.max_norm is None else _clip(cfg.max_norm),
        _scale_by_adam(cfg.beta1, cfg.beta2, cfg.eps),
        optax.add_decayed_weights(cfg.weight_decay, mask=mask),
        optax.scale_by_learning_rate(lambda count: jnp.asarray(rates)[count]),
    )


def moments(module: nn.Module, optimizer: optax.OptState) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """mu and nu under their neutral names."""
    mu, nu = (optax.tree_utils.tree_get(optimizer, kind) for kind in ("mu", "nu"))
    return to_neutral(module.cfg, {"params": mu}), to_neutral(module.cfg, {"params": nu})


def restored(
    cfg: TrainConfig,
    module: nn.Module,
    variables: Variables,
    mu: Mapping[str, np.ndarray],
    nu: Mapping[str, np.ndarray],
    step: int,
) -> optax.OptState:
    """The optimizer's state as it was after `step` updates."""
    state = adamw(cfg, module).init(variables["params"])
    first, second = (from_neutral(module.cfg, moment)["params"] for moment in (mu, nu))
    state = optax.tree_utils.tree_set(state, count=np.int32(step), mu=first, nu=second)
    # Each count becomes an array of its own: a step gives its memory away, which can be done once.
    return jax.tree.map(lambda array: jnp.array(array, copy=True), state)


def _clip(max_norm: float) -> optax.GradientTransformation:
    """g * min(1, max_norm / (|g| + 1e-6)): PyTorch's rule, which differs from optax's own by the 1e-6."""

    def update(updates, state, params=None):
        factor = jnp.minimum(1, max_norm / (optax.tree_utils.tree_norm(updates) + 1e-6))
        return jax.tree.map(lambda gradient: gradient * factor.astype(gradient.dtype), updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _scale_by_adam(beta1: float, beta2: float, eps: float) -> optax.GradientTransformation:
    """optax.scale_by_adam with 1 - beta^t as -expm1(t log beta): formed by subtraction in float32, it is 1e-5 off."""
    adam = optax.scale_by_adam(beta1, beta2, eps)

    def update(updates, state, params=None):
        count = optax.safe_increment(state.count)
        mu = optax.tree_utils.tree_update_moment(updates, state.mu, beta1, 1)
        nu = optax.tree_utils.tree_update_moment(updates, state.nu, beta2, 2)

        def direction(m, v):
            t = jnp.asarray(count, m.dtype)
            rest1, rest2 = (-jnp.expm1(t * math.log(beta)) for beta in (beta1, beta2))
            return m / rest1 / (jnp.sqrt(v) / jnp.sqrt(rest2) + eps)

        return jax.tree.map(direction, mu, nu), optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(adam.init, update)
