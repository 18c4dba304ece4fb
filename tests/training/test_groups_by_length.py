"""Complete runs with groups of different sizes, prompts sampled by length, and responses compared with earlier ones."""

import json
from dataclasses import replace

import chex
import jax
import numpy as np
import pytest
from run_states import first_state, read_checkpoint
from small_runs import SMALL, even_length, stopping_after

import rljax
from rljax.data.history import no_history, record_responses
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.training.interrupt import Interrupted
from rljax.training.parts.problems import make_prompt_stream
from rljax.training.rollout_data import budgeted_group_sizes

TINY = SMALL.replace(
    name="small",
    algorithm="rloo",
    train_problems=12,
    heldout_problems=4,
    steps=3,
    prompts=4,
    group_size=4,
    microbatch_rows=4,
    learning_rate=1e-2,
    eval_every=0,
    checkpoint_every=2,
    sample_every=0,
)
BUDGET = 2 * 4 * 12
RAGGED = TINY.replace(token_budget=BUDGET, length_weights=(1, 1, 1, 1, 1), remembered_rewards=3)


def rl_rows(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["phase"] == "rl"]


def last(config, run):
    return read_checkpoint(config, run, reward=even_length).state


@pytest.fixture(scope="module")
def ragged(tmp_path_factory):
    return rljax.train(RAGGED.replace(run=str(tmp_path_factory.mktemp("runs") / "ragged")), even_length).run


def test_group_sizes_start_at_the_minimum(ragged):
    sizes = [row["group_size"] for row in rl_rows(ragged)]
    assert sizes[0] == 2, "lengths are unknown at first, so groups are sized for responses of the maximum length"
    assert all(2 <= size <= 4 for size in sizes)


def test_groups_are_full_if_responses_are_expected_to_be_short():
    history = record_responses(no_history(3), np.array([0, 1]), np.ones((2, 2)), np.array([[3, 3], [12, 12]]))
    sizes = budgeted_group_sizes(TINY.replace(token_budget=BUDGET), history, np.array([0, 1, 2, 0]))
    assert sizes.tolist() == [4, 2, 3, 4], (
        "24 tokens per prompt, at an expected 3, 12 and (unseen prompt: the mean of the others) 7.5 per response"
    )
    assert budgeted_group_sizes(TINY, history, np.array([0])) is None


def test_empty_group_slots_are_not_sampled_or_judged():
    setup, state = first_state(TINY, reward=even_length)
    sizes = np.array([4, 2, 3, 2])
    groups = setup.train.generate(state.params, [0, 1, 2, 3], 4, jax.random.key(0), sizes=sizes)
    present, rewards = np.arange(4) < sizes[:, None], groups.rollout.rewards
    np.testing.assert_array_equal(groups.rollout.mask.any(-1), present)
    np.testing.assert_array_equal(groups.present, present)
    np.testing.assert_array_equal(groups.rollout.valid, present)
    assert not rewards[~present].any()
    texts = [
        [setup.train.text(*row) for row in zip(*rows, strict=True)]
        for rows in zip(groups.tokens, groups.attention, strict=True)
    ]
    judged = [[float(len(text) % 2 == 0) for text in row] for row in texts]
    np.testing.assert_array_equal(rewards[present], np.array(judged)[present])
    np.testing.assert_array_equal(groups.prompt_ids, [0, 1, 2, 3])


def test_reward_history_contains_recent_rewards(ragged):
    state = last(RAGGED, ragged)
    memory = state.options["reward_history"]
    assert memory.rewards.shape == (12, 3)
    known = np.arange(3) < np.asarray(memory.size)[:, None]
    assert known.any()
    assert set(np.asarray(memory.rewards)[known].tolist()) <= {0.0, 1.0}
    assert not np.asarray(memory.rewards)[~known].any()


def test_a_stopped_run_continues_as_if_never_stopped(ragged, tmp_path):
    with pytest.raises(Interrupted):
        rljax.train(RAGGED.replace(run=str(tmp_path / "stopped")), stopping_after(3))
    rljax.train(None, even_length, resume=tmp_path / "stopped")
    chex.assert_trees_all_equal(last(RAGGED, tmp_path / "stopped"), last(RAGGED, ragged))


def test_single_responses_are_compared_with_earlier_rewards(tmp_path):
    config = TINY.replace(group_size=1, microbatch_rows=None, steps=6, run=str(tmp_path / "single"))
    with pytest.raises(InputError, match="group_size=1"):
        rljax.train(config, even_length)
    result = rljax.train(config.replace(remembered_rewards=2), even_length)
    norms = [row["grad_norm"] for row in rl_rows(result.run)]
    assert norms[0] == 0, "without earlier rewards, a single response has no advantage"
    assert max(norms) > 0


def test_lengths_come_from_demonstrations_if_every_problem_has_one():
    problems = [Problem("1+1=" * (3 - n), "2", "1" * (n + 1)) for n in range(3)]
    weights = (1.0, 0, 0, 0, 0)
    config = TINY.replace(length_weights=weights)
    assert set(make_prompt_stream(config, problems).indices(0, 9)) == {0}
    plain = [replace(problem, demonstration=None) for problem in problems]
    assert set(make_prompt_stream(config, plain).indices(0, 9)) == {2}
    assert set(make_prompt_stream(TINY, plain).indices(0, 3)) == {0, 1, 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"token_budget": BUDGET - 1},
            f"token_budget={BUDGET - 1} .* does not allow 2 responses of .*; set token_budget to at least {BUDGET}",
        ),
        ({"token_budget": 9 * BUDGET, "group_size": 1}, "group_size to at least 2"),
        ({"remembered_rewards": -1}, "remembered_rewards is -1; it must not be negative"),
    ],
)
def test_contradictory_settings_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        TINY.replace(microbatch_rows=None, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"algorithm": "ppo", "remembered_rewards": 2},
            "ppo does not compare the responses .* remembered_rewards=2 cannot be used",
        ),
        ({"length_weights": (1.0, 2.0)}, r"weights of the length bins are \(1.0, 2.0\); give 5 numbers"),
    ],
)
def test_incompatible_settings_are_refused_before_anything_is_written(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        rljax.train(TINY.replace(run=str(tmp_path / "run"), **change), even_length)
    assert not (tmp_path / "run").exists()
