"""Statistics of how the routers of a mixture of experts divide tokens among the experts.

Axes: as in `rljax.models.experts`, and L layers.
"""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rljax.models.experts import Experts
from rljax.models.language_model import Model
from rljax.models.policy import Params
from rljax.ops.arrays import sum_dtype


class RouterStatistics(NamedTuple):
    """How one layer's router divides tokens among E experts."""

    balance: Float[Array, "*L"]
    """E Σ_e f_e p_e; 1 if all experts get the same fraction of the tokens."""
    entropy: Float[Array, "*L"]
    """Mean entropy of the router's distribution over the experts, in nats; at most ln E."""
    largest_share: Float[Array, "*L"]
    """max_e f_e, the fraction of the choices that went to the most popular expert; 1/E if all get the same fraction."""
    unused_share: Float[Array, "*L"]
    """Fraction of the experts that no token chose."""


def router_statistics(scores: Float[Array, "B T E"], counted: Bool[Array, "B T"], *, chosen: int) -> RouterStatistics:
    """Compute how a router divides tokens among its experts.

    ::

        f_e = Σ_t [e is among the C most probable experts of token t] / (C N)        p_e = Σ_t p_t,e / N
        balance = E Σ_e f_e p_e                                                       entropy = -Σ_t Σ_e p_t,e log p_t,e / N

    over the N counted tokens, with p_t = softmax(scores of token t).

    Args:
        scores: the router's scores.
        counted: mask of the tokens to include, at least one.
        chosen: C, the number of experts chosen per token.

    Example:
        >>> scores = jnp.log(jnp.array([[[0.5, 0.25, 0.25], [0.8, 0.1, 0.1], [0.1, 0.8, 0.1]]]))
        >>> found = router_statistics(scores, jnp.array([[True, True, False]]), chosen=1)
        >>> [round(float(value), 3) for value in found]
        [1.95, 0.839, 1.0, 0.667]

    Source:
        Balance: the load-balancing loss of Switch Transformer, arXiv:2101.03961, Eqs. 4 to 6, without its coefficient, and with
        the fractions f_e over C experts per token instead of one.
    """
    experts = scores.shape[-1]
    logp = jax.nn.log_softmax(scores.astype(sum_dtype(scores)))
    weight = counted.astype(logp.dtype) / counted.sum(dtype=logp.dtype)
    picked = jax.nn.one_hot(jax.lax.top_k(logp, chosen)[1], experts, dtype=logp.dtype).sum(-2)
    share = jnp.einsum("BT,BTE->E", weight, picked) / chosen
    probability = jnp.einsum("BT,BTE->E", weight, jnp.exp(logp))
    entropy = -(weight * (jnp.exp(logp) * logp).sum(-1)).sum()
    return RouterStatistics(experts * share @ probability, entropy, share.max(), jnp.mean(share == 0, dtype=logp.dtype))


class _WatchedExperts:
    """A mixture of experts that also appends the statistics of its router to a list."""

    def __init__(self, experts: Experts, counted: Bool[Array, "B T"], found: list[RouterStatistics]):
        self._experts, self._counted, self._found = experts, counted, found

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        scores, chosen = self._experts.scores(x), self._experts.routing.chosen
        self._found.append(router_statistics(scores, self._counted, chosen=chosen))
        return self._experts(x)


def statistics_by_layer(
    model: Model,
    params: Params,
    tokens: Int[Array, "B T"],
    positions: Int[Array, "B T"],
    segments: Int[Array, "B T"],
    counted: Bool[Array, "B T"],
) -> RouterStatistics:
    """Run a mixture of experts on complete sequences, and return the statistics of each layer's router, `[L]`.

    Args:
        model: a model with experts.
        params: its parameters.
        tokens: token ids.
        positions: position of each token in its sequence.
        segments: number of each token's sequence; 0 for padding.
        counted: mask of the tokens to include.
    """
    found: list[RouterStatistics] = []
    module = Model(replace(model.config, remat="none", scan_layers=False), model.mesh).module(params)
    for layer in module.layers:
        experts = layer.feed_forward
        assert isinstance(experts, Experts)  # the caller passes a model with experts
        layer.feed_forward = _WatchedExperts(experts, counted, found)  # pyright: ignore[reportAttributeAccessIssue]  only its `__call__` is used
    module(tokens, positions, segments)
    return jax.tree.map(lambda *layers: jnp.stack(layers), *found)
