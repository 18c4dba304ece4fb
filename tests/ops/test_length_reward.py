"""Length rewards, checked against loops written from the formulas, with ties and with empty and single-member groups."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rljax.ops.length_reward import cosine_length_reward, group_length_reward

P, G = 2, 4
verdicts = hnp.arrays(bool, (P, G))
length_arrays = hnp.arrays(np.int64, (P, G), elements=st.integers(0, 40))
rewards = st.floats(-10, 10)
VALUES = ("correct_short", "correct_long", "wrong_short", "wrong_long", "cut_off")


@given(verdicts, length_arrays, st.integers(1, 30), st.tuples(*[rewards] * 5))
def test_cosine_length_reward_matches_formula(correct, lengths, longest, values):
    options = dict(zip(VALUES, values, strict=True))
    expected = np.zeros((P, G))
    for p, i in np.ndindex(P, G):
        short, long = values[:2] if correct[p, i] else values[2:4]
        cosine_value = long + 0.5 * (short - long) * (1 + math.cos(lengths[p, i] * math.pi / longest))
        expected[p, i] = values[4] if lengths[p, i] >= longest else cosine_value
    with jax.enable_x64(True):
        actual = cosine_length_reward(jnp.array(correct), jnp.array(lengths), max_length=longest, **options)
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)


def test_cosine_reward_favors_short_correct_and_long_wrong_responses():
    lengths = jnp.arange(17)
    right = np.asarray(cosine_length_reward(jnp.ones(17, bool), lengths, max_length=16))
    wrong = np.asarray(cosine_length_reward(jnp.zeros(17, bool), lengths, max_length=16))
    assert (np.diff(right[:-1]) < 0).all()
    assert (np.diff(wrong[:-1]) > 0).all()
    assert (right[0], wrong[0], right[-1], wrong[-1]) == (2.0, -10.0, -10.0, -10.0)
    assert right[:-1].min() > 1.0
    assert wrong[:-1].max() < 0.0


def slow_group_length_reward(correct, lengths, valid):
    """The length reward of Section 2.3.3 of Kimi k1.5, as loops."""
    result = np.zeros(lengths.shape)
    for p in range(len(lengths)):
        members = [int(n) for n, is_valid in zip(lengths[p], valid[p], strict=True) if is_valid]
        for i in range(lengths.shape[1]):
            if valid[p, i] and max(members) > min(members):
                score = 0.5 - (lengths[p, i] - min(members)) / (max(members) - min(members))
                result[p, i] = score if correct[p, i] else min(0.0, score)
    return result


@given(verdicts, length_arrays, verdicts)
def test_group_length_reward_matches_formula(correct, lengths, valid):
    with jax.enable_x64(True):
        arrays = jnp.array(correct), jnp.array(lengths)
        np.testing.assert_allclose(
            group_length_reward(*arrays, valid=jnp.array(valid)),
            slow_group_length_reward(correct, lengths, valid),
            atol=1e-12,
        )
        all_valid = np.ones_like(valid)
        np.testing.assert_allclose(
            group_length_reward(*arrays), slow_group_length_reward(correct, lengths, all_valid), atol=1e-12
        )
        with_float_mask = group_length_reward(*arrays, valid=jnp.array(valid, float))
        np.testing.assert_allclose(with_float_mask, slow_group_length_reward(correct, lengths, valid), atol=1e-12)


@pytest.mark.parametrize("valid", [[1, 1, 1], [1, 0, 0], [0, 0, 0]])
def test_ties_single_members_and_empty_groups_get_zero(valid):
    lengths = jnp.where(jnp.array([valid]) > 0, 7, 3)
    found = jax.jit(group_length_reward)(jnp.array([[True, False, True]]), lengths, valid=jnp.array([valid]))
    assert found.tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.usefixtures("without_type_checks")
def test_errors_name_the_argument():
    yes, one = jnp.ones((1, 2), bool), jnp.ones((1, 2))
    with pytest.raises(ValueError, match="correct must be a boolean array, got float32"):
        cosine_length_reward(one, one, max_length=2)
    with pytest.raises(ValueError, match="max_length must be positive, got 0"):
        cosine_length_reward(yes, one, max_length=0)
    with pytest.raises(ValueError, match="lengths must not be negative"):
        group_length_reward(yes, -one)
    with pytest.raises(ValueError, match="valid must have the shape of correct"):
        group_length_reward(yes, one, valid=one[0])
