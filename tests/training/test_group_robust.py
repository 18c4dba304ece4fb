"""`--worst-kind`: the weights per problem kind, their effect on advantages and updates, and resumed runs."""

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from run_states import first_state, read_checkpoint
from shared_run import rows
from small_runs import STEPPED, even_length, stopping_after

import rljax
from rljax.algorithms import BY_NAME, Rollout, prepare
from rljax.errors import InputError
from rljax.options.group_robust import NAME, kind_losses, next_weights, with_kinds, with_weights
from rljax.training.interrupt import Interrupted

KINDS = STEPPED.replace(
    operands=(2, 3), max_prompt_tokens=8, train_problems=24, algorithm="dr_grpo", steps=4, worst_kind=0.5
)
"""A run on two kinds of problems: sums of two numbers and sums of three."""


def favor_three_operands(completions, operands):
    """A reward that gives sums of three numbers an extra 0.5, so that sums of two numbers score lower."""
    return [reward + 0.5 * (count == 3) for reward, count in zip(even_length(completions), operands, strict=True)]


def rollout(rewards, kinds, valid=None):
    rewards = np.asarray(rewards, np.float32)
    mask = np.ones((*rewards.shape, 2), bool)
    logp = np.full(mask.shape, -1.0, np.float32)
    return Rollout(mask, logp, rewards, kinds=np.asarray(kinds, np.int32), valid=valid)


def test_weights_match_the_paper():
    """The expected weights follow Algorithm 1 of arXiv:1911.08731: one group at a time, then normalized."""
    weights, losses = [0.2, 0.5, 0.3], [0.4, -1.0, 0.0]
    unnormalized = [q * np.exp(0.7 * loss) for q, loss in zip(weights, losses, strict=True)]
    expected = [q / sum(unnormalized) for q in unnormalized]
    found = next_weights(np.array(weights, np.float32), np.array(losses, np.float32), rate=0.7)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert next_weights(found, np.array([9e3, 0, 0], np.float32), rate=1.0).tolist() == [1.0, 0.0, 0.0]


def test_losses_of_kinds_are_relative_to_the_mean_of_judged_rewards():
    found = rollout(
        [[1.0, 0.0], [1.0, 1.0], [0.0, 5.0]], [0, 2, 0], valid=np.array([[True, True], [True, True], [True, False]])
    )
    np.testing.assert_allclose(kind_losses(found, 4), [3 / 5 - 1 / 3, 0.0, 3 / 5 - 1.0, 0.0], rtol=1e-6)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "dapo", "rloo"])
def test_weights_multiply_advantages(name):
    own, data = BY_NAME[name](), rollout([[1.0, 0.0], [3.0, 1.0], [0.0, 1.0]], [0, 1, 0])
    data = data._replace(ref_logp=data.behaviour_logp, truncated=np.zeros((3, 2), bool))
    weighted = with_kinds(own)
    assert with_kinds(own) == weighted, (
        "`with_kinds` must return equal algorithms, or JAX would compile the same program again"
    )
    before = prepare(own, data)
    chex.assert_trees_all_equal(prepare(weighted, data), before)
    chex.assert_trees_all_equal(prepare(with_weights(weighted, jnp.array([0.5, 0.5])), data), before)
    after = prepare(with_weights(weighted, jnp.array([0.25, 0.75])), data)
    factors = np.repeat([0.5, 1.5, 0.5], 2)[:, None]
    np.testing.assert_allclose(after.advantage, before.advantage * factors, rtol=1e-6)
    np.testing.assert_array_equal(after.weights, before.weights)


def test_worst_kind_gains_weight_and_resumed_run_agrees(tmp_path):
    stop = stopping_after(3)

    def interrupting(completions, operands):
        stop(completions)
        return favor_three_operands(completions, operands)

    config = KINDS.replace(run=str(tmp_path / "done"))
    rljax.train(config, reward=favor_three_operands)
    found = [row["worst_kind_weight"] for row in rows(tmp_path / "done") if row["phase"] == "rl"]
    assert 0.5 < found[0] < found[-1] < 1
    state = read_checkpoint(config, tmp_path / "done", reward=favor_three_operands).state
    two, three = np.asarray(state.options[NAME])
    assert two > three
    assert two == pytest.approx(found[-1])
    with pytest.raises(Interrupted):
        rljax.train(config.replace(run=str(tmp_path / "again")), reward=interrupting)
    rljax.train(resume=tmp_path / "again", reward=interrupting)
    chex.assert_trees_all_equal(read_checkpoint(config, tmp_path / "again", reward=favor_three_operands).state, state)


def test_a_rate_near_0_leaves_the_algorithm_unchanged(tmp_path):
    runs = [
        rljax.train(
            KINDS.replace(run=str(tmp_path / str(rate)), worst_kind=rate, steps=2), reward=favor_three_operands
        ).params
        for rate in (None, 1e-30, 2.0)
    ]
    chex.assert_trees_all_equal(runs[0], runs[1])
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(runs[0], runs[2], rtol=1e-3)


def test_worst_kind_is_refused_if_it_cannot_be_applied():
    with pytest.raises(InputError, match="no column of the training problems has 2 to"):
        first_state(KINDS.replace(operands=(2, 2)), reward=even_length)
    for changes in ({"algorithm": "ppo"}, {"remembered_rewards": 4}):
        with pytest.raises(InputError, match="needs an algorithm without a critic"):
            first_state(KINDS.replace(**changes), reward=even_length)
    with pytest.raises(InputError, match=r"worst_kind is 0\.0; it must be positive"):
        KINDS.replace(worst_kind=0)
