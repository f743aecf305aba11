"""What config.json says of experts, of which a dense model has none."""

from dataclasses import dataclass
from typing import Any

from attn.hub.facts import Facts
from attn.hub.fields import Fields, size

OF_EXPERTS = """
    aux_loss_alpha ep_size moe_intermediate_size moe_layer_freq n_group n_routed_experts n_shared_experts norm_topk_prob
    num_experts num_experts_per_tok num_local_experts num_mtp_layers num_nextn_predict_layers output_router_logits
    routed_scaling_factor router_aux_loss_coef scoring_func seq_aux topk_group topk_method
"""
"""Fields of experts, and of modules that predict further tokens; without either they say nothing."""


@dataclass(frozen=True)
class Dense:
    """A format whose layers have experts from layer `first_k_dense_replace` on: a model without such a layer.

    A file whose n_routed_experts is null has none in any layer.

    Attributes:
        absent: the first layer with experts in a file that does not say it.
    """

    absent: int

    @property
    def names(self) -> tuple[str, ...]:
        return ("first_k_dense_replace", *OF_EXPERTS.split())

    @property
    def paths(self) -> tuple[str, ...]:
        return ()

    def read(self, fields: Fields) -> Facts:
        layers = size(fields, "num_hidden_layers")
        first = fields.get("first_k_dense_replace")
        first = self.absent if first is None else first
        none = "n_routed_experts" in fields and fields["n_routed_experts"] is None
        if type(first) is not int or (first < layers and not none):
            raise ValueError(
                f"first_k_dense_replace must be at least num_hidden_layers={layers}, as experts are not implemented, "
                f"not {first!r}"
            )
        return {}

    def write(self, facts: Facts) -> dict[str, Any]:
        return {"first_k_dense_replace": facts["layers"]}
