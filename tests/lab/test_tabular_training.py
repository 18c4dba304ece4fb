"""The tabular trainer: exact values, samples and gradients, checked against enumeration, probabilities and theory."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab.tabular_training import (
    Setting,
    _begin,
    _optimizer,
    _sample,
    _update,
    measure,
    rollout_gradient,
    sample_states,
    train_seeds,
    unit_steps,
)
from lab.worlds import codes, exact, leaning, log_probabilities, pass_rate_at, stopping, undecided
from rljax.algorithms import BY_NAME, dapo, grpo, rloo
from rljax.algorithms.value_head import HEADS

SMALL = codes(contexts=2, length=3, tokens=2)


def enumerate_responses(world, logits_by_row):
    """Yield every response in every context, with its probability, last state, length and entropy, by explicit loops."""
    logits = np.asarray(logits_by_row, np.float64)[world.row]
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    for context, start in enumerate(world.start):
        for tokens in itertools.product(range(p.shape[1]), repeat=world.horizon):
            state, probability, length, entropy = start, 1.0, 0, 0.0
            for token in tokens:
                if world.ends[state]:
                    probability *= 1 / p.shape[1]  # all continuations after the end are enumerated; they are equally likely
                    continue
                probability *= p[state, token]
                entropy -= (p[state] * np.log(p[state])).sum()
                length += 1
                state = world.next_state[state, token]
            yield context, probability, state, length, entropy


@pytest.mark.parametrize("world", [SMALL, stopping(contexts=2, horizon=4), stopping(contexts=2, horizon=6, budget=3)])
def test_exact_values_match_an_enumeration_of_all_responses(world):
    table = jax.random.normal(jax.random.key(1), (world.rows, world.next_state.shape[1]))
    found = exact(world, table)
    responses = list(enumerate_responses(world, table))
    right = [(c, p, n) for c, p, state, n, _ in responses if world.reward[state] > 0]
    wrong = [(c, p, n) for c, p, state, n, _ in responses if world.reward[state] <= 0]
    success = [sum(p for c, p, _ in right if c == context) for context in range(2)]
    np.testing.assert_allclose(found.success, success, rtol=1e-5)
    np.testing.assert_allclose(found.length, sum(p * n for _, p, _, n, _ in responses) / 2, rtol=1e-5)
    np.testing.assert_allclose(found.right_length, sum(p * n for _, p, n in right) / sum(success), rtol=1e-5)
    np.testing.assert_allclose(found.wrong_length, sum(p * n for _, p, n in wrong) / (2 - sum(success)), rtol=1e-5)
    tokens = sum(p * n for _, p, _, n, _ in responses)
    np.testing.assert_allclose(found.entropy, sum(p * h for _, p, _, _, h in responses) / tokens, rtol=1e-5)


def test_samples_follow_the_policy():
    table = jax.random.normal(jax.random.key(2), (SMALL.rows, 2))
    first = jnp.broadcast_to(jnp.asarray(SMALL.start)[:, None], (2, 4000))
    uniform = jax.random.uniform(jax.random.key(3), (SMALL.horizon, 2, 4000))
    _, _, mask, last = sample_states(SMALL, log_probabilities(SMALL, table), first, uniform)
    assert bool(mask.all())
    rate = (SMALL.reward[np.asarray(last)] > 0).mean(-1)
    np.testing.assert_allclose(rate, exact(SMALL, table).success, atol=0.03)


def test_mean_rloo_gradient_is_the_pass_rate_gradient():
    table = jax.random.normal(jax.random.key(4), (SMALL.rows, 2))
    setting = Setting(SMALL, lambda key: table, rloo(), prompts=4, group=4)
    keys = jax.random.split(jax.random.key(5), 4000)
    mean = jax.jit(lambda keys: jax.vmap(partial(rollout_gradient, setting, table))(keys).mean(0))(keys)
    expected = -jax.grad(lambda table: exact(SMALL, table).success.mean())(table)
    np.testing.assert_allclose(mean, expected, atol=0.02 * float(jnp.abs(expected).max()) + 0.002)


def with_head(algorithm, name):
    """Return the algorithm with a different value head."""
    return algorithm._replace(critic=algorithm.critic._replace(head=HEADS[name]()))


CASES = {
    "critic": {"algorithm": BY_NAME["vc_ppo"](), "value_steps": 5},
    "distribution": {"algorithm": with_head(BY_NAME["vc_ppo"](), "two_hot"), "value_steps": 5},
    "entropy": {"algorithm": BY_NAME["forking_tokens"](), "tries": 2},
    "reference": {"algorithm": grpo(), "passes": 2, "minibatches": 2},
    "past": {"algorithm": grpo(beta=0.0), "past": 4, "group": 2},
    "steps": {"algorithm": rloo(), "optimizer": unit_steps()},
    "old": {"algorithm": BY_NAME["gepo"](), "delay": 3},
    "engine": {"algorithm": rloo(), "sampler": lambda key, logp: logp + 0.1 * jax.random.normal(key, logp.shape)},
    "noise": {"algorithm": rloo(), "judge": lambda key, rewards: rewards + 0.1 * jax.random.normal(key, rewards.shape)},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("standard_promotion")
def test_training_with_each_option_raises_the_pass_rate(case):
    setting = Setting(SMALL, leaning(SMALL, lean=0.0), steps=60, points=2, learning_rate=0.1, **CASES[case])
    curves, _ = train_seeds(setting, [0, 1])
    assert curves.success.shape == (2, 3, 2)
    assert np.all(np.asarray(curves.success[:, -1].mean(-1) > curves.success[:, 0].mean(-1)))


@pytest.mark.usefixtures("standard_promotion")
def test_results_of_a_seed_do_not_depend_on_other_seeds():
    setting = Setting(SMALL, leaning(SMALL), rloo(), steps=20, points=2)
    both, alone = measure(setting, [3, 4]), measure(setting, [4])
    for name, values in both.items():
        np.testing.assert_allclose(values[1:], alone[name], rtol=1e-4, err_msg=name)


def test_the_policy_cannot_see_whether_its_prefix_is_right():
    starts = SMALL.start
    next_states = SMALL.next_state[starts[0]]
    assert SMALL.row[next_states[0]] == SMALL.row[next_states[1]]
    assert SMALL.row[starts[0]] != SMALL.row[starts[1]]


def test_a_response_over_budget_is_wrong():
    world = stopping(contexts=1, horizon=5, budget=2)
    continuing = jnp.zeros((world.rows, 2)).at[:, 1].set(50.0)
    found = exact(world, continuing)
    assert float(found.success[0]) == pytest.approx(0, abs=1e-6)
    assert float(found.length) == pytest.approx(2)


def test_first_value_is_refused_for_a_critic_with_several_outputs():
    setting = Setting(SMALL, leaning(SMALL), with_head(BY_NAME["vc_ppo"](), "two_hot"), steps=2, points=2, first_value=0.5)
    with pytest.raises(ValueError, match="first_value must be 0 for a critic with 21 outputs"):
        train_seeds(setting, [0])


def test_steps_must_be_a_multiple_of_points():
    with pytest.raises(ValueError, match="multiple of points, got 7 and 2"):
        train_seeds(Setting(SMALL, leaning(SMALL), rloo(), steps=7, points=2), [0])


def test_pass_at_k_of_certain_and_impossible_contexts():
    assert float(pass_rate_at(jnp.array([1.0, 0.0]), 16)) == 0.5


def random_table(world, seed=6):
    return jax.random.normal(jax.random.key(seed), (world.rows, world.next_state.shape[1]))


def logp_of(world, table, sample):
    return log_probabilities(world, table)[sample.states, sample.tokens]


def step(setting, carry, key):
    """Sample a rollout and update on it; return the sample and the new carry."""
    sample = _sample(setting, carry, carry.tables.logits, key)
    progress = jnp.zeros((), jnp.float32)
    return sample, _update(setting, _optimizer(setting), carry, sample, train_policy=True, progress=progress)


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize("delay", [0, 2])
def test_delayed_rollouts_are_sampled_from_earlier_logits(delay):
    setting = Setting(SMALL, leaning(SMALL), rloo(), delay=delay, learning_rate=0.5)
    carry, tables = _begin(setting, random_table(SMALL)), []
    for index in range(5):
        tables.append(carry.tables.logits)
        sample, carry = step(setting, carry, jax.random.key(index))
        expected = logp_of(SMALL, tables[max(index - delay, 0)], sample)
        np.testing.assert_allclose(sample.rollout.behaviour_logp, expected, atol=1e-6)
    assert all(np.abs(one - two).max() > 0.01 for one, two in itertools.pairwise(tables))


@pytest.mark.usefixtures("standard_promotion")
def test_new_rewards_are_compared_with_past_ones():
    def setting_with_reward(reward):
        return Setting(
            SMALL,
            leaning(SMALL),
            grpo(beta=0.0),
            past=4,
            optimizer=unit_steps(),
            judge=lambda key, rewards: jnp.full_like(rewards, reward),
        )

    carry = _begin(setting_with_reward(1.0), random_table(SMALL))
    _, same = step(setting_with_reward(1.0), carry, jax.random.key(0))
    # All rewards are equal and there are no past rewards, so no advantage differs from 0.
    np.testing.assert_array_equal(same.tables.logits, carry.tables.logits)
    _, worse = step(setting_with_reward(0.0), same, jax.random.key(1))
    _, without_past = step(setting_with_reward(0.0), carry, jax.random.key(1))
    assert float(jnp.abs(worse.tables.logits - same.tables.logits).max()) > 1e-3
    np.testing.assert_array_equal(without_past.tables.logits, carry.tables.logits)


@pytest.mark.usefixtures("standard_promotion")
def test_dynamic_sampling_takes_mixed_groups_first():
    tried = Setting(SMALL, leaning(SMALL), dapo(), prompts=8, group=2, tries=4)
    at_once = tried._replace(prompts=32, tries=1)
    carry, key = _begin(tried, random_table(SMALL)), jax.random.key(7)

    def mixed(setting):
        return np.asarray(_sample(setting, carry, carry.tables.logits, key).rollout.rewards).std(-1) > 0

    kept, candidates = mixed(tried), mixed(at_once)
    assert 0 < candidates[:8].sum() < min(8, candidates.sum())  # the first 8 prompts do not have enough mixed groups
    assert kept.sum() == min(8, candidates.sum())
    assert sorted(kept, reverse=True) == list(kept)


@pytest.mark.usefixtures("standard_promotion")
def test_an_engine_samples_from_its_own_probabilities():
    tilt = jnp.array([[1.0, -1.0]])
    setting = Setting(SMALL, leaning(SMALL), rloo(), sampler=lambda key, logp: logp + tilt, prompts=200)
    carry = _begin(setting, random_table(SMALL))
    sample = _sample(setting, carry, carry.tables.logits, jax.random.key(8))
    engine = jax.nn.log_softmax(log_probabilities(SMALL, carry.tables.logits) + tilt)
    np.testing.assert_allclose(sample.rollout.behaviour_logp, engine[sample.states, sample.tokens], atol=1e-6)
    np.testing.assert_allclose(sample.rollout.policy_logp, logp_of(SMALL, carry.tables.logits, sample), atol=1e-6)
    rate = np.exp(engine)[sample.states, 0].mean()
    assert float((sample.tokens == 0).mean()) == pytest.approx(float(rate), abs=0.03)


@pytest.mark.usefixtures("standard_promotion")
def test_the_number_of_updates_is_minibatches_times_passes():
    once = Setting(SMALL, leaning(SMALL), dapo()._replace(keep_group=None), minibatches=2, learning_rate=0.1)
    carry = _begin(once, random_table(SMALL))
    for passes in (1, 3):
        _, after = step(once._replace(passes=passes), carry, jax.random.key(9))
        counts = [int(leaf) for leaf in jax.tree.leaves(after.optimizer) if leaf.dtype == jnp.int32]
        assert counts == [2 * passes]


def test_a_perfect_policy_can_have_entropy():
    world = codes(contexts=1, length=2, tokens=4, right_tokens=2)
    table = jnp.tile(jnp.array([30.0, 30.0, 0.0, 0.0]), (world.rows, 1))
    assert float(exact(world, table).success[0]) == pytest.approx(1)
    assert float(exact(world, table).entropy) == pytest.approx(np.log(2), rel=1e-4)


def test_undecided_policy_has_equal_right_and_wrong_lengths():
    world = stopping(contexts=8, horizon=64, shared=True)
    found = exact(world, undecided(8)(jax.random.key(0)))
    assert float(found.right_length) == pytest.approx(13, abs=0.3)
    assert float(found.wrong_length) == pytest.approx(float(found.right_length), rel=1e-4)
    assert float(found.success.std()) > 0.1
