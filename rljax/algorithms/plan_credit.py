"""Separate credit for a plan and for the answer that it leads to."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.arrays import Mask, Number, check_nonnegative, check_steps, in_float32, ratio_or_zero
from rljax.ops.masked import masked_centered


@in_float32
def plan_and_answer(
    step_rewards: Float[Array, "*P G T"], step_end: Mask, *, plan_weight: Number = 1.0
) -> Float[Array, "*P G T"]:
    """Advantage in which the plan's tokens get their own credit in addition to the answer's.

    The last step of a response is its answer; all earlier steps are its plan.

    ::

        A_it = (a_i - mean a) + w 1[t ≤ end of i's plan] (p_i - mean p)
        a_i = reward of i's last step        p_i = mean reward of i's other steps

    w = 0 gives `rljax.ops.group.group_centered` of the answers' rewards. Neither credit changes with the number of steps, so a
    longer plan earns no more.

    Args:
        step_rewards: reward of a step, at the token where it ends, `[..., G, T]`; other slots may contain anything.
        step_end: where steps end, bool or 0/1, `[..., G, T]`. A response may have any number of steps, even none.
        plan_weight: w, not negative.

    Returns:
        `[..., G, T]`, in the rewards' unit, on all tokens of a response, including those after its last step. The answers'
        mean is over the responses with at least one step, the plans' mean over those with two or more; other responses get no
        such credit, and neither do responses whose rewards are identical.

    Raises:
        ValueError: integer rewards, groups of fewer than 2, mismatched shapes, or a negative weight.

    Example:
        >>> import jax.numpy as jnp
        >>> rewards, ends = jnp.array([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]), jnp.array([[1, 0, 1], [1, 1, 0]])
        >>> plan_and_answer(rewards, ends, plan_weight=1.0).tolist()
        [[1.0, 0.5, 0.5], [-1.0, -0.5, -0.5]]

    Source:
        Ours, not from a paper: a design document asks for credit for the subtasks of a reasoning task, but has no equation for it.
        Published alternative: `rljax.ops.group.process_normalized`.
    """
    check_steps(step_rewards, step_end)
    check_nonnegative(plan_weight=plan_weight)
    end = step_end.astype(bool)
    ends_ahead = jax.lax.cumsum(end.astype(jnp.int32), step_rewards.ndim - 1, reverse=True)
    last, earlier = end & (ends_ahead == 1), end & (ends_ahead > 1)
    answer = jnp.where(last, step_rewards, 0.0).sum(-1)
    number = earlier.sum(-1)
    plan = ratio_or_zero(jnp.where(earlier, step_rewards, 0.0).sum(-1), number.astype(step_rewards.dtype))
    of_answer, of_plan = masked_centered(answer, end.any(-1)), masked_centered(plan, number > 0)
    return of_answer[..., None] + plan_weight * jnp.where(ends_ahead > 1, of_plan[..., None], 0.0)
