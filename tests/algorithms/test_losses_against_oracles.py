"""Every algorithm's losses, checked against the oracles of `rljax.testing`, in value and gradient."""

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


def slope(objective, example, x, step=1e-6):
    """Gradient of an objective by central differences; the copy under stop-gradient stays fixed."""
    gradient = np.zeros_like(x)
    for index in zip(*np.nonzero(example.mask), strict=True):
        around = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            around.append(objective(example, moved, x))
        gradient[index] = (around[0] - around[1]) / (2 * step)
    return gradient


def dirty(x):
    return np.where(D.mask, x, np.nan)


def rows(x):
    return jnp.asarray(x.reshape(P * G, T))


def prepare_batch(name):
    rollout = Rollout(
        mask=D.mask,
        behaviour_logp=dirty(D.sampled_logp),
        policy_logp=dirty(D.old_logp),
        rewards=D.rewards,
        ref_logp=dirty(D.ref_logp),
        values=dirty(D.values),
        step_rewards=np.where(D.step_end, D.step_rewards, inf),
        step_end=D.step_end,
        behaviour_entropy=dirty(D.behaviour_entropy),
        teacher_logp=dirty(D.teacher_logp),
        square_sum=dirty(D.square_sum),
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
    others = {"entropy": rows(D.entropy), "teacher_divergence": rows(dirty(D.teacher_divergence))}
    descend = jax.jit(jax.value_and_grad(lambda logp, batch: loss(algorithm, logp, batch, **others)[0]))
    value, gradient = descend(rows(dirty(D.logp)), batch)
    np.testing.assert_allclose(value, -objective(D, D.logp, D.logp), rtol=1e-12)
    np.testing.assert_allclose(gradient.reshape(P, G, T), -slope(objective, D, D.logp), rtol=1e-6, atol=1e-9)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", VALUE_LOSSES)
def test_value_loss_and_gradient(name):
    algorithm, batch = prepare_batch(name)
    objective = VALUE_LOSSES[name]
    descend = jax.jit(jax.value_and_grad(lambda values, batch: value_loss(algorithm, values, batch)[0]))
    value, gradient = descend(rows(dirty(D.new_values)), batch)
    np.testing.assert_allclose(value, objective(D, D.new_values, D.new_values), rtol=1e-12)
    np.testing.assert_allclose(gradient.reshape(P, G, T), slope(objective, D, D.new_values), rtol=1e-6, atol=1e-9)


def test_the_data_reach_every_branch():
    """Otherwise an oracle and a loss could agree because neither ever clips."""
    ratios = np.exp(D.logp - D.old_logp)[D.mask]
    assert (ratios < 0.8).any()
    assert (ratios > 1.5).any()
    assert ((ratios > 1.2) & (ratios < 1.28)).any()
    apart = np.abs(np.exp(D.logp) - np.exp(D.old_logp))[D.mask]
    assert (apart > 0.1).any()
    assert (apart < 0.1).any()
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
