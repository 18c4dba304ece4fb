"""Preparation of a rollout before it is split into micro-batches: everything that depends on full groups or the full batch."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from rljax.algorithms.algorithm import (
    ROLLOUT_FIELDS,
    Algorithm,
    Batch,
    Credit,
    Critic,
    EarlierRewards,
    Rollout,
    Term,
    outcomes,
)
from rljax.ops.arrays import check_between, in_float32
from rljax.ops.gae import rewards_at_last_token
from rljax.ops.masked import zero_outside
from rljax.ops.unpublished.reward_history import temporal_advantage
from rljax.ops.weights import token_mean
from rljax.records import required


def _check_rollout(algorithm: Algorithm, rollout: Rollout[Array] | Rollout[np.ndarray]) -> None:
    """Refuse mismatched shapes, and missing inputs that the algorithm reads."""
    if rollout.mask.ndim != 3:
        raise ValueError(f"mask must have the axes [P, G, T], got shape {list(rollout.mask.shape)}")
    for path, array in jax.tree.leaves_with_path(rollout):  # pyright: ignore[reportUnknownVariableType]  untyped in JAX
        shape = ROLLOUT_FIELDS[path[0].name].shape(rollout.mask.shape)
        if array.shape != shape:
            field = jax.tree_util.keystr(path).removeprefix(".")
            raise ValueError(f"{field} must have shape {list(shape)} to match the mask, got {list(array.shape)}")
    for name, slot in algorithm.reads().items():
        if name in ROLLOUT_FIELDS and getattr(rollout, name) is None:
            raise ValueError(f"rollout.{name} must be set: the algorithm's slot {slot} reads it, got None")


def _check_credit(algorithm: Algorithm, progress: Array | float | None, past: EarlierRewards | None) -> None:
    """Refuse an algorithm with no source of credit or with two and no mix, and arguments that do not fit the algorithm."""
    sources = [name for name in ("advantage", "critic") if getattr(algorithm, name) is not None]
    uses_teacher_only = algorithm.teacher_divergence is not None and not sources
    if algorithm.mix is None and len(sources) != 1 and not uses_teacher_only:
        raise ValueError(f"algorithm must have exactly one of advantage and critic, got {', '.join(sources) or 'none'}")
    if algorithm.mix is not None and len(sources) != 2:
        raise ValueError(f"algorithm must have both advantage and critic for its mix, got {', '.join(sources) or 'none'}")
    if algorithm.mix is not None and progress is None:
        raise ValueError("progress must be set: the algorithm's mix of two advantages depends on it, got None")
    if progress is not None:
        check_between(0, 1, progress=progress)
    if past is not None and not algorithm.compares_groups:
        raise ValueError("past must be None: the algorithm does not compare the responses of a group, got earlier rewards")


def _check_minibatches(prompts: int, **counts: int) -> None:
    for name, count in counts.items():
        if count < 1 or prompts % count:
            raise ValueError(f"{name} must divide the {prompts} prompts of the rollout, got {count}")


def _drop_abstentions(rollout: Rollout[Array] | Rollout[np.ndarray]) -> Rollout[Array]:
    """Mask out every token of a response on which the reward abstained; convert NumPy arrays to JAX arrays."""
    arrays: Rollout[Array] = jax.tree.map(jnp.asarray, rollout)
    mask = arrays.mask.astype(bool)
    return arrays._replace(mask=mask if arrays.valid is None else mask & arrays.valid.astype(bool)[..., None])


def _omit_none(**arrays: Array | None) -> dict[str, Array]:
    """Keep the arguments that are not None, so that a slot need not accept inputs that the rollout lacks."""
    return {name: array for name, array in arrays.items() if array is not None}


def _select_trained_tokens(algorithm: Algorithm, rollout: Rollout[Array]) -> Bool[Array, "P G T"]:
    """Return the tokens of kept groups that are not filtered out."""
    mask = rollout.mask
    if algorithm.keep_group is not None:
        mask = mask & algorithm.keep_group(outcomes(rollout), **_omit_none(valid=rollout.valid))[:, None, None]
    if algorithm.filter_tokens is not None:
        mask = algorithm.filter_tokens(mask, required(rollout.truncated, "rollout.truncated"))
    return mask


def _shape_rewards(
    algorithm: Algorithm, rollout: Rollout[Array], policy_logp: Array
) -> tuple[Float[Array, "P G"], Float[Array, "P G T"] | None]:
    """Return each response's shaped reward, and what the KL penalty adds to each token's reward (None without a penalty)."""
    rewards = rollout.rewards
    lengths = rollout.mask.sum(-1).astype(rewards.dtype)
    if algorithm.outcome_reward is not None:
        rewards = algorithm.outcome_reward(rewards, outcomes(rollout), lengths)
    if algorithm.shape_reward is not None:
        rewards = rewards + algorithm.shape_reward(lengths)
    if algorithm.reward_kl is None:
        return rewards, None
    reference = required(rollout.ref_logp, "rollout.ref_logp")
    return rewards, algorithm.reward_kl(jnp.zeros_like(policy_logp), policy_logp, reference, rollout.mask)


def _add_kl_rewards(rewards: Float[Array, "P G"], kl_rewards: Float[Array, "P G T"] | None) -> Float[Array, "P G"]:
    return rewards if kl_rewards is None else rewards + kl_rewards.sum(-1)


def _token_rewards(
    algorithm: Algorithm, rewards: Float[Array, "P G"], kl_rewards: Float[Array, "P G T"] | None, rollout: Rollout[Array]
) -> Float[Array, "P G T"] | None:
    """Return the rewards on the tokens that earned them, minus the KL penalty; None if the algorithm does not read them.

    A turn's reward is on the turn's last token; the rest of a response's reward is put on the response's last token.
    """
    if algorithm.critic is None and not any("token_rewards" in credit.needs for credit in algorithm.credits):
        return None
    if rollout.turn_rewards is None:
        token_rewards = rewards_at_last_token(rewards, rollout.mask)
    else:
        turn_rewards = zero_outside(rollout.turn_rewards, rollout.mask)
        token_rewards = turn_rewards + rewards_at_last_token(rewards - turn_rewards.sum(-1), rollout.mask)
    return token_rewards if kl_rewards is None else token_rewards + kl_rewards


@in_float32
def response_rewards(algorithm: Algorithm, rollout: Rollout[Array] | Rollout[np.ndarray]) -> Float[Array, "P G"]:
    """Rewards by which the responses of a rollout are compared: the shaped rewards minus the KL penalty.

    Args:
        algorithm: the algorithm, whose slots shape the rewards.
        rollout: P prompts with G responses each.

    Returns:
        `[P, G]`, in the same unit as the rewards.

    Raises:
        ValueError: a required input is missing, or shapes disagree.

    Example:
        >>> import jax.numpy as jnp
        >>> from rljax.algorithms import BY_NAME, Rollout
        >>> rollout = Rollout(
        ...     mask=jnp.ones((1, 2, 3), bool), behaviour_logp=jnp.zeros((1, 2, 3)), rewards=jnp.array([[1.0, 0.0]])
        ... )
        >>> response_rewards(BY_NAME["rloo"](), rollout).tolist()
        [[1.0, 0.0]]
    """
    _check_rollout(algorithm, rollout)
    rollout = _drop_abstentions(rollout)
    return _add_kl_rewards(*_shape_rewards(algorithm, rollout, _policy_logp(rollout)))


def _policy_logp(rollout: Rollout[Array]) -> Float[Array, "P G T"]:
    """Return the log-probability under the policy before the update; 0 outside the mask."""
    logp = rollout.behaviour_logp if rollout.policy_logp is None else rollout.policy_logp
    return zero_outside(logp, rollout.mask)


def _compute_credit(
    algorithm: Algorithm,
    rollout: Rollout[Array],
    rewards: Array,
    token_rewards: Array | None,
    *,
    progress: Array | None,
    past: EarlierRewards | None,
) -> Float[Array, "P G T"]:
    """Return each token's credit: the advantage before normalization, or 0 if the algorithm has no advantages."""
    inputs = rollout._asdict() | {
        "rewards": rewards,
        "token_rewards": token_rewards,
        "policy_logp": _policy_logp(rollout),
        "correction_weight": _correction_weight(algorithm, _policy_logp(rollout), rollout),
        "step_end": None if rollout.step_end is None else rollout.step_end.astype(bool) & rollout.mask,
    }
    advantages = [_call_credit(credit, inputs, past) for credit in algorithm.credits]
    if algorithm.mix is not None:
        critic_advantage, group_advantage = advantages
        return algorithm.mix(critic_advantage, group_advantage, required(progress, "progress"))
    return advantages[0] if advantages else jnp.zeros_like(rollout.behaviour_logp)


def _call_credit(credit: Credit, inputs: Mapping[str, Any], past: EarlierRewards | None) -> Float[Array, "P G T"]:
    """Call a credit's function with its inputs; earlier rewards of a prompt, if passed, join the group that is compared."""
    arguments = [required(inputs[name], f"rollout.{name}") for name in credit.needs]
    function, optional = credit.function, _omit_none(**{name: inputs[name] for name in credit.optional})
    if past is not None and credit.needs == ("rewards",):
        function = partial(temporal_advantage, past.memory, jnp.asarray(past.prompt_ids), advantage=function)
    advantage = function(*arguments, **optional)
    per_token = advantage if advantage.ndim == inputs["mask"].ndim else advantage[..., None]
    return jnp.broadcast_to(per_token, inputs["mask"].shape)


def _advantage(
    algorithm: Algorithm, rollout: Rollout[Array], trained: Rollout[Array], credit: Array
) -> Float[Array, "P G T"]:
    """Return the trained tokens' credit plus the algorithm's bonus, normalized; 0 on tokens that `keep_tokens` leaves out."""
    advantage = zero_outside(credit, trained.mask)
    if algorithm.bonus is not None:
        advantage = algorithm.bonus(
            advantage, required(rollout.behaviour_entropy, "rollout.behaviour_entropy"), trained.mask
        )
    if algorithm.normalize is not None:
        advantage = algorithm.normalize(advantage, trained.mask)
    if algorithm.keep_tokens is not None:  # after normalization, which would make the zeros nonzero
        advantage = jnp.where(algorithm.keep_tokens(advantage, _policy_logp(trained), trained.mask), advantage, 0.0)
    return advantage


def _for_each_minibatch(
    rollout: Rollout[Array], count: int, weigh: Callable[[Rollout[Array]], Array]
) -> Float[Array, "P G T"]:
    """Compute the weights of each mini-batch from its own prompts only."""
    prompts = rollout.mask.shape[0]
    batches = jax.tree.map(lambda x: x.reshape(count, prompts // count, *x.shape[1:]), rollout)
    return jax.vmap(weigh)(batches).reshape(rollout.mask.shape)


def _surrogate_weights(
    algorithm: Algorithm, rollout: Rollout[Array], policy_logp: Array, minibatches: int
) -> Float[Array, "P G T"]:
    """Return the surrogate's weights, scaled and corrected."""

    def weigh(minibatch: Rollout[Array]) -> Array:
        weights = algorithm.weights(minibatch.mask)
        if algorithm.scale is None:
            return weights
        return weights * algorithm.scale(minibatch.rewards, **_omit_none(valid=minibatch.valid))

    weights = _for_each_minibatch(rollout, minibatches, weigh)
    return weights * _correction_weight(algorithm, policy_logp, rollout)


def _correction_weight(algorithm: Algorithm, policy_logp: Array, rollout: Rollout[Array]) -> Float[Array, "P G T"]:
    """Return each token's weight under the algorithm's correction; 1 if there is no correction."""
    if algorithm.correction is None:
        return jnp.ones_like(policy_logp)
    return algorithm.correction.weight(policy_logp, rollout.behaviour_logp, rollout.mask)


def _term_weights(
    algorithm: Algorithm, trained: Rollout[Array], advantage: Array, minibatches: int
) -> tuple[Float[Array, "P G T"], ...]:
    """Return the weights of each of the algorithm's terms, 0 on tokens to which the term does not apply."""

    def surrogate_weights(minibatch: Rollout[Array]) -> Array:
        return algorithm.weights(minibatch.mask)

    def weights_of(term: Term) -> Float[Array, "P G T"]:
        weigh = surrogate_weights if term.weights is None else term.weights
        weights = _for_each_minibatch(trained, minibatches, weigh)
        if term.tokens is None:
            return weights
        return jnp.where(term.tokens(advantage, _policy_logp(trained), trained.mask), weights, 0.0)

    return tuple(map(weights_of, algorithm.terms))


def _critic_data(
    critic: Critic | None, rollout: Rollout[Array], trained: Rollout[Array], token_rewards: Array | None, minibatches: int
) -> dict[str, Float[Array, "P G T"]]:
    """Return the critic's old values, its targets, and each token's weight in its loss; empty without a critic."""
    if critic is None:
        return {}
    values, weights = required(rollout.values, "rollout.values"), critic.weights
    rewards = required(token_rewards, "token_rewards")
    target = critic.target(rewards, values, rollout.mask, **_omit_none(bootstrap=rollout.bootstrap))
    return {
        "old_values": zero_outside(values, trained.mask),
        "value_target": zero_outside(target, trained.mask),
        "value_weights": _for_each_minibatch(trained, minibatches, lambda minibatch: weights(minibatch.mask)),
    }


@in_float32
def prepare(
    algorithm: Algorithm,
    rollout: Rollout[Array] | Rollout[np.ndarray],
    *,
    minibatches: int = 1,
    value_minibatches: int | None = None,
    progress: Float[Array, ""] | float | None = None,
    past: EarlierRewards | None = None,
) -> Batch[Array]:
    """Compute everything that depends on full groups or the full batch, once per rollout.

    Args:
        algorithm: the algorithm.
        rollout: P prompts with G responses each.
        minibatches: optimizer updates per rollout; P must be a multiple of this number. Each update uses the next P / minibatches
            prompts, and weights computed from these prompts alone.
        value_minibatches: the same for the critic's updates; None: as many as for the policy.
        progress: fraction of training completed, in [0, 1]; for algorithms that mix two advantages.
        past: rewards of the same prompts from earlier rollouts; they join the groups in which responses are
            compared, so G may be 1. Only for algorithms that compare responses.

    Returns:
        A `Batch` of B = P G rows; rows of one mini-batch are contiguous.

    Raises:
        ValueError: a required input is missing, shapes disagree, P is not a multiple of `minibatches` or
            `value_minibatches`, or `past` is passed but the algorithm does not compare responses.

    Example:
        >>> import jax.numpy as jnp
        >>> from rljax.algorithms import BY_NAME, Rollout, prepare
        >>> rollout = Rollout(
        ...     mask=jnp.ones((1, 2, 3), bool), behaviour_logp=jnp.zeros((1, 2, 3)), rewards=jnp.array([[1.0, 0.0]])
        ... )
        >>> prepare(BY_NAME["dr_grpo"](max_length=4), rollout).advantage[:, 0].tolist()
        [0.5, -0.5]
    """
    _check_rollout(algorithm, rollout)
    _check_credit(algorithm, progress, past)
    prompts, group, length = rollout.mask.shape
    value_minibatches = minibatches if value_minibatches is None else value_minibatches
    _check_minibatches(prompts, minibatches=minibatches, value_minibatches=value_minibatches)
    rollout = _drop_abstentions(rollout)
    trained = rollout._replace(mask=_select_trained_tokens(algorithm, rollout))
    policy_logp = _policy_logp(rollout)
    progress = None if progress is None else jnp.asarray(progress, policy_logp.dtype)
    rewards, kl_rewards = _shape_rewards(algorithm, rollout, policy_logp)
    token_rewards = _token_rewards(algorithm, rewards, kl_rewards, rollout)
    compared_rewards = _add_kl_rewards(rewards, kl_rewards)
    credit = _compute_credit(algorithm, rollout, compared_rewards, token_rewards, progress=progress, past=past)
    advantage = _advantage(algorithm, rollout, trained, credit)
    batch = Batch(
        mask=trained.mask,
        advantage=advantage,
        weights=_surrogate_weights(algorithm, trained, policy_logp, minibatches),
        old_logp=policy_logp
        if algorithm.denominator is None
        else algorithm.denominator(policy_logp, rollout.behaviour_logp, rollout.mask),
        policy_logp=policy_logp,
        behaviour_logp=zero_outside(rollout.behaviour_logp, rollout.mask),
        ref_logp=None if rollout.ref_logp is None else zero_outside(rollout.ref_logp, rollout.mask),
        term_weights=_term_weights(algorithm, trained, advantage, minibatches),
        token_share=_for_each_minibatch(trained, minibatches, lambda minibatch: token_mean(minibatch.mask)),
        correction_cut=None
        if algorithm.correction is None
        else algorithm.correction.cut(policy_logp, trained.behaviour_logp, trained.mask),
        **_critic_data(algorithm.critic, rollout, trained, token_rewards, value_minibatches),
    )
    return jax.lax.stop_gradient(jax.tree.map(lambda x: x.reshape(prompts * group, length), batch))
