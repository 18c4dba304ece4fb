"""The bonus for rare answers: its formula, and its independence of order and earlier calls."""

import math

import numpy as np
import pytest

from rljax.errors import InputError
from rljax.rewards import resolve
from rljax.rewards.count_bonus import count_bonus
from rljax.rewards.reward_scores import needs_all_hosts


def test_bonus_falls_with_the_number_of_equal_answers():
    prompts = ["a"] * 4 + ["b"] * 2
    completions = ["#2", "1+1=2;#2.0", "#3", "no answer", "#2", "#2 confidence: 0.5"]
    root = 0.3 / math.sqrt(2)
    np.testing.assert_allclose(resolve("count_bonus:0.3")(prompts, completions), [root, root, 0.3, 0.0, root, root])


def test_bonus_does_not_depend_on_order_or_earlier_calls():
    rng, reward = np.random.default_rng(0), count_bonus(1.0)
    prompts = [str(i) for i in rng.integers(0, 3, 40)]
    completions = [f"#{i}" for i in rng.integers(0, 4, 40)]
    first, order = np.array(reward(prompts, completions)), rng.permutation(40)
    again = reward([prompts[i] for i in order], [completions[i] for i in order])
    np.testing.assert_array_equal(first[order], again)
    by_hand = [
        sum(p == q and c == d for q, d in zip(prompts, completions, strict=True)) ** -0.5
        for p, c in zip(prompts, completions, strict=True)
    ]
    np.testing.assert_allclose(first, by_hand)


def test_bonus_needs_the_responses_of_all_hosts():
    assert needs_all_hosts(count_bonus(1.0))


def test_bonus_accepts_a_custom_answer_extractor():
    np.testing.assert_allclose(count_bonus(1.0, answer_of=len)(["?"] * 3, ["ab", "cd", "e"]), [0.5**0.5, 0.5**0.5, 1.0])


@pytest.mark.parametrize("scale", ["0", "-1", "nan", "inf", "much"])
def test_an_invalid_scale_is_refused(scale):
    with pytest.raises(InputError, match=r"the scale of count_bonus is .*; it must be a positive number"):
        resolve(f"count_bonus:{scale}")
