"""Plan-and-answer credit, checked against a loop; it must not depend on the plan's length."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.algorithms.plan_credit import plan_and_answer
from rljax.ops.group import group_centered

G, T = 4, 5
rewards = hnp.arrays(np.float64, (2, G, T), elements=st.integers(-8, 8).map(lambda k: k / 4))
ends = hnp.arrays(bool, (2, G, T))
compiled = jax.jit(plan_and_answer)


def center_members(values, members):
    """Return each member's value minus the members' mean, and 0 for the other responses."""
    member_values = [values[i] for i in members]
    return [values[i] - sum(member_values) / len(member_values) if i in members else 0.0 for i in range(G)]


def loop_plan_and_answer(step_rewards, step_end, weight):
    answers, plans, plan_end, result = [0.0] * G, [0.0] * G, [-1] * G, np.zeros((G, T))
    for i in range(G):
        *earlier, last = [t for t in range(T) if step_end[i, t]] or [None]
        answers[i] = 0.0 if last is None else step_rewards[i, last]
        if earlier:
            plans[i] = sum(step_rewards[i, t] for t in earlier) / len(earlier)
            plan_end[i] = earlier[-1]
    answer_credit = center_members(answers, [i for i in range(G) if step_end[i].any()])
    plan_credit = center_members(plans, [i for i in range(G) if plan_end[i] >= 0])
    for i in range(G):
        for t in range(T):
            result[i, t] = answer_credit[i] + (weight * plan_credit[i] if t <= plan_end[i] else 0.0)
    return result


@given(rewards, ends, st.integers(0, 4).map(lambda k: k / 2))
def test_plan_and_answer_matches_the_loop(step_rewards, step_end, weight):
    with jax.enable_x64(True):
        nan_outside_steps = np.where(step_end, step_rewards, np.nan)
        actual = compiled(jnp.array(nan_outside_steps), jnp.array(step_end), plan_weight=weight)
    expected = [loop_plan_and_answer(step_rewards[p], step_end[p], weight) for p in range(2)]
    np.testing.assert_allclose(actual, expected, atol=1e-12)


def test_plan_weight_0_credits_only_the_answer():
    step_rewards = jnp.array(np.random.default_rng(0).normal(size=(3, G, T)), jnp.float32)
    step_end = jnp.ones((3, G, T), bool)
    answer = group_centered(step_rewards[..., -1])
    found = plan_and_answer(step_rewards, step_end, plan_weight=0.0)
    np.testing.assert_allclose(found, jnp.broadcast_to(answer[..., None], found.shape), atol=1e-6)


def test_longer_plan_gets_no_more_credit():
    short, long = jnp.array([[0, 1, 0, 0, 1], [0, 0, 0, 1, 1]]), jnp.array([[1, 1, 0, 0, 1], [1, 1, 1, 1, 1]])
    right = jnp.array([[1.0] * T, [0.0] * T])
    np.testing.assert_allclose(plan_and_answer(right, short)[:, 0], plan_and_answer(right, long)[:, 0])


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: plan_and_answer(x[:1], x[:1]), r"groups of at least 2 responses .* got \[1, 3\]"),
        (lambda x: plan_and_answer(x.astype(int), x), "step_rewards must be a floating-point array"),
        (lambda x: plan_and_answer(x, x[:, :2]), "step_end must have the shape of step_rewards"),
        (lambda x: plan_and_answer(x, x, plan_weight=-1.0), "plan_weight must not be negative"),
    ],
)
def test_invalid_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(jnp.ones((2, 3)))
