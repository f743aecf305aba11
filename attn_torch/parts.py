"""Parameters: what a layout's parts are in PyTorch. A part checks and casts what it is given, then computes."""

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from attn import layout
from attn.config import Config
from attn.letters import shape_of
from attn_torch.functional import normalised


def initialize(parameter: Tensor, initial: layout.Initial) -> None:
    """Draw from the distribution that the layout declares, which `attn.init_weights` draws from too."""
    if initial.std == 0:
        nn.init.constant_(parameter, initial.mean)
    elif initial.cut:
        nn.init.trunc_normal_(parameter, std=initial.std, a=-2 * initial.std, b=2 * initial.std)
    else:
        nn.init.normal_(parameter, std=initial.std)


def working(name: str, x: Tensor, parameter: Tensor, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """x and a parameter in the dtype of the computation: `dtype`, or the parameter's own, which x must then have.

    Under autocast PyTorch itself brings the two together.

    Raises:
        ValueError: "x of q has dtype float64; expected float32, the dtype of its parameters."
    """
    if dtype is not None:
        return x.to(dtype), parameter.to(dtype)
    if x.dtype != parameter.dtype and not torch.is_autocast_enabled(x.device.type):
        got, expected = (str(array.dtype).removeprefix("torch.") for array in (x, parameter))
        raise ValueError(f"x of {name} has dtype {got}; expected {expected}, the dtype of its parameters.")
    return x, parameter


def attribute(leaf: layout.Leaf) -> str:
    """The last word of a leaf's name: the parameter of its part."""
    return leaf.torch_name.rpartition(".")[2]


def flattened(x: Float[Tensor, "... M"]) -> tuple[Float[Tensor, "N M"], tuple[int, ...]]:
    """The vectors of x one under another, and the axes they came in: what several projections of x share.

    A product with a batch would flatten it for itself, one step more for each projection, forth and back.
    """
    return x.reshape(-1, x.shape[-1]), x.shape[:-1]


class Part(nn.Module):
    """A part of a layout with its parameters, each under the last word of its PyTorch name."""

    def __init__(self, name: str, part: Any, leaves: tuple[layout.Leaf, ...], dtype: torch.dtype | None = None):
        super().__init__()
        self.name = name
        self.part = part
        self.leaves = leaves
        self.dtype = dtype
        for leaf in leaves:
            name = attribute(leaf)
            self.register_parameter(name, nn.Parameter(torch.empty(leaf.torch_shape)))
            initialize(getattr(self, name), leaf.initial)
        self.register_load_state_dict_pre_hook(keep_given_dtype)

    def __call__(self, *args: Any) -> Tensor:
        """forward(*args). What PyTorch does around it takes half as long as a small product, and is for hooks alone."""
        # PyTorch tells of hooks for all modules under a private name alone.
        asked = self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks
        if asked or self._compiled_call_impl is not None or _has_any_global_hook():
            return super().__call__(*args)
        return self.forward(*args)


class Projection(Part):
    """y = x @ weight^T + bias; weight [outputs, inputs], bias [outputs], both flat as in nn.Linear."""

    def __init__(
        self, name: str, part: layout.Projection, leaves: tuple[layout.Leaf, ...], dtype: torch.dtype | None = None
    ):
        super().__init__(name, part, leaves, dtype)
        self.axes = len(part.inputs.split())
        self.inputs, self.outputs = prod(leaves[0].shape[: self.axes]), leaves[0].shape[self.axes :]

    def forward(
        self, x: Float[Tensor, "... inputs"], lead: tuple[int, ...] | None = None
    ) -> Float[Tensor, "... outputs"]:
        """y [... outputs]; `lead` are its first axes where x comes as rows [N inputs]."""
        weight, bias = self.weight, self.bias if self.part.bias else None
        if self.dtype is not None or x.dtype != weight.dtype:
            x, weight = working(self.name, x, weight, self.dtype)
        if bias is not None and bias.dtype != x.dtype:
            bias = bias.to(x.dtype)
        if lead is None:
            x, lead = x.reshape(-1, self.inputs), x.shape[: -self.axes]
        return F.linear(x, weight, bias).view(*lead, *self.outputs)

    @property
    def biased(self) -> bool:
        """Whether there is a bias."""
        return self.part.bias

    def into(self, heads: Float[Tensor, "B T H D"]) -> Float[Tensor, "B T H C"]:
        """Each head's own rows of a weight [H*D, C]: heads @ weight_h."""
        heads, weight = working(self.name, heads, self.weight, self.dtype)
        return torch.einsum("bthd,hdc->bthc", heads, weight.unflatten(0, self.outputs))

    def onto_bias(self, heads: Float[Tensor, "B T H D"]) -> Float[Tensor, "B T H 1"]:
        """Each head's product with its bias [H*D]."""
        heads, bias = working(self.name, heads, self.bias, self.dtype)
        return (heads * bias.unflatten(0, self.outputs)).sum(-1, keepdim=True)

    def by_head(
        self, latents: Float[Tensor, "B T H C"], total: Float[Tensor, "B T H 1"] | None
    ) -> Float[Tensor, "B T H E"]:
        """Each head's own latent through its own rows of a weight [H*E, C], plus `total` times its bias."""
        latents, weight = working(self.name, latents, self.weight, self.dtype)
        y = torch.einsum("bthc,hec->bthe", latents, weight.unflatten(0, self.outputs))
        return y if total is None else y + total * self.bias.unflatten(0, self.outputs).to(y.dtype)


class Norm(Part):
    """Each vector over its root mean square, its deviation or its length, times scale (or 1 + scale), plus bias."""

    def forward(self, x: Float[Tensor, "... M"]) -> Float[Tensor, "... M"]:
        part = self.part
        for parameter in self._parameters.values() if self.dtype is None else ():
            working(self.name, x, parameter, None)
        y = normalised(part.kind, x if self.dtype is None else x.to(self.dtype), part.normalised, part.eps)
        y = y * (self.weight + 1 if part.offset else self.weight).to(y.dtype) if part.learned else y
        y = y + self.bias.to(y.dtype) if part.shift else y
        return y.to(self.dtype or x.dtype)


class Table(Part):
    """Rows looked up by number; weight [V M]. A number that has no row gives NaN."""

    def forward(self, numbers: Int[Tensor, "B T"]) -> Float[Tensor, "B T M"]:
        table = self.weight if self.dtype is None else self.weight.to(self.dtype)
        numbers = numbers.long()
        if not torch.compiler.is_compiling():
            return F.embedding(numbers, table)
        # Compiled code cannot refuse a number, and reading beyond the table would not be defined.
        inside = (numbers >= 0) & (numbers < table.shape[0])
        rows = F.embedding(torch.where(inside, numbers, 0), table)
        return rows.masked_fill(~inside[..., None], torch.nan)

    def attend(self, x: Float[Tensor, "B T M"]) -> Float[Tensor, "B T V"]:
        """x @ weight^T: the head that is tied to the table."""
        x, table = working(self.name, x, self.weight, self.dtype)
        return F.linear(x, table)


PARTS = {layout.Projection: Projection, layout.Scale: Norm, layout.Table: Table}


def declare(module: nn.Module, cfg: Config, dtype: torch.dtype | None) -> None:
    """Give a module the parts of its config's layout, each under its own name."""
    sizes = cfg.sizes()
    module.register_load_state_dict_pre_hook(keep_given_dtype)
    for name, part in cfg.layout().items():
        leaves = tuple(part.leaves(name, sizes))
        if isinstance(part, layout.Vector):
            module.register_parameter(name, nn.Parameter(torch.empty(shape_of(part.axes, sizes))))
            initialize(getattr(module, name), leaves[0].initial)
        else:
            module.add_module(name, PARTS[type(part)](name, part, leaves, dtype))


def keep_given_dtype(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Give parameters the dtype in which they are loaded, where PyTorch would round them to the one they had."""
    for name, parameter in module.named_parameters(recurse=False):
        given = state.get(prefix + name)
        if given is not None and given.dtype != parameter.dtype:
            parameter.data = parameter.data.to(given.dtype)
