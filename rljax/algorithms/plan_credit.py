"""Separate credit for a plan and for the answer that it leads to, from rewards of steps or from several answers to each plan."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.lazy import lazy_names
from rljax.ops.arrays import Mask, Number, check_mask, check_nonnegative, check_steps, in_float32, ratio_or_zero
from rljax.ops.masked import masked_centered

__getattr__ = lazy_names(__name__, renamed={"plan_then_answer": "nested_group_advantage"})[0]


@in_float32
def plan_and_answer(
    step_rewards: Float[Array, "*P G T"], step_end: Mask, *, plan_weight: Number = 1.0
) -> Float[Array, "*P G T"]:
    """Advantage from step rewards, in which the tokens of a plan get their own credit in addition to the answer's.

    The last step of a response is its answer; all earlier steps are its plan.

    ::

        A_it = (a_i - mean a) + w 1[t ≤ end of i's plan] (p_i - mean p)
        a_i = reward of i's last step        p_i = mean reward of i's other steps

    With w = 0, this is `rljax.ops.group.group_centered` of the answers' rewards. Neither credit depends on the number of steps, so
    a longer plan earns no more.

    Args:
        step_rewards: reward of each step, at the token where the step ends, `[..., G, T]`; other entries are ignored.
        step_end: tokens at which a step ends, bool or 0/1, `[..., G, T]`. A response may have any number of steps, even none.
        plan_weight: w, weight of the plan's credit, not negative.

    Returns:
        `[..., G, T]`, in the rewards' unit, on all tokens of a response, including those after its last step. The answers'
        mean is over the responses with at least one step, the plans' mean over the responses with two or more. Each credit is
        exactly 0 for responses outside its mean, and for all responses if the rewards in its mean are identical.

    Raises:
        ValueError: integer rewards, groups of fewer than 2 responses, mismatched shapes, or a negative weight.

    Example:
        >>> import jax.numpy as jnp
        >>> rewards, ends = jnp.array([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]), jnp.array([[1, 0, 1], [1, 1, 0]])
        >>> plan_and_answer(rewards, ends, plan_weight=1.0).tolist()
        [[1.0, 0.5, 0.5], [-1.0, -0.5, -0.5]]

    Source:
        Ours, not from a paper: a design document requires credit for the subtasks of a reasoning task, but has no equation for it.
        Published alternative: `rljax.ops.group.process_normalized`.
    """
    check_steps(step_rewards, step_end)
    check_nonnegative(plan_weight=plan_weight)
    end = step_end.astype(bool)
    ends_ahead = jax.lax.cumsum(end.astype(jnp.int32), step_rewards.ndim - 1, reverse=True)
    last, earlier = end & (ends_ahead == 1), end & (ends_ahead > 1)
    answer = jnp.where(last, step_rewards, 0.0).sum(-1)
    plan_steps = earlier.sum(-1)
    plan = ratio_or_zero(jnp.where(earlier, step_rewards, 0.0).sum(-1), plan_steps.astype(step_rewards.dtype))
    answer_credit, plan_credit = masked_centered(answer, end.any(-1)), masked_centered(plan, plan_steps > 0)
    return answer_credit[..., None] + plan_weight * jnp.where(ends_ahead > 1, plan_credit[..., None], 0.0)


def in_plan(step_end: Mask) -> Mask:
    """Return which tokens of a response belong to its plan: all up to the end of the second-to-last step.

    Example:
        >>> in_plan(jnp.array([[0, 1, 0, 1], [0, 0, 0, 1]])).tolist()
        [[True, True, False, False], [False, False, False, False]]
    """
    ends = step_end.astype(jnp.int32)
    return jax.lax.cumsum(ends, ends.ndim - 1, reverse=True) > 1


def nested_group_advantage(
    rewards: Float[Array, "*P G"],
    step_end: Mask,
    *,
    plans: int,
    advantage: Callable[..., Float[Array, "..."]],
    valid: Mask | None = None,
) -> Float[Array, "*P G T"]:
    """Advantage in nested groups: a plan is compared with the prompt's other plans, an answer with the others to the same plan.

    The G responses are N plans with M = G / N answers each; response i = k M + j has plan k. ::

        A_it = f(r̄_1, ..., r̄_N)_k              for the tokens of the plan,    r̄_k = mean_j r_kj
        A_it = f(r_k1, ..., r_kM)_j              for the tokens of the answer

    Args:
        rewards: r, one number per response, `[..., G]`.
        step_end: the ends of the plan and of the answer, bool or 0/1, `[..., G, T]`; a response with one end has no plan.
        plans: N, number of plans per prompt, at least 2. It must divide G and leave at least 2 answers per plan.
        advantage: f, such as `rljax.ops.group.group_centered`.
        valid: False for a response to leave out, `[..., G]`.

    Returns:
        `[..., G, T]`, in the unit of f.

    Raises:
        ValueError: the responses cannot be divided equally among the plans, or the shapes do not match.

    Example:
        >>> from rljax.ops.group import group_centered
        >>> rewards, ends = jnp.array([1.0, 0.0, 0.0, 0.0]), jnp.tile(jnp.array([1, 0, 1]), (4, 1))
        >>> nested_group_advantage(rewards, ends, plans=2, advantage=group_centered).tolist()
        [[0.25, 0.5, 0.5], [0.25, -0.5, -0.5], [-0.25, 0.0, 0.0], [-0.25, 0.0, 0.0]]

    Source:
        Ours, not from a paper: a design document requires hierarchical policies but has no equation for them. With M answers to
        each plan, r̄_k is the Monte Carlo value of plan k, so the answers' baseline is that of VinePPO, arXiv:2410.01679, at a
        single state.
    """
    check_mask(step_end=step_end)
    size = rewards.shape[-1]
    answers = size // plans
    if plans < 2 or answers < 2 or plans * answers != size:
        raise ValueError(
            f"{size} responses per prompt cannot be divided into plans={plans}: plans must be at least 2, and each must get "
            "the same number of answers, at least 2"
        )
    if step_end.shape[:-1] != rewards.shape:
        raise ValueError(f"step_end must have the shape {[*rewards.shape, 'T']}, got {list(step_end.shape)}")
    member = jnp.ones(rewards.shape, bool) if valid is None else valid.astype(bool)
    blocks, block_member = (array.reshape(*rewards.shape[:-1], plans, answers) for array in (rewards, member))
    valid_answers = block_member.sum(-1).astype(rewards.dtype)
    value = ratio_or_zero(jnp.where(block_member, blocks, 0.0).sum(-1), valid_answers)
    plan_advantage = jnp.repeat(advantage(value, valid=valid_answers > 0), answers, axis=-1)
    answer_advantage = advantage(blocks, valid=block_member).reshape(rewards.shape)
    return jnp.where(in_plan(step_end), plan_advantage[..., None], answer_advantage[..., None])
