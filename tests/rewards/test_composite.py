"""Composite rewards: they follow their equations and report each component separately."""

import asyncio

import jax.numpy as jnp
import numpy as np
import pytest

from rljax.errors import InputError
from rljax.ops.shaping import weighted_composite
from rljax.rewards import BY_NAME, resolve
from rljax.rewards.composite import weighted
from rljax.rewards.correctness import Failed, Failures
from rljax.rewards.reward_scores import Weighted, combine, has_verifier, judge, minimum
from rljax.training.config import TrainConfig
from rljax.training.objective.algorithm import check_algorithm, make_algorithm
from rljax.training.parts.reward import reward_from_argument

PROMPTS, COMPLETIONS, COLUMNS = ["1+1="] * 3, ["#2", "#3", "a lot of words #2"], {"answer": ["2"] * 3}


def length(completions):
    return [len(completion) / 20 for completion in completions]


def steps(completions):
    return [0.25, 0.5, None]


def ask(reward, **options):
    return judge(reward, PROMPTS, COMPLETIONS, COLUMNS, **options)


def test_correctness_plus_half_the_steps_minus_the_length():
    parts = {"correctness": "exact", "step_quality": steps, "length": length}
    scores = ask(weighted(parts, {"correctness": 1.0, "step_quality": 0.5, "length": -0.3}))
    by_hand = [1 + 0.5 * 0.25 - 0.3 * 0.1, 0 + 0.5 * 0.5 - 0.3 * 0.1, 1 - 0.3 * 17 / 20]
    np.testing.assert_allclose(scores.total, by_hand, rtol=1e-6)
    assert list(scores.parts) == ["correctness", "step_quality", "length"]
    np.testing.assert_array_equal(scores.parts["step_quality"], np.float32([0.25, 0.5, np.nan]))
    np.testing.assert_allclose(scores.parts["length"], [0.1, 0.1, 0.85], rtol=1e-6)


def test_weighted_sum_matches_its_equation():
    weights = {"right": 1.0, "long": 0.5, "form": -0.25}
    scores = ask(weighted({"right": "exact", "long": length, "form": "format"}, weights))
    equation = weighted_composite({name: jnp.asarray(part) for name, part in scores.parts.items()}, weights)
    np.testing.assert_allclose(scores.total, equation, rtol=1e-6)
    np.testing.assert_allclose(scores.total, [0.8, -0.2, 1.175], rtol=1e-6)


def test_a_part_may_be_a_coroutine_function():
    async def ask_model(prompts, completions):
        await asyncio.sleep(0)
        return [float("words" in completion) for completion in completions]

    scores = ask(
        weighted({"right": "exact", "words": ask_model, "long": length}, {"right": 1.0, "words": 10.0, "long": 0.0})
    )
    assert scores.total.tolist() == [1.0, 0.0, 11.0]
    assert scores.parts["words"].tolist() == [0.0, 0.0, 1.0]


def test_nested_components_have_paths_and_multiplied_weights():
    inner = weighted({"right": "exact", "long": length}, {"right": 1.0, "long": 0.5})
    middle = weighted({"inner": inner, "form": "format"}, {"inner": 2.0, "form": 1.0})
    scores = ask(weighted({"base": middle, "always": lambda completions: [1.0] * 3}, {"base": 1.0, "always": 3.0}))
    assert list(scores.parts) == ["base/inner/right", "base/inner/long", "base/form", "always"]
    np.testing.assert_allclose(scores.total, [2 * (1 + 0.05) + 4, 2 * 0.05 + 4, 2 * (1 + 0.425) + 4], rtol=1e-6)


def test_a_completion_with_a_failed_component_has_no_reward():
    def slow(completions):
        return [Failed("timed_out", "slow"), 0.5, None]

    broken = weighted({"right": "exact", "slow": slow}, {"right": 1.0, "slow": 1.0})
    scores = ask(broken)
    assert scores.total.tolist() == [0.0, 0.5, 1.0]
    assert scores.valid.tolist() == [False, True, True]
    assert scores.failures == {"right": Failures(), "slow": Failures(timed_out=1)}
    assert scores.parts["right"].tolist() == [1.0, 0.0, 1.0]
    np.testing.assert_array_equal(scores.parts["slow"], np.float32([np.nan, 0.5, np.nan]))
    assert broken(PROMPTS, COMPLETIONS, **COLUMNS) == [None, 0.5, 1.0]
    # A negative weight does not turn a failed component into a reward, and the total of an invalid completion is 0.
    assert ask(weighted(broken.rewards, {"right": 5.0, "slow": -1.0})).total.tolist() == [0.0, -0.5, 5.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: weighted({}, {}), "there are no rewards to combine"),
        (lambda: weighted({"a": "exact"}, {"b": 1.0}), r"the weights are for \['b'\], but the rewards are \['a'\]"),
        (lambda: weighted({"a": "exakt"}, {"a": 1.0}), "there is no reward 'exakt'"),
        (lambda: weighted({"a": steps}, {"a": float("inf")}), "weight of the reward 'a' is inf"),
        (lambda: Weighted({"a": steps}, {"a": float("nan")}), "is nan; it must be a finite number"),
    ],
)
def test_invalid_arguments_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_minimum_ignores_rewards_that_abstain():
    lowest = Weighted(
        {"long": length, "steps": steps, "right": BY_NAME["exact"]}, {"long": 4, "steps": 1, "right": 2}, minimum
    )
    scores = ask(lowest)
    np.testing.assert_allclose(scores.total, [min(4 * 0.1, 0.25, 2), min(4 * 0.1, 0.5, 0), min(4 * 0.85, 2)], rtol=1e-6)
    assert scores.correct.tolist() == [1.0, 0.0, 1.0]
    assert list(scores.parts) == ["long", "steps", "right"]
    silent = Weighted({"none": lambda completions: [None] * 3, "some": steps}, {"none": 1, "some": -1}, minimum)
    assert ask(silent).total.tolist() == [-0.25, -0.5, 0.0]
    assert ask(silent).valid.tolist() == [True, True, False]


def test_nested_minimum_is_taken_first():
    inner = Weighted({"long": length, "steps": steps}, {"long": 1, "steps": 1}, minimum)
    scores = ask(weighted({"inner": inner, "right": "exact"}, {"inner": 10, "right": 1}))
    assert list(scores.parts) == ["inner", "right"]
    np.testing.assert_allclose(scores.total, [10 * 0.1 + 1, 10 * 0.1, 10 * 0.85 + 1], rtol=1e-6)
    both = weighted({"long": length, "right": "exact"}, {"long": 1, "right": 1})
    outer = Weighted({"both": both, "steps": steps}, {"both": 1, "steps": 1}, minimum)
    np.testing.assert_allclose(ask(outer).total, [0.25, 0.1, 1.85], rtol=1e-6)


def test_verifier_within_a_minimum_decides_correctness():
    for how in ("sum", "min"):
        reward = combine([resolve("brier:exact"), BY_NAME["format"]], None, how)
        scores = judge(reward, ["1+1="] * 2, ["#2 confidence: 1", "#3 confidence: 1"], {"answer": ["2"] * 2})
        assert has_verifier(reward), how
        assert scores.correct is not None, how
        assert scores.correct.tolist() == [1.0, 0.0], how
    assert list(scores.parts) == ["brier", "has_final_answer"]
    assert scores.total.tolist() == [1.0, -1.0]


def test_a_failure_within_a_minimum_is_attributed_to_its_component():
    broken = lambda completions: [Failed("raised", "no"), 1.0, 1.0]  # noqa: E731
    inner = Weighted({"broken": broken, "long": length}, {"broken": 1, "long": 1})
    scores = ask(Weighted({"both": inner, "steps": steps}, {"both": 1, "steps": 1}, minimum))
    assert scores.valid.tolist() == [False, True, True]
    assert scores.failures["both"].raised == 1
    assert scores.failures["steps"].total == 0


def test_minimum_does_not_reward_answers_that_one_judge_overrates():
    """Both judges reward the right answer, and each overrates a different wrong answer."""

    def make_judge(overrated):
        return lambda completions, answer: [
            float(c == a) + 2.0 * (c == overrated) for c, a in zip(completions, answer, strict=True)
        ]

    completions, best = ["2", "!", "?"], {}
    for how in ("sum", "min"):
        reward = combine([make_judge("!"), make_judge("?")], None, how)
        total = judge(reward, ["1+1="] * 3, completions, {"answer": ["2"] * 3}).total
        best[how] = set(np.flatnonzero(total == total.max()).tolist())
    assert best == {"sum": {0, 1, 2}, "min": {0}}


def test_reward_combine_option():
    for how, total in (("sum", 4.0), ("min", 1.0)):
        reward = reward_from_argument(
            [lambda completions: [3.0], lambda completions: [1.0]], TrainConfig.flat(reward_combine=how)
        )
        assert judge(reward, ["p"], ["c"], {}).total.tolist() == [total]
    with pytest.raises(InputError, match="reward_combine='min' needs several rewards, but there is only one"):
        reward_from_argument(length, TrainConfig.flat(reward_combine="min"))
    config = TrainConfig.flat(algorithm="gdpo", reward="exact,format", reward_combine="min")
    with pytest.raises(InputError, match="gdpo reads several rewards separately, so reward_combine='min' cannot be used"):
        check_algorithm(make_algorithm(config), config)
