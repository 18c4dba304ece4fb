"""Verifiers: which rewards decide whether a response is correct, and how several verifiers are combined."""

from functools import partial, wraps

import numpy as np
import pytest

from rljax.errors import InputError
from rljax.rewards import BY_NAME, right_from, verifier
from rljax.rewards.correctness import is_verifier
from rljax.rewards.each import each
from rljax.rewards.math import math_reward
from rljax.rewards.reward_scores import Weighted, has_verifier, judge


@verifier
def is_even(completions):
    return [None if c == "?" else float(int(c) % 2 == 0) for c in completions]


@verifier
def is_small(completions):
    return [None if c == "?" else 1.0 if int(c) < 10 else -1.0 for c in completions]


def length(completions):
    return [0.5 for _ in completions]


def test_rewards_that_check_an_answer_are_verifiers():
    names = {name for name, reward in BY_NAME.items() if is_verifier(reward)}
    assert names == {"exact", "math", "math_or_last_number", "gsm8k", "aime", "yes_no", "multiple_choice", "code"} | {
        "reasoning_gym",
        "proof",
    }
    assert is_verifier(math_reward())
    assert is_verifier(partial(is_even, completions=[]))


@verifier
def is_seven(completion):
    return float(completion == "7")


def test_each_keeps_the_verifier_mark():
    assert is_verifier(each(is_seven))
    assert not is_verifier(each(len))


def test_a_wrapper_of_a_verifier_is_not_itself_a_verifier():
    @wraps(is_even)
    def shaped(completions):
        return [None if value is None else value - 0.5 for value in is_even(completions)]

    assert not is_verifier(shaped)
    assert is_verifier(verifier(shaped))


def test_a_method_cannot_be_marked_as_a_verifier():
    class Judge:
        def reward(self, completions):
            return [1.0] * len(completions)

    with pytest.raises(InputError, match="cannot be marked as a verifier; wrap it in a function"):
        verifier(Judge().reward)


def test_a_verifier_among_several_rewards_decides_alone():
    scores = judge(
        Weighted({"even": is_even, "length": length}, {"even": 1.0, "length": 1.0}), ["p"] * 3, ["2", "3", "?"], {}
    )
    np.testing.assert_array_equal(scores.total, np.float32([1.5, 0.5, 0.5]))
    np.testing.assert_array_equal(scores.correct, np.float32([1, 0, np.nan]))


def test_all_verifiers_that_do_not_abstain_must_agree():
    both = Weighted({"even": is_even, "small": is_small}, {"even": 1.0, "small": 0.0})
    assert has_verifier(Weighted({"outer": both, "length": length}, {"outer": 1, "length": 1}))
    scores = judge(both, ["p"] * 4, ["2", "12", "3", "?"], {})
    np.testing.assert_array_equal(scores.correct, np.float32([1, 0, 0, np.nan]))


@right_from(1.0)
def share(completions):
    """Return partial credit, or None if there is nothing to judge."""
    return [float(text) if text else None for text in completions]


def test_partial_credit_is_not_correct():
    scores = judge(share, ["p"] * 3, ["1", "0.9", ""], {})
    np.testing.assert_array_equal(scores.total, np.float32([1, 0.9, 0]))
    np.testing.assert_array_equal(scores.correct, np.float32([1, 0, np.nan]))


@right_from(1.0)
def share_of_one_completion(completion):
    return float(completion)


def test_each_keeps_the_threshold():
    np.testing.assert_array_equal(
        judge(each(share_of_one_completion), ["p"] * 2, ["1", "0.9"], {}).correct, np.float32([1, 0])
    )


def test_without_a_verifier_correctness_is_unknown():
    assert judge(length, ["p"], ["2"], {}).correct is None


def test_a_failure_is_neither_right_nor_wrong():
    def broken(completions):
        raise ValueError("no")

    both = Weighted({"even": is_even, "broken": broken}, {"even": 1.0, "broken": 1.0})
    scores = judge(both, ["p"], ["2"], {}, max_failure_share=1.0)
    assert scores.correct is not None
    assert np.isnan(scores.correct).all()


@pytest.mark.parametrize("name", ["exact", "yes_no"])
def test_positive_reward_of_a_single_verifier_is_correct(name):
    scores = judge(BY_NAME[name], ["p"] * 2, ["#yes", "#no"], {"answer": ["yes", "yes"]})
    np.testing.assert_array_equal(scores.correct, (scores.total > 0).astype(np.float32))
