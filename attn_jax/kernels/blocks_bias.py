"""What is added to one block of scores, made there: no more of it is ever whole than the call brought along."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from attn_jax.functional import relative_bias
from attn_jax.kernels.blocks_bounds import Given, Plan
from attn_jax.kernels.blocks_places import Place, added, pairs_at, pairs_of, part, positions_of


class Bias(NamedTuple):
    """What learns of it; None for what a call has not.

    Attributes:
        pairs: the call's own bias.
        relative: T5's, as `by_distance` lays it out.
    """

    pairs: Float[Array, "B|1 K|1 G|1 T S"] | None
    relative: Float[Array, "K G N"] | None


def by_distance(plan: Plan, relative: Float[Array, "H 2F+1"]) -> Float[Array, "K G N"]:
    """T5's numbers for each distance k - q from -F to F; where positions are indices, for each that a block may have.

    Then those of a block stand behind one another, and each of its queries reads them one further to the left.
    """
    if plan.by_index:
        far = relative.shape[1] // 2
        distances = np.arange(1 - plan.block_q - plan.keys, plan.keys + plan.block_k)
        relative = relative[:, np.clip(distances, -far, far) + far]
    return relative.reshape(-1, plan.group, relative.shape[1])


def biased(
    plan: Plan, given: Given, at: Place, start: Any, s: Float[Array, "R N G t s"], bias: Bias
) -> Float[Array, "R N G t s"]:
    """The scores of a block with all that is added to them."""
    if bias.pairs is not None:
        s = s + pairs_of(plan, bias.pairs, at, start).astype(s.dtype)
    if bias.relative is not None:
        numbers = _numbers_of(plan, at, start, bias.relative)
        s = s + _spread(plan, given, at, start, numbers.astype(s.dtype))
    if plan.slopes is not None:
        q_positions, k_positions = positions_of(plan, given, at, start)
        slopes = jnp.asarray(plan.slopes, s.dtype).reshape(1, -1, plan.group, 1, 1)
        slopes = part(slopes, (0, at.head, 0, 0, 0), (1, plan.heads, plan.group, 1, 1))
        s = s - slopes * jnp.abs(q_positions - k_positions).astype(s.dtype)
    return s


def bias_added(plan: Plan, given: Given, at: Place, start: Any, dbias: Bias, ds: Float[Array, "R N G t s"]) -> Bias:
    """The bias's gradients with those of a block: of a distance the sum over all pairs that are so far apart."""
    pairs, relative = dbias
    if pairs is not None:
        pairs = added(pairs, pairs_at(plan, at, start), ds)
    if relative is not None:
        numbers = _numbers_of(plan, at, start, relative)
        (block,) = jax.linear_transpose(lambda numbers: _spread(plan, given, at, start, numbers), numbers)(ds)
        relative = added(relative, _numbers_at(plan, at, start), block)
    return Bias(pairs, relative)


def _numbers_at(plan: Plan, at: Place, start: Any) -> tuple[Any, ...]:
    """Where the numbers of a block start: with the distance from its last query to its first key."""
    return at.head, 0, start - at.i * plan.block_q + plan.keys if plan.by_index else 0


def _numbers_of(plan: Plan, at: Place, start: Any, relative: Float[Array, "K G N"]) -> Float[Array, "N G n"]:
    length = plan.block_q + plan.block_k - 1 if plan.by_index else relative.shape[2]
    return part(relative, _numbers_at(plan, at, start), (plan.heads, plan.group, length))


def _spread(
    plan: Plan, given: Given, at: Place, start: Any, numbers: Float[Array, "N G n"]
) -> Float[Array, "R N G t s"]:
    """The bias of each pair of a block."""
    (N, G, _), (R, t, n) = numbers.shape, (plan.rows, plan.block_q, plan.block_k)
    if plan.by_index:
        rows = jax.vmap(lambda first: lax.dynamic_slice_in_dim(numbers, first, n, axis=2), out_axes=2)
        block = rows(jnp.arange(t)[::-1])[None]
    else:
        q, k = (x.reshape(-1, x.size // len(x)) for x in positions_of(plan, given, at, start))
        block = relative_bias(numbers.reshape(N * G, -1), q, k).reshape(-1, N, G, t, n)
    return jnp.broadcast_to(block, (R, N, G, t, n))
