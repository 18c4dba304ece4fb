"""Composite rewards: they follow their equations and report each component separately."""

import asyncio

import jax.numpy as jnp
import numpy as np
import pytest

from rljax.errors import InputError
from rljax.ops.unpublished import mixture
from rljax.rewards import BY_NAME, resolve
from rljax.rewards.composite import constitutional, reasoning, weighted
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


def test_reasoning_is_correctness_plus_half_the_steps_minus_the_length():
    scores = ask(reasoning("exact", steps, length))
    by_hand = [1 + 0.5 * 0.25 - 0.3 * 0.1, 0 + 0.5 * 0.5 - 0.3 * 0.1, 1 - 0.3 * 17 / 20]
    np.testing.assert_allclose(scores.total, by_hand, rtol=1e-6)
    assert list(scores.parts) == ["correctness", "step_quality", "length_penalty"]
    np.testing.assert_array_equal(scores.parts["step_quality"], np.float32([0.25, 0.5, np.nan]))
    np.testing.assert_allclose(scores.parts["length_penalty"], [0.1, 0.1, 0.85], rtol=1e-6)
    other = ask(reasoning("exact", steps, length, step_weight=2.0, length_weight=1.0))
    np.testing.assert_allclose(other.total[:2], [1 + 0.5 - 0.1, 0 + 1.0 - 0.1], rtol=1e-6)


def test_constitutional_matches_its_equation():
    rules = {"short": length, "kind": lambda completions: [1.0, 0.0, -1.0]}
    weights = {"short": -0.5, "kind": 2.0}
    scores = ask(constitutional("exact", rules, weights))
    s = np.stack([scores.parts["short"], scores.parts["kind"]], axis=-1)
    equation = mixture.constitutional_sum(jnp.asarray(scores.parts["base"]), jnp.asarray(s), jnp.array([-0.5, 2.0]))
    np.testing.assert_allclose(scores.total, equation, rtol=1e-6)
    np.testing.assert_allclose(scores.total, [1 - 0.05 + 2, 0 - 0.05, 1 - 0.425 - 2], rtol=1e-6)


def test_multi_objective_matches_its_equation():
    scores = ask(weighted({"right": "exact", "long": length, "form": "format"}, {"right": 1.0, "long": 0.5, "form": -0.25}))
    objectives = np.stack([scores.parts[name] for name in ("right", "long", "form")], axis=-1)
    equation = mixture.multi_objective(jnp.asarray(objectives), jnp.array([1.0, 0.5, -0.25]))
    np.testing.assert_allclose(scores.total, equation, rtol=1e-6)
    np.testing.assert_allclose(scores.total, [0.8, -0.2, 1.175], rtol=1e-6)


def test_judge_scores_the_principles_that_are_text():
    calls = []

    async def model(prompts, completions, principle):
        calls.append((principle, len(prompts)))
        await asyncio.sleep(0)
        return [float(principle in completion) for completion in completions]

    reward = constitutional(
        "exact", {"w": "words", "two": "2", "rule": length}, {"w": 1.0, "two": 10.0, "rule": 0.0}, judge=model
    )
    scores = ask(reward)
    assert sorted(calls) == [("2", 3), ("words", 3)]
    assert scores.total.tolist() == [11.0, 0.0, 12.0]
    assert scores.parts["w"].tolist() == [0.0, 0.0, 1.0]


def test_nested_components_have_paths_and_multiplied_weights():
    inner = weighted({"right": "exact", "long": length}, {"right": 1.0, "long": 0.5})
    middle = weighted({"inner": inner, "form": "format"}, {"inner": 2.0, "form": 1.0})
    scores = ask(constitutional(middle, {"always": lambda completions: [1.0] * 3}, {"always": 3.0}))
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
        (lambda: reasoning("exact", steps, length, step_weight=float("inf")), "weight of the reward 'step_quality' is inf"),
        (lambda: constitutional("exact", {}, {}), r"the principles are \[\]; give at least one"),
        (lambda: constitutional("exact", {"base": steps}, {"base": 1.0}), "do not use the name 'base'"),
        (lambda: constitutional("exact", {"a": steps}, {}), "the weights are for"),
        (lambda: constitutional("exact", {"a": "be kind"}, {"a": 1.0}), r"'a' is a sentence \('be kind'\); pass a `judge`"),
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
