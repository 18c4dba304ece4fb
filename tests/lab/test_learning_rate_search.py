"""Tuned learning rates, fallible verifiers, and worlds with responses of different lengths."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab import learning_rate_search
from lab.judges import fallible, signed
from lab.learning_rate_search import measure_tuned, tune
from lab.tabular_training import Setting, measure
from lab.worlds import chains, codes, exact, leaning, wanderer, wandering
from rljax.algorithms import rloo

SMALL = codes(contexts=2, length=2, tokens=2)


def make_candidates():
    """Return two candidate settings: one that learns nothing, and one that learns."""
    learning = Setting(SMALL, leaning(SMALL, lean=-1.0), rloo(), steps=20, points=2)
    return learning._replace(algorithm=rloo()._replace(advantage=lambda rewards: 0.0 * rewards)), learning


@pytest.mark.usefixtures("standard_promotion")
def test_an_arm_is_measured_at_its_best_rate_and_candidate(monkeypatch):
    nothing, learning = make_candidates()
    monkeypatch.setattr(learning_rate_search, "TUNING_SEEDS", [1])
    metrics = measure_tuned([nothing, learning], [5, 6], number="success", rates=(1e-6, 0.2, 1e-5))
    again = measure(learning._replace(learning_rate=0.2), [5, 6])
    np.testing.assert_array_equal(metrics["curve"], again["curve"])
    assert metrics["learning_rate"].tolist() == pytest.approx([0.2, 0.2])
    assert metrics["candidate"].tolist() == [1, 1]


def test_an_invalid_search_is_refused():
    setting = make_candidates()[1]
    with pytest.raises(ValueError, match="number must be area or success, got 'speed'"):
        tune([setting], number="speed")
    with pytest.raises(ValueError, match="got 0 settings, 4 rates and 8 seeds"):
        tune([])


def test_the_seeds_of_the_search_differ_from_those_of_claims():
    assert min(learning_rate_search.TUNING_SEEDS) >= 1000


def test_a_fallible_verifier_has_the_requested_error_rate():
    truth = jnp.tile(jnp.array([[1.0, 0.0]]), (5000, 1))
    verdicts = np.asarray(fallible(0.1)(jax.random.key(0), truth))
    np.testing.assert_allclose(np.abs(verdicts - truth).mean(0), [0.1, 0.1], atol=0.02)
    assert set(np.unique(verdicts)) == {0.0, 1.0}
    np.testing.assert_array_equal(signed(fallible(0.1))(jax.random.key(0), truth), 2 * verdicts - 1)


def walk(world, state, tokens):
    """Return the state after some tokens, and the number of tokens before the end."""
    for count, token in enumerate(tokens):
        if world.ends[state]:
            return state, count
        state = world.next_state[state, token]
    return state, len(tokens)


def test_a_chain_is_right_if_every_token_is_right():
    world = chains((2, 3), tokens=2)
    for start, length in zip(world.start, (2, 3), strict=True):
        for tokens in itertools.product(range(2), repeat=3):
            last, count = walk(world, start, tokens)
            assert count == length
            assert world.reward[last] == (not any(tokens[:length]))
    codes_alone, even = codes(contexts=1, length=3, tokens=2), chains((3,), tokens=2)
    table = jax.random.normal(jax.random.key(0), (3, 2))
    np.testing.assert_allclose(exact(even, table).success, exact(codes_alone, table).success, rtol=1e-6)


def test_the_policy_cannot_see_whether_a_chain_is_right_so_far():
    world = chains((2, 3), tokens=2)
    for start in world.start:
        right, wrong = world.next_state[start]
        assert right != wrong
        assert world.row[right] == world.row[wrong] != world.row[start]


def test_wandering_rewards_the_needed_steps_within_the_budget():
    world = wandering(contexts=2, needed=2, budget=5)
    for start in world.start:
        for tokens in itertools.product(range(3), repeat=5):
            last, _ = walk(world, start, tokens)
            steps = [token for token in tokens if token != 1]
            assert world.reward[last] == (steps[:3] == [0, 0, 0])
            assert world.ends[last] == (steps[:3] == [0, 0, 0] or 2 in steps[:3])
    even = wanderer(world, wander=2.0, answer=-1.0, spread=0.0)(jax.random.key(0))
    np.testing.assert_allclose(even[0], [0.0, 2.0, -1.0])
