"""Direct preference losses of a tabular policy: pairs, scores, and training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab.preference_pairs import PairSetting, measure_pairs, sample_pairs, score_pairs
from lab.worlds import codes, leaning, stopping
from rljax.ops.direct_preference import dpo_loss

WORLD = stopping(contexts=2, horizon=3)


def prefer_shorter(key, one, other):
    """Prefer the shorter response, or `other` if both have the same length."""
    del key
    return one.length < other.length


def dpo(pairs):
    """Compute the DPO loss with β = 1."""
    return dpo_loss(pairs.chosen, pairs.rejected, pairs.ref_chosen, pairs.ref_rejected, beta=1.0)


SETTING = PairSetting(WORLD, leaning(WORLD, lean=-1.0), dpo, prefer_shorter, pairs=40, steps=40, points=2)


def test_the_preferred_response_of_a_pair_comes_first():
    chosen, rejected = sample_pairs(SETTING, leaning(WORLD)(jax.random.key(0)), jax.random.key(1))
    assert chosen.tokens.shape == (40, WORLD.horizon)
    assert bool((chosen.length <= rejected.length).all())
    assert bool((chosen.length < rejected.length).any())
    np.testing.assert_array_equal(chosen.states[:, 0], np.tile(WORLD.start, 20))
    for responses in (chosen, rejected):  # states, tokens and masks belong to the same response
        state = np.asarray(responses.states[:, 0])
        for position in range(WORLD.horizon):
            alive = np.asarray(responses.mask[:, position])
            assert (alive == ~WORLD.ends[state]).all()
            state = np.where(alive, WORLD.next_state[state, np.asarray(responses.tokens[:, position])], state)
        np.testing.assert_array_equal(responses.reward, WORLD.reward[state])


def test_scores_are_sums_over_the_tokens():
    policy, reference = (leaning(WORLD)(jax.random.key(seed)) for seed in (2, 3))
    pairs = sample_pairs(SETTING, reference, jax.random.key(4))
    found = score_pairs(WORLD, policy, reference, pairs)
    for scores, logits, responses in (
        (found.chosen, policy, pairs[0]),
        (found.rejected, policy, pairs[1]),
        (found.ref_chosen, reference, pairs[0]),
        (found.ref_rejected, reference, pairs[1]),
    ):
        logp = np.asarray(jax.nn.log_softmax(logits))[WORLD.row]
        for row in range(5):
            steps = zip(responses.states[row], responses.tokens[row], responses.mask[row], strict=True)
            assert float(scores[row]) == pytest.approx(sum(logp[s, t] for s, t, counts in steps if counts), rel=1e-5)
    same = score_pairs(WORLD, reference, reference, pairs)
    np.testing.assert_array_equal(same.lead, jnp.zeros(40))
    assert same.chosen_length.tolist() == pairs[0].length.tolist()


@pytest.mark.usefixtures("standard_promotion")
def test_training_on_pairs_learns_the_preference():
    metrics = measure_pairs(SETTING, [0, 1])
    assert (metrics["length"] < metrics["first_length"] - 0.2).all()
    assert (metrics["lead"] > 0.5).all()
    np.testing.assert_allclose(metrics["lead"], metrics["chosen"] - metrics["rejected"], rtol=1e-4)
    assert (metrics["lowest_rejected"] <= metrics["rejected"]).all()
    assert metrics["curve"].shape == (2, 3)
    np.testing.assert_allclose(metrics["curve"][:, 0], metrics["first_success"], rtol=1e-6)
    np.testing.assert_allclose(metrics["curve"][:, -1], metrics["success"], rtol=1e-6)


def test_pair_steps_must_be_a_multiple_of_points():
    world = codes(contexts=1, length=1, tokens=2)
    setting = PairSetting(world, leaning(world), dpo, prefer_shorter, steps=7, points=2)
    with pytest.raises(ValueError, match="multiple of points, got 7 and 2"):
        measure_pairs(setting, [0])
