"""`--worst-kind RATE`: give kinds of problems with lower rewards larger weights (Group DRO).

The weights of the kinds are part of the training state, so a resumed run continues with the same weights.
"""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from rljax.algorithms import Algorithm, Credit, Rollout
from rljax.algorithms.algorithm import outcomes
from rljax.caching import cache_results
from rljax.errors import InputError
from rljax.evaluation.problem_kinds import KNOWN_COLUMNS, MAX_KINDS, kind_indices
from rljax.models import Params
from rljax.ops.arrays import Number
from rljax.parallel import put
from rljax.records import required
from rljax.training.setup import Setup
from rljax.training.state import Option, TrainState, Updates

NAME = "group_robust"


def install(setup: Setup) -> Setup:
    """Weight the advantages by kind of problem, and adjust the weights before the updates of each rollout.

    Raises:
        InputError: the training data has no kinds, rewards are remembered, or the algorithm has a critic or no advantages.
    """
    config, rate = setup.config, required(setup.config.algorithm.worst_kind, "worst_kind")
    if setup.algorithm.advantage is None or setup.algorithm.critic is not None or config.sampling.remembered_rewards:
        raise InputError(
            f"worst_kind={rate} weights advantages within groups of responses, so it needs an algorithm without a critic, such as "
            "dr_grpo; also leave remembered_rewards out."
        )
    if setup.tokenizer is None:  # a plan loads no problems, so their kinds are unknown
        return setup
    kinds = kind_indices(setup.train.prompts.problems)
    if kinds is None:
        raise InputError(
            f"worst_kind={rate} compares kinds of problems, but no column of the training problems has 2 to {MAX_KINDS} kinds; "
            f"add one of the columns {', '.join(KNOWN_COLUMNS)} to the data."
        )
    count = int(kinds.max()) + 1

    def init(params: Params) -> Float[Array, "K"]:
        del params
        return jnp.full(count, 1 / count, jnp.float32)

    def move(state: TrainState, scored: Any) -> TrainState:
        now = state.options[NAME]
        after = next_weights(np.asarray(now), kind_losses(scored.groups.rollout, count), rate=rate)
        return state._replace(options=state.options | {NAME: put(after, now.sharding)})

    option = Option(NAME, init=init, adjust=with_weights, before_updates=move, after_updates=report)
    return setup._replace(algorithm=with_kinds(setup.algorithm)).with_option(option)


def next_weights(
    weights: Float[np.ndarray, "K"], losses: Float[np.ndarray, "K"], *, rate: Number
) -> Float[np.ndarray, "K"]:
    """Update the weights of the kinds by one exponentiated-gradient step.

    ::

        q'_k = q_k exp(η ℓ_k) / Σ_j q_j exp(η ℓ_j)

    Args:
        weights: q, the weights of the K kinds, which sum to 1.
        losses: ℓ, the loss of each kind, in the reward's unit.
        rate: η, the step size, per unit of reward.

    Example:
        >>> next_weights(np.array([0.5, 0.5], np.float32), np.array([0.0, 1.0], np.float32), rate=np.log(3.0)).tolist()
        [0.25, 0.75]

    Source:
        Group DRO, arXiv:1911.08731, Algorithm 1, where a kind of problem is called a group.
    """
    scaled = np.log(np.asarray(weights, np.float64)) + rate * np.asarray(losses, np.float64)
    raised = np.exp(scaled - scaled.max())
    return (raised / raised.sum()).astype(np.float32)


def kind_losses(rollout: Rollout[np.ndarray], count: int) -> Float[np.ndarray, "K"]:
    """Compute the loss of each kind: how far its mean outcome is below the rollout's; 0 for a kind without a judged response.

    ::

        ℓ_k = mean{ o_i : all i } - mean{ o_i : kind(i) = k }        o = `rljax.algorithms.algorithm.outcomes`
    """
    outcome = np.asarray(outcomes(rollout), np.float64)
    valid = np.ones(outcome.shape, bool) if rollout.valid is None else np.asarray(rollout.valid, bool)
    kinds = np.broadcast_to(np.asarray(required(rollout.kinds, "rollout.kinds"))[:, None], outcome.shape)
    losses = np.zeros(count, np.float32)
    for kind in np.unique(kinds[valid]):
        losses[kind] = outcome[valid].mean() - outcome[valid & (kinds == kind)].mean()
    return losses


@cache_results
def with_kinds(algorithm: Algorithm) -> Algorithm:
    """Let the algorithm's advantages read the kinds, so that `with_weights` can weight the advantages; they do not change yet."""
    credit = algorithm.advantage
    credit = credit if isinstance(credit, Credit) else Credit(required(credit, "advantage"), optional=("valid",))
    weighted = partial(weight_advantages, credit.function, weights=None)
    return algorithm._replace(advantage=credit._replace(function=weighted, needs=(*credit.needs, "kinds")))


def with_weights(algorithm: Algorithm, weights: Float[Array, "K"]) -> Algorithm:
    """Return an algorithm that `with_kinds` built, with these weights of the kinds."""
    credit = algorithm.advantage
    assert isinstance(credit, Credit)  # built by `with_kinds`
    return algorithm._replace(advantage=credit._replace(function=partial(credit.function, weights=weights)))


def weight_advantages(
    function: Any, *arguments: Any, weights: Float[Array, "K"] | None, **others: Array
) -> Float[Array, "P G *T"]:
    """Compute advantages, and multiply each by K q_k, which is 1 at uniform weights.

    ::

        A'_i = K q_{kind(i)} A_i

    Args:
        function: the function that computes advantages.
        arguments: the function's positional arguments, followed by the kind of each prompt, `[P]`.
        weights: q; None means uniform weights.
        others: the function's keyword arguments.
    """
    *own, kinds = arguments
    advantage = function(*own, **others)
    if weights is None:
        return advantage
    factor = (weights.size * weights)[kinds].astype(advantage.dtype)
    return advantage * factor.reshape(-1, *[1] * (advantage.ndim - 1))


def report(state: TrainState, metrics: object, updates: Updates) -> tuple[TrainState, dict[str, float]]:
    """Report the largest weight of all kinds."""
    del metrics, updates
    return state, {"worst_kind_weight": float(np.asarray(state.options[NAME]).max())}
