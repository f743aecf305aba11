"""AdamW as `attn.training` defines it, in torch.optim, and its moments in and out of neutral form."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from attn.layout import leaves
from attn.training import TrainConfig, check_trainable, decayed, learning_rates
from attn_torch.weights import from_neutral, to_neutral

_MOMENTS = {"mu": "exp_avg", "nu": "exp_avg_sq"}


def adamw(cfg: TrainConfig, module: nn.Module) -> torch.optim.AdamW:
    """The optimizer of a module's parameters before any step. Its groups carry the `rates` of all steps.

    Raises:
        ValueError: a parameter is neither float32 nor float64.
    """
    arrays = list(leaves(module.cfg))
    check_trainable({leaf.name: module.get_parameter(leaf.torch_name) for leaf in arrays})
    shrinking = {leaf.name for leaf in decayed(module.cfg)}
    groups = []
    for decays, weight_decay in ((True, cfg.weight_decay), (False, 0.0)):
        parameters = [module.get_parameter(leaf.torch_name) for leaf in arrays if (leaf.name in shrinking) == decays]
        groups.append({"params": parameters, "weight_decay": weight_decay, "rates": learning_rates(cfg)})
    optimizer = torch.optim.AdamW(groups, lr=cfg.learning_rate, betas=(cfg.beta1, cfg.beta2), eps=cfg.eps)
    for parameter in module.parameters():
        state = {kind: torch.zeros_like(parameter, requires_grad=False) for kind in _MOMENTS.values()}
        optimizer.state[parameter] = {"step": torch.tensor(0.0)} | state
    return optimizer


def moments(module: nn.Module, optimizer: torch.optim.AdamW) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """mu and nu under their neutral names."""
    mu, nu = (
        {name: optimizer.state[parameter][kind] for name, parameter in module.named_parameters()}
        for kind in _MOMENTS.values()
    )
    return to_neutral(module.cfg, mu), to_neutral(module.cfg, nu)


def restored(
    cfg: TrainConfig, module: nn.Module, mu: Mapping[str, np.ndarray], nu: Mapping[str, np.ndarray], step: int
) -> torch.optim.AdamW:
    """The optimizer as it was after `step` updates."""
    optimizer = adamw(cfg, module)
    first, second = from_neutral(module.cfg, mu), from_neutral(module.cfg, nu)
    for name, parameter in module.named_parameters():
        state = optimizer.state[parameter]
        state["step"].fill_(step)
        state["exp_avg"].copy_(first[name])
        state["exp_avg_sq"].copy_(second[name])
    return optimizer
