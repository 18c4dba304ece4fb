"""A mixture of experts in place of a feed-forward layer.

Axes, in addition to those of `rljax.models.transformer`: E experts; C experts chosen per token; X token copies, C for each token.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import normal
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from rljax.models.adapters import Adapted
from rljax.models.axes import dividing_axes, spec_of
from rljax.models.config import Routing, TransformerConfig
from rljax.models.policy import cast_parameter
from rljax.models.transformer import RESIDUAL, activation_of, product
from rljax.ops.arrays import sum_dtype


class ExpertLinears(NamedTuple):
    """One linear layer per expert, such as the experts' gate layers."""

    matrix: Float[Array, "E I O"]
    """The experts' matrices."""
    bias: Float[Array, "E O"] | None = None
    """The experts' biases; None: the layers have no bias."""
    factors: tuple[Float[Array, "E I r"], Float[Array, "E r O"]] | None = None
    """A and α/r B of each expert's adapter; None: the layers have no adapter."""

    def __call__(self, x: Float[Array, "X I"], sizes: Int[Array, "E"]) -> Float[Array, "X O"]:
        """Apply each expert's layer to the expert's group of tokens; the groups are consecutive and have these `sizes`."""
        out = jax.lax.ragged_dot(x, self.matrix, sizes)
        if self.factors is not None:
            a, scaled_b = self.factors
            out += jax.lax.ragged_dot(jax.lax.ragged_dot(x, a, sizes), scaled_b, sizes)
        if self.bias is None:
            return out
        # copies in no group get the last expert's bias; `mix_experts` multiplies their outputs by 0
        group = jnp.repeat(jnp.arange(len(sizes)), sizes, total_repeat_length=len(x))
        return out + self.bias[group]


class Experts(nnx.Module):
    """A layer that outputs the weighted sum of the outputs of a token's C most probable experts, each a gated feed-forward layer.

    ::

        p = softmax(router(x))      y = Σ_e p_e down_e(activation(gate_e(x)) * up_e(x)) over the C largest p_e

    With `Routing.normalized`, the C weights are divided by their sum. `rljax.models.axes` shards the experts across a mesh.
    """

    def __init__(self, config: TransformerConfig, routing: Routing, *, rngs: nnx.Rngs, mesh: Mesh | None = None):
        count, width, hidden = routing.experts, config.width, config.hidden
        init_in, init_out = normal(width**-0.5), normal(hidden**-0.5 / (2 * config.layers) ** 0.5)
        self.router = nnx.Param(init_in(rngs.params(), (width, count)))
        self.expert_gate = nnx.Param(init_in(rngs.params(), (count, width, hidden)))
        self.expert_up = nnx.Param(init_in(rngs.params(), (count, width, hidden)))
        self.expert_down = nnx.Param(init_out(rngs.params(), (count, hidden, width)))
        if routing.has_bias:
            self.router_bias = nnx.Param(jnp.zeros(count))
            self.expert_gate_bias = nnx.Param(jnp.zeros((count, hidden)))
            self.expert_up_bias = nnx.Param(jnp.zeros((count, hidden)))
            self.expert_down_bias = nnx.Param(jnp.zeros((count, width)))
        self.gating = (
            partial(apply_gate, activation_of(config))
            if routing.clamp is None
            else partial(apply_clamped_gate, *routing.clamp)
        )
        self.routing, self.mesh = routing, mesh

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Pass each token through its experts."""
        return self.mix(x, *route(self.scores(x), self.routing))

    def mix(
        self, x: Float[Array, "B T D"], weights: Float[Array, "B T C"], chosen: Int[Array, "B T C"]
    ) -> Float[Array, "B T D"]:
        """Pass each token through the chosen experts, and return the weighted sum of their outputs."""
        experts = self._experts(x.dtype)
        mixture = partial(mix_experts, gating=self.gating)
        if self.mesh is None or self.mesh.size == 1:
            return mixture(x, weights.astype(x.dtype), chosen, experts)
        rows = spec_of(RESIDUAL, self.mesh.axis_names)
        axes = dividing_axes("experts", self.routing.experts, self.mesh)
        mixture = jax.shard_map(
            partial(mixture, axes=axes),
            mesh=self.mesh,
            in_specs=(rows, rows, rows, PartitionSpec(axes)),
            out_specs=rows,
        )
        return mixture(x, weights.astype(x.dtype), chosen, experts)

    def scores(self, x: Float[Array, "B T D"]) -> Float[Array, "B T E"]:
        """Return the router's scores of the experts for each token."""
        scores = product(x, self.router)
        return scores + self.router_bias[...].astype(x.dtype)[None, None] if self.routing.has_bias else scores

    def _experts(self, dtype: jnp.dtype) -> tuple[ExpertLinears, ExpertLinears, ExpertLinears]:
        """Return the gate, up and down layers of all experts, in the precision `dtype`."""
        names = ("expert_gate", "expert_up", "expert_down")
        layers = [_build_linears(getattr(self, name).get_value(), dtype) for name in names]
        if self.routing.has_bias:
            biases = [cast_parameter(getattr(self, f"{name}_bias").get_value(), dtype) for name in names]
            layers = [layer._replace(bias=bias) for layer, bias in zip(layers, biases, strict=True)]
        gate, up, down = layers
        return gate, up, down


def _build_linears(parameter: Any, dtype: jnp.dtype) -> ExpertLinears:
    """Build the experts' linear layers, in the precision `dtype`, from their matrices with or without an adapter."""
    if not isinstance(parameter, Adapted):
        return ExpertLinears(cast_parameter(parameter, dtype))
    matrix: Any = parameter.matrix  # never quantized: `quantize_parameter` refuses the matrices of experts
    a, b = parameter.factors
    return ExpertLinears(
        cast_parameter(matrix, dtype), factors=(jnp.asarray(a, dtype), jnp.asarray(parameter.scale * b, dtype))
    )


def apply_gate(
    activation: Callable[[Array], Array], gate: Float[Array, "X F"], up: Float[Array, "X F"]
) -> Float[Array, "X F"]:
    """Compute activation(gate) * up."""
    return activation(gate) * up


def apply_clamped_gate(
    limit: float, slope: float, gate: Float[Array, "X F"], up: Float[Array, "X F"]
) -> Float[Array, "X F"]:
    """Compute g σ(a g) (u + 1) with slope a, after limiting the gate g to at most `limit` and u to [-`limit`, `limit`].

    Example:
        >>> print(apply_clamped_gate(7.0, 1.702, jnp.array([[9.0]]), jnp.array([[-9.0]])).round(2))
        [[-42.]]
    """
    gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
    return gate * jax.nn.sigmoid(slope * gate) * (up + 1)


def route(scores: Float[Array, "B T E"], routing: Routing) -> tuple[Float[Array, "B T C"], Int[Array, "B T C"]]:
    """Choose each token's experts.

    Args:
        scores: the router's scores.
        routing: the number of chosen experts, and whether their weights are normalized to sum to 1.

    Returns:
        The weights of the chosen experts, in float32 or higher precision, and the indices of these experts.

    Example:
        >>> weights, chosen = route(jnp.log(jnp.array([[[0.125, 0.25, 0.625]]])), Routing(3, 2, normalized=False))
        >>> chosen.tolist(), weights.round(3).tolist()
        ([[[2, 1]]], [[[0.625, 0.25]]])
    """
    weights, chosen = jax.lax.top_k(jax.nn.softmax(scores.astype(sum_dtype(scores))), routing.chosen)
    return (weights / weights.sum(-1, keepdims=True) if routing.normalized else weights), chosen


def mix_experts(
    x: Float[Array, "B T D"],
    weights: Float[Array, "B T C"],
    chosen: Int[Array, "B T C"],
    experts: tuple[ExpertLinears, ExpertLinears, ExpertLinears],
    *,
    gating: Callable[[Array, Array], Array],
    axes: tuple[str, ...] = (),
) -> Float[Array, "B T D"]:
    """Compute the weighted sum of the chosen experts' outputs, by sorting copies of the tokens by expert.

    Args:
        x: the tokens.
        weights: weights of the chosen experts.
        chosen: indices of the chosen experts.
        experts: gate, up and down layers of all experts; of this device's experts only, if `axes` is not empty.
        gating: (outputs of gate, outputs of up) -> input of down.
        axes: mesh axes over which the experts are divided, in order; empty: this device has all experts.
    """
    if axes:  # without this cast, JAX 0.10 does not sum the devices' gradients of x and weights
        x, weights, chosen = (jax.lax.pcast(array, axes, to="varying") for array in (x, weights, chosen))
    gate, up, down = experts
    count, copies = len(gate.matrix), chosen.shape[-1]
    own = chosen.reshape(-1) - (count * jax.lax.axis_index(axes) if axes else 0)
    is_here = (own >= 0) & (own < count)
    own = jnp.where(is_here, own, count)  # copies for another device's experts are sorted last, and are in no group
    order = jnp.argsort(own)
    sizes = (own[:, None] == jnp.arange(count)[None]).sum(0, dtype=jnp.int32)
    tokens = x.reshape(-1, x.shape[-1])
    sorted_tokens = tokens[order // copies]
    outputs = down(gating(gate(sorted_tokens, sizes), up(sorted_tokens, sizes)), sizes)
    outputs = outputs * jnp.where(is_here, weights.reshape(-1), 0)[order][:, None]
    total = jnp.zeros_like(tokens).at[order // copies].add(outputs).reshape(x.shape)
    return jax.lax.psum(total, axes) if axes else total
