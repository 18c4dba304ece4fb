"""Groups that include earlier responses to the same prompt, checked against a dictionary of lists."""

from collections import defaultdict, deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.ops import group
from rljax.ops.unpublished import reward_history
from rljax.ops.unpublished.group_baseline import rank_based

N, H, P, G = 4, 3, 2, 4  # G > H: a step has more responses than the history can store
tenths = st.integers(-30, 30).map(lambda k: k / 10)
steps = st.lists(
    st.tuples(
        hnp.arrays(np.int32, (P,), elements=st.integers(0, N - 1)),
        hnp.arrays(np.float64, (P, G), elements=tenths),
        hnp.arrays(bool, (P, G)),
    ),
    min_size=1,
    max_size=5,
)
push = jax.jit(reward_history.push_history)
temporal = jax.jit(reward_history.temporal_advantage, static_argnames="advantage")


def slow_group(memory, prompt, rewards, valid):
    return [r for r, v in zip(rewards, valid, strict=True) if v] + list(memory[prompt])


def slow_advantage(memory, prompts, rewards, valid):
    """Reward minus the mean over this step's valid responses and the remembered ones."""
    result = np.zeros(rewards.shape)
    for p, i in zip(*np.nonzero(valid), strict=True):
        members = slow_group(memory, int(prompts[p]), rewards[p], valid[p])
        result[p, i] = rewards[p, i] - sum(members) / len(members) if len(members) > 1 else 0.0
    return result


@given(steps)
def test_history_matches_dictionary_of_lists(run):
    memory = defaultdict(lambda: deque(maxlen=H))
    with jax.enable_x64(True):
        history = reward_history.empty_history(N, H)
        for prompts, rewards, valid in run:
            ids, is_valid = jnp.array(prompts), jnp.array(valid)
            rewards_with_nan = jnp.array(np.where(valid, rewards, np.nan))
            advantage = temporal(history, ids, rewards_with_nan, valid=is_valid)
            np.testing.assert_allclose(advantage, slow_advantage(memory, prompts, rewards, valid), atol=1e-12)
            history = push(history, ids, rewards_with_nan, valid=is_valid)
            for prompt, row, row_valid in zip(prompts, rewards, valid, strict=True):
                memory[int(prompt)].extend(r for r, v in zip(row, row_valid, strict=True) if v)
            for prompt in range(N):
                remembered = history.rewards[prompt][: history.size[prompt]]
                assert sorted(remembered.tolist()) == sorted(memory[prompt])


def test_join_history_appends_earlier_rewards():
    history = reward_history.empty_history(2, 3)
    history = push(history, jnp.array([1]), jnp.array([[5.0, 6.0]]))
    rewards, valid = reward_history.join_history(history, jnp.array([1, 0]), jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    assert rewards.tolist() == [[1.0, 2.0, 5.0, 6.0, 0.0], [3.0, 4.0, 0.0, 0.0, 0.0]]
    assert valid.tolist() == [[True, True, True, True, False], [True, True, False, False, False]]


def test_temporal_advantage_without_history(x64):
    rewards = jnp.array([[1.0, 0.5, -1.0, 0.0]])
    history = reward_history.empty_history(1, 2)
    for advantage in (group.group_centered, group.group_normalized, group.leave_one_out, rank_based):
        actual = temporal(history, jnp.array([0]), rewards, advantage=advantage)
        np.testing.assert_allclose(actual, jax.jit(advantage)(rewards), atol=1e-12)


def test_traced_prompt_ids_out_of_range_are_ignored():
    history = push(reward_history.empty_history(2, 2), jnp.array([0, 1]), jnp.array([[1.0], [2.0]]))
    after = push(history, jnp.array([-1, 2]), jnp.array([[7.0], [8.0]]))
    jax.tree.map(np.testing.assert_array_equal, after, history)
    advantage = temporal(history, jnp.array([-1, 2]), jnp.array([[7.0], [8.0]]))
    assert advantage.tolist() == [[0.0], [0.0]]


def test_history_with_more_prompts_than_slots():
    history = reward_history.empty_history(3, 1)
    history = reward_history.push_history(history, jnp.array([2]), jnp.array([[5.0, 6.0]]))
    assert history.rewards.tolist() == [[0.0], [0.0], [6.0]]


def test_history_keeps_the_most_recent_rewards():
    history = push(reward_history.empty_history(1, 3), jnp.array([0]), jnp.array([[1.0, 2.0]]))
    history = push(history, jnp.array([0]), jnp.arange(10.0, 18.0)[None])
    assert sorted(history.rewards[0].tolist()) == [15.0, 16.0, 17.0]
    assert history.next_slot.tolist() == [10 % 3]
    assert history.size.tolist() == [3]


def test_history_is_a_pytree_of_arrays():
    history = reward_history.empty_history(5, 3)
    assert [(leaf.shape, leaf.dtype.name) for leaf in jax.tree.leaves(history)] == [
        ((5, 3), "float32"),
        ((5,), "int32"),
        ((5,), "int32"),
    ]


EMPTY = reward_history.empty_history(2, 2)
IDS, REWARDS = jnp.array([0, 1]), jnp.ones((2, 2))


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize(
    "function", [reward_history.push_history, reward_history.join_history, reward_history.temporal_advantage]
)
@pytest.mark.parametrize(
    ("arguments", "valid", "message"),
    [
        ((jnp.array([0, 2]), REWARDS), None, r"prompt_ids must lie in \[0, 1\], got \[0 2\]"),
        ((jnp.array([-1, 0]), REWARDS), None, r"prompt_ids must lie in \[0, 1\], got \[-1  0\]"),
        ((jnp.array([0.0, 1.0]), REWARDS), None, "prompt_ids must be an integer array, got float32"),
        ((IDS[:1], REWARDS), None, r"prompt_ids must have one entry for each row of rewards \[2\], got \[1\]"),
        ((IDS, REWARDS.astype(int)), None, "rewards must be a floating-point array"),
        ((IDS, REWARDS[0]), None, "rewards must have at least 2 non-empty axes"),
        ((IDS, REWARDS), jnp.ones(2), "valid must have the shape of rewards"),
        ((IDS, REWARDS), 2 * REWARDS, "valid must contain only 0 and 1"),
    ],
)
def test_invalid_arguments_are_refused(function, arguments, valid, message):
    with pytest.raises(ValueError, match=message):
        function(EMPTY, *arguments, valid=valid)


@pytest.mark.parametrize(("history_dtype", "rewards_dtype"), [("float32", "float64"), ("float64", "float32")])
def test_mismatched_dtypes_are_refused(history_dtype, rewards_dtype, x64):
    history = EMPTY._replace(rewards=EMPTY.rewards.astype(history_dtype))
    with pytest.raises(ValueError, match=f"rewards must have the history's dtype {history_dtype}, got {rewards_dtype}"):
        reward_history.join_history(history, IDS, jnp.asarray(REWARDS, rewards_dtype))


@pytest.mark.parametrize(("prompts", "capacity"), [(0, 1), (1, 0)])
def test_history_without_prompts_or_slots_is_refused(prompts, capacity):
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        reward_history.empty_history(prompts, capacity)
