"""A policy mixed with rules, in which the share of the rules is a parameter that is trained together with the network."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from rljax.caching import cache_results
from rljax.errors import InputError
from rljax.models.mixed_policy import Rules, with_mixture
from rljax.models.policy import Copies, Decoder, Params, Policy
from rljax.records import required


class Mixture(NamedTuple):
    """Parameters of a mixture with a learned share."""

    network: Params
    """The network's parameters."""
    shift: Float[Array, ""]
    """u, which shifts the log-odds of the rules' share; 0 at first."""


def learned_share(shift: Float[Array, ""], *, share: float, rate: float) -> Float[Array, ""]:
    """Compute the share of the rules, whose log-odds are trained at a multiple of the learning rate.

    ::

        s = σ(log(s_0 / (1 - s_0)) + u + sg[(k - 1) u])

    A change in u changes the log-odds by k times as much, but the gradient with respect to u equals the gradient with respect to
    the log-odds, so that clipping by the global gradient norm does not depend on k.

    Args:
        shift: u, the trained parameter.
        share: s_0, the share at u = 0, above 0 and below 1.
        rate: k, positive.

    Returns:
        s, the share of the rules, above 0 and below 1.

    Example:
        >>> round(learned_share(jnp.float32(0.5), share=0.5, rate=2.0).item(), 4)
        0.7311
        >>> jax.grad(partial(learned_share, share=0.5, rate=2.0))(jnp.float32(0.0)).item()
        0.25
    """
    return jax.nn.sigmoid(math.log(share / (1 - share)) + shift + jax.lax.stop_gradient((rate - 1) * shift))


@cache_results
def learned_mixture(policy: Policy, rules: Rules, *, share: float, rate: float) -> Policy:
    """Mix a policy with rules, whose share is trained by the policy gradient through the mixture.

    ::

        log π = log((1 - s) π_network + s π_rules)        s = σ(z)
        ∂ log π(a) / ∂z = s (1 - s) (π_rules(a) - π_network(a)) / π(a)

    The share grows if the rules favor tokens with positive advantages more than the network does. As in
    `rljax.models.mixed_policy.mixed_policy`, demonstrations train the network alone, and a saved folder contains only the network.

    Args:
        policy: the network; it needs `decoder` and `features`.
        rules: the state machine.
        share: s_0, the share at the start, above 0 and below 1.
        rate: k, the learning rate of the share's log-odds as a multiple of the network's, positive. AdamW moves a parameter by
            about the learning rate per update, so the log-odds need a rate of about 100 to change within a short run.

    Returns:
        The policy, whose parameters are a `Mixture`; it has no `features` and no critic.

    Raises:
        InputError: `share` or `rate` is out of range, or the policy lacks a decoder or features.

    Source:
        unpublished: `rljax.ops.unpublished.mixture.neural_symbolic_mixture`, whose source says that α is learned but not how. We
        use the gradient of the mixture's equation.
    """
    if not (0 < share < 1 and 0 < rate < math.inf):
        raise InputError(
            f"the rules start with the share {share} and learn at the rate {rate}; the share must be between 0 and 1, and the rate "
            "positive."
        )
    mixed = with_mixture(
        policy, rules, lambda params: (params.network, learned_share(params.shift, share=share, rate=rate))
    )
    network_decoder = required(policy.decoder, "policy.decoder")

    def init(key: PRNGKeyArray) -> Mixture:
        return Mixture(policy.init(key), jnp.zeros(()))

    def partition(path: tuple[str, ...], shape: tuple[int, ...]) -> PartitionSpec:
        return PartitionSpec() if path == ("shift",) else policy.partition(path[1:], shape)

    def copies(params: Mixture) -> Copies | None:
        network_copies = required(policy.copies, "policy.copies")(params.network)
        return None if network_copies is None else Mixture(network_copies, None)  # pyright: ignore[reportArgumentType]  a tree with None for no copy

    return mixed._replace(
        init=init,
        partition=partition,
        save=lambda params, folder: policy.save(params.network, folder),
        decoder=required(mixed.decoder, "decoder")._replace(weights=partial(_weights, network_decoder)),
        value_function=None,
        contents=_for_network(policy.contents),
        shapes=None if policy.shapes is None else partial(_shapes, policy.shapes),
        copies=None if policy.copies is None else copies,
        quantized=None,
        supervised_score=lambda params, packed, temperature: policy.score(params.network, packed, temperature),
    )


def _shapes(network_shapes: Callable[[], PyTree[jax.ShapeDtypeStruct]]) -> PyTree[jax.ShapeDtypeStruct]:
    return Mixture(network_shapes(), jax.ShapeDtypeStruct((), jnp.float32))  # pyright: ignore[reportArgumentType]  a shape


def _weights(decoder: Decoder, params: Mixture) -> Mixture:
    return params._replace(network=decoder.weights(params.network))


def _for_network(function: Callable | None) -> Callable | None:
    """Return a function of the mixture's parameters that calls `function` with the network's parameters."""
    return None if function is None else lambda params: function(params.network)
