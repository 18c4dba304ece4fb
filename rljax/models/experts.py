"""A mixture of experts in place of a feed-forward layer.

Axes: as in `rljax.models.transformer`, and E experts, C experts chosen for each token.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import normal
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from rljax.models.axes import TENSOR, spec_of
from rljax.models.config import Routing, TransformerConfig
from rljax.models.policy import in_precision
from rljax.models.transformer import RESIDUAL, activation_of, product


class Experts(nnx.Module):
    """The weighted sum of the outputs of a token's C most probable experts, each a gated feed-forward layer.

    ::

        p = softmax(router(x))      y = Σ_e p_e down_e(activation(gate_e(x)) * up_e(x)) over the C largest p_e

    With `normalized`, the C weights are divided by their sum. Experts are shared by the mesh axis `tensor`.
    """

    def __init__(self, config: TransformerConfig, routing: Routing, *, rngs: nnx.Rngs, mesh: Mesh | None = None):
        count, width, hidden = routing.experts, config.width, config.hidden
        inner, outer = normal(width**-0.5), normal(hidden**-0.5 / (2 * config.layers) ** 0.5)
        self.router = nnx.Param(inner(rngs.params(), (width, count)))
        self.expert_gate = nnx.Param(inner(rngs.params(), (count, width, hidden)))
        self.expert_up = nnx.Param(inner(rngs.params(), (count, width, hidden)))
        self.expert_down = nnx.Param(outer(rngs.params(), (count, hidden, width)))
        self.activation, self.routing, self.mesh = activation_of(config), routing, mesh

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Pass each token through its experts."""
        matrices = [in_precision(one.get_value(), x.dtype) for one in (self.expert_gate, self.expert_up, self.expert_down)]
        weights, chosen = route(product("BTD,DE->BTE", x, self.router), self.routing)
        mixture = partial(mixed, activation=self.activation)
        if self.mesh is None or self.mesh.size == 1:
            return mixture(x, weights.astype(x.dtype), chosen, *matrices)
        rows, experts = spec_of(RESIDUAL), spec_of(("experts", "features", "features"))
        mixture = partial(mixture, axis=TENSOR)
        specs = (rows, rows, rows, experts, experts, experts)
        return jax.shard_map(mixture, mesh=self.mesh, in_specs=specs, out_specs=rows)(
            x, weights.astype(x.dtype), chosen, *matrices
        )


def route(scores: Float[Array, "B T E"], routing: Routing) -> tuple[Float[Array, "B T C"], Int[Array, "B T C"]]:
    """Choose each token's experts.

    Args:
        scores: the router's scores.
        routing: the number of chosen experts, and whether their weights sum to 1.

    Returns:
        The weights of the chosen experts, float32 at least, and their indices.

    Example:
        >>> weights, chosen = route(jnp.log(jnp.array([[[0.125, 0.25, 0.625]]])), Routing(3, 2, normalized=False))
        >>> chosen.tolist(), weights.round(3).tolist()
        ([[[2, 1]]], [[[0.625, 0.25]]])
    """
    weights, chosen = jax.lax.top_k(
        jax.nn.softmax(scores.astype(jnp.promote_types(scores.dtype, jnp.float32))), routing.chosen
    )
    return (weights / weights.sum(-1, keepdims=True) if routing.normalized else weights), chosen


def mixed(
    x: Float[Array, "B T D"],
    weights: Float[Array, "B T C"],
    chosen: Int[Array, "B T C"],
    gate: Float[Array, "E D F"],
    up: Float[Array, "E D F"],
    down: Float[Array, "E F D"],
    *,
    activation: Callable[[Array], Array],
    axis: str | None = None,
) -> Float[Array, "B T D"]:
    """Compute the weighted sum of the experts' outputs, with each token's copies sorted by their experts.

    Args:
        x: the tokens.
        weights: weights of the chosen experts.
        chosen: their indices.
        gate: matrices of the experts; with an axis, of those that this device holds.
        up: likewise.
        down: likewise.
        activation: activation function of the gate.
        axis: mesh axis whose devices hold the experts, in order; None: all are here.
    """
    if axis is not None:  # JAX 0.10 does not add the devices' gradients of x and weights without it
        x, weights, chosen = (jax.lax.pcast(array, axis, to="varying") for array in (x, weights, chosen))
    count, copies = len(gate), chosen.shape[-1]
    own = chosen.reshape(-1) - (0 if axis is None else count * jax.lax.axis_index(axis))
    own = jnp.where((own >= 0) & (own < count), own, count)  # another device's experts come last, and are in no group
    order = jnp.argsort(own)
    sizes = (own[:, None] == jnp.arange(count)[None]).sum(0, dtype=jnp.int32)
    tokens = x.reshape(-1, x.shape[-1])
    sorted_tokens = tokens[order // copies]
    hidden = activation(jax.lax.ragged_dot(sorted_tokens, gate, sizes)) * jax.lax.ragged_dot(sorted_tokens, up, sizes)
    outputs = jax.lax.ragged_dot(hidden, down, sizes) * weights.reshape(-1)[order][:, None]
    total = jnp.zeros_like(tokens).at[order // copies].add(outputs).reshape(x.shape)
    return total if axis is None else jax.lax.psum(total, axis)
