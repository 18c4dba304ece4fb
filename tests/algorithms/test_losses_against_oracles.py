"""Every algorithm's losses and their gradients, checked against the oracles in `rljax.testing`."""

from math import inf

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.algorithms import BY_NAME, Rollout, loss, prepare, value_loss
from rljax.testing.example import Example
from rljax.testing.oracles import OBJECTIVES, OPTIONS, _overlong, _vapo_lambda
from rljax.testing.value_oracles import VALUE_LOSSES

P, G, T = 3, 4, 6


def make_data() -> Example:
    rng = np.random.default_rng(3)
    lengths = np.array([[6, 2, 4, 1], [3, 5, 6, 2], [4, 1, 3, 6]])
    mask = np.arange(T) < lengths[..., None]

    def sample_normal():
        return rng.normal(size=(P, G, T))

    old = -np.abs(sample_normal()) - 0.2
    return Example(
        mask=mask,
        old_logp=old,
        sampled_logp=old + 0.2 * np.random.default_rng(7).normal(size=(P, G, T)),
        logp=old + 0.4 * sample_normal(),
        ref_logp=old + 0.3 * sample_normal(),
        rewards=np.array([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]),
        values=sample_normal(),
        new_values=sample_normal(),
        entropy=np.abs(sample_normal()),
        behaviour_entropy=np.abs(sample_normal()),
        teacher_logp=old + 0.5 * np.random.default_rng(4).normal(size=(P, G, T)),
        teacher_divergence=np.random.default_rng(5).random((P, G, T)),
        square_sum=np.random.default_rng(6).uniform(0.1, 1.0, (P, G, T)),
        greedy_rewards=np.array([1.0, 0.0, 0.5]),
        form=np.array([[0.0, 0.5, 0.25, 1.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.5]]),
        step_rewards=sample_normal(),
        step_end=mask & (rng.random((P, G, T)) < 0.5),
    )


D = make_data()


def numerical_gradient(objective, example, x, step=1e-6):
    """Return an objective's gradient by central differences; the stop-gradient copy of `x` stays fixed."""
    gradient = np.zeros_like(x)
    for index in zip(*np.nonzero(example.mask), strict=True):
        values = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            values.append(objective(example, moved, x))
        gradient[index] = (values[0] - values[1]) / (2 * step)
    return gradient


def nan_outside_mask(x):
    return np.where(D.mask, x, np.nan)


def flatten(x):
    return jnp.asarray(x.reshape(P * G, T))


def prepare_batch(name):
    rollout = Rollout(
        mask=D.mask,
        behaviour_logp=nan_outside_mask(D.sampled_logp),
        policy_logp=nan_outside_mask(D.old_logp),
        rewards=D.rewards,
        ref_logp=nan_outside_mask(D.ref_logp),
        values=nan_outside_mask(D.values),
        step_rewards=np.where(D.step_end, D.step_rewards, inf),
        step_end=D.step_end,
        behaviour_entropy=nan_outside_mask(D.behaviour_entropy),
        teacher_logp=nan_outside_mask(D.teacher_logp),
        square_sum=nan_outside_mask(D.square_sum),
        greedy_rewards=D.greedy_rewards,
        reward_parts={"answer": D.rewards, "form": D.form},
    )
    algorithm = BY_NAME[name](**OPTIONS.get(name, {}))
    return algorithm, jax.jit(lambda rollout: prepare(algorithm, rollout, progress=0.25))(rollout)


def test_every_algorithm_has_an_oracle():
    assert list(OBJECTIVES) == sorted(OBJECTIVES) == list(BY_NAME)
    assert set(VALUE_LOSSES) == {name for name, factory in BY_NAME.items() if factory().critic is not None}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", BY_NAME)
def test_loss_and_gradient(name):
    algorithm, batch = prepare_batch(name)
    objective = OBJECTIVES[name]
    others = {"entropy": flatten(D.entropy), "teacher_divergence": flatten(nan_outside_mask(D.teacher_divergence))}
    descend = jax.jit(jax.value_and_grad(lambda logp, batch: loss(algorithm, logp, batch, **others)[0]))
    value, gradient = descend(flatten(nan_outside_mask(D.logp)), batch)
    np.testing.assert_allclose(value, -objective(D, D.logp, D.logp), rtol=1e-12)
    np.testing.assert_allclose(gradient.reshape(P, G, T), -numerical_gradient(objective, D, D.logp), rtol=1e-6, atol=1e-9)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", VALUE_LOSSES)
def test_value_loss_and_gradient(name):
    algorithm, batch = prepare_batch(name)
    objective = VALUE_LOSSES[name]
    descend = jax.jit(jax.value_and_grad(lambda values, batch: value_loss(algorithm, values, batch)[0]))
    value, gradient = descend(flatten(nan_outside_mask(D.new_values)), batch)
    np.testing.assert_allclose(value, objective(D, D.new_values, D.new_values), rtol=1e-12)
    np.testing.assert_allclose(
        gradient.reshape(P, G, T), numerical_gradient(objective, D, D.new_values), rtol=1e-6, atol=1e-9
    )


def test_example_reaches_every_branch():
    """Otherwise, an oracle and a loss could agree because neither ever clips."""
    ratios = np.exp(D.logp - D.old_logp)[D.mask]
    assert (ratios < 0.8).any()
    assert (ratios > 1.5).any()
    assert ((ratios > 1.2) & (ratios < 1.28)).any()
    probability_changes = np.abs(np.exp(D.logp) - np.exp(D.old_logp))[D.mask]
    assert (probability_changes > 0.1).any()
    assert (probability_changes < 0.1).any()
    drifts = [
        np.mean((D.sampled_logp - D.logp)[row][D.mask[row]]) for row in D.rows if D.rewards[row] < D.rewards[row[0]].mean()
    ]
    assert any(drift > 0.05 for drift in drifts)
    assert any(drift < 0.05 for drift in drifts)
    lambdas = [_vapo_lambda(D, p, i, 0.5) for p, i in D.rows]
    assert min(lambdas) == 0
    assert max(lambdas) > 0.5
    assert {_overlong(n) for n in D.lengths.ravel()} == {0.0, -1 / 3, -2 / 3, -1.0}
    moved = np.abs(D.new_values - D.values)[D.mask]
    assert (moved < 0.4).any()
    assert (moved > 0.4).any()
    assert D.step_end.sum((1, 2)).min() > 1
