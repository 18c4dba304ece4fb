"""Tests of continuations: response prefixes are continued within the same token budget and judged as complete responses."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from small_runs import SMALL

from rljax.errors import InputError
from rljax.rollout.continuations import StateIndex, judge_continuations, sample_states
from rljax.training.lifecycle.initial_state import first_params
from rljax.training.setup import make_setup

CONFIG = SMALL.replace(
    algorithm="ppo",
    train_problems=20,
    heldout_problems=4,
    max_response_tokens=8,
)


@pytest.fixture(scope="module")
def rollout():
    setup = make_setup(CONFIG)
    params = first_params(setup)
    return setup.train, params, setup.train.generate(params, [0, 1, 2], 2, jax.random.key(0))


def with_reward(worker, reward):
    """Return the worker with another reward function."""
    return replace(worker, judge=worker.judge._replace(reward=reward))


def test_sample_states_returns_trained_tokens(rollout):
    _, _, groups = rollout
    states = sample_states(groups, 12, seed=0)
    assert len(set(states)) == 12
    assert all(groups.rollout.mask[state] for state in states)
    assert sample_states(groups, 12, seed=0) == states
    with pytest.raises(
        ValueError,
        match=f"count must be at most {groups.rollout.mask.sum()}, the number of tokens in the rollout's mask, got 999",
    ):
        sample_states(groups, 999, seed=0)


def test_continuations_begin_with_their_prefix(rollout):
    worker, params, groups = rollout
    states, judged = [StateIndex(0, 1, 3), StateIndex(2, 0, 0), StateIndex(1, 0, 7)], []

    def record(prompts, completions):
        judged.extend(zip(prompts, completions, strict=True))
        return [float(len(completion)) for completion in completions]

    rewards = judge_continuations(
        with_reward(worker, record), params, groups, states, continuations=5, key=jax.random.key(1), rows=4
    )
    assert rewards.shape == (3, 5)
    for index, state in enumerate(states):
        problem = worker.prompts.problems[groups.prompt_ids[state.group]]
        prefix = worker.judge.tokenizer.decode(groups.tokens[state.group, state.response, : state.token].tolist())
        for prompt, completion in judged[5 * index : 5 * index + 5]:
            assert prompt == problem.prompt
            assert completion.startswith(prefix)
            assert len(completion) <= CONFIG.sampling.max_response_tokens
    assert len({completion for _, completion in judged[5:10]}) > 1
    np.testing.assert_array_equal(rewards.reshape(-1), [len(completion) for _, completion in judged])


def test_reward_reads_conversations_as_messages(rollout):
    worker, params, groups = rollout
    message = ({"role": "user", "content": "Add."},)
    problems = [replace(problem, messages=message) for problem in worker.prompts.problems]
    worker = replace(worker, prompts=replace(worker.prompts, problems=tuple(problems)))

    def length(prompts, completions):
        assert prompts[0] == list(message)
        return [float(len(completion[0]["content"])) for completion in completions]

    rewards = judge_continuations(
        with_reward(worker, length), params, groups, [StateIndex(0, 0, 0)], continuations=2, key=jax.random.key(0), rows=2
    )
    assert (rewards > 0).all()


def test_continuations_of_finished_responses_have_equal_rewards(rollout):
    """A continuation cannot change the response's first character, on which this reward depends."""
    worker, params, groups = rollout
    rewards = judge_continuations(
        with_reward(worker, lambda completions: [float(ord(c[0])) if c else 0.0 for c in completions]),
        params,
        groups,
        [StateIndex(0, 0, 7)] if groups.rollout.mask[0, 0, 7] else [StateIndex(0, 1, 1)],
        continuations=6,
        key=jax.random.key(2),
        rows=6,
    )
    assert np.ptp(rewards) == 0


def test_abstaining_reward_is_rejected(rollout):
    worker, params, groups = rollout
    abstaining = with_reward(worker, lambda completions: [None] * len(completions))
    with pytest.raises(InputError, match=r"abstained or failed on \d of \d continuations"):
        judge_continuations(
            abstaining, params, groups, [StateIndex(0, 0, 0)], continuations=2, key=jax.random.key(0), rows=2
        )
