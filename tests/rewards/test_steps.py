"""Step rewards: steps are judged one by one and assigned to the tokens that end them."""

import numpy as np
import pytest

from rljax.errors import InputError
from rljax.rewards.steps import STEP_REWARDS, assign_to_tokens, equations, score_steps


def decode(ids):
    """Return the text of token ids; 0 is the end token, which has no text."""
    pieces = {0: "", 1: "7+5=", 2: "12;", 3: "12+9=2", 4: "1;#21", 5: "é"}
    return "".join(pieces[i] for i in ids)


@pytest.mark.parametrize(
    ("completion", "steps"),
    [
        ("7+5=12;12+9=21;#21", [(7, 1.0), (15, 1.0), (18, 1.0)]),
        ("7+5=13;13+9=22;#22", [(7, 0.0), (15, 1.0), (18, 0.0)]),
        ("7-9=-2;-2*3=-6;#21", [(7, 1.0), (15, 1.0), (18, 1.0)]),
        ("7+5=12;12+9=21;", [(7, 1.0), (15, 1.0), (15, 0.0)]),
        ("nothing", [(7, 0.0)]),
        ("", [(0, 0.0)]),
    ],
)
def test_equations_are_judged_one_by_one(completion, steps):
    assert equations(["7+5+9="], [completion], ["21"]) == [steps]
    assert STEP_REWARDS["equations"] is equations


def test_steps_are_assigned_to_the_tokens_that_end_them():
    rewards, ends = assign_to_tokens([(7, 1.0), (15, 0.5), (18, 0.25)], decode, [1, 2, 3, 4, 0])
    np.testing.assert_array_equal(ends, [False, True, False, True, True])
    np.testing.assert_array_equal(rewards, np.float32([0, 1, 0, 0.5, 0.25]))


@pytest.mark.parametrize(
    ("tokens", "expected_rewards", "expected_ends"),
    [
        ([1, 2, 3, 4, 0], [0, 1, 0, 1, 1], [0, 1, 0, 1, 1]),
        ([1, 2, 0], [0, 1, 0], [0, 1, 1]),
        ([1, 2], [0, 0], [0, 1]),
        ([0], [0], [1]),
    ],
    ids=["stated", "stopped early", "cut off", "empty"],
)
def test_only_a_stated_answer_is_rewarded_at_the_end(tokens, expected_rewards, expected_ends):
    (steps,) = equations(["7+5+9="], [decode(tokens)], ["21"])
    rewards, ends = assign_to_tokens(steps, decode, tokens)
    np.testing.assert_array_equal(rewards, np.float32(expected_rewards))
    np.testing.assert_array_equal(ends, np.bool_(expected_ends))


def test_step_beyond_an_empty_completion_is_refused():
    with pytest.raises(InputError, match="for a completion of 0 characters; the end must be from 0 to that length"):
        assign_to_tokens([(1, 0.0)], decode, [0])


def test_later_of_two_steps_in_one_token_counts():
    rewards, ends = assign_to_tokens([(5, 1.0), (6, 0.5)], decode, [1, 2, 5])
    np.testing.assert_array_equal(ends, [False, True, False])
    np.testing.assert_array_equal(rewards, np.float32([0, 0.5, 0]))


@pytest.mark.parametrize("step", [(0, 1.0), (8, 1.0), (3, float("nan"))])
def test_a_step_outside_the_text_is_refused(step):
    with pytest.raises(InputError, match="for a completion of 7 characters; the end must be"):
        assign_to_tokens([step], decode, [1, 2])


@pytest.mark.parametrize(
    ("returned", "message"),
    [([[(1, 1.0)], []], "returned 2 lists for 1"), ([[1.0]], r"failed \(TypeError"), (None, r"failed \(TypeError")],
)
def test_invalid_steps_are_refused(returned, message):
    with pytest.raises(InputError, match=message):
        score_steps(lambda prompts, completions, **columns: returned, ["1+1="], ["2"], {"answer": ["2"]})


def test_a_step_reward_that_raises_is_named():
    def broken(prompts, completions, **columns):
        raise KeyError("gone")

    with pytest.raises(InputError, match=r"broken failed \(KeyError: 'gone'\)"):
        score_steps(broken, ["1+1="], ["2"], {})
