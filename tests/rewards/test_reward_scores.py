"""Reward functions in TRL's form: how they are called, and how their failures and invalid return values are handled."""

import asyncio
import functools
import math
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from rljax.errors import InputError
from rljax.rewards import BY_NAME
from rljax.rewards.correctness import UNFINISHED, Failed, Failures, Unfinished, form_of, verifier
from rljax.rewards.exact import exact
from rljax.rewards.reward_scores import Weighted, forms_of, judge, score
from rljax.training.metrics import RolloutMetrics

PROMPTS, COMPLETIONS = ["1+1=", "1+2="], ["#2", "#4"]
COLUMNS = {"answer": ["2", "3"], "level": [1, 7]}


def ask(reward, columns=COLUMNS):
    return score(reward, PROMPTS, COMPLETIONS, columns)


def test_built_in_reward():
    values, valid = ask(exact)
    assert (values.tolist(), valid.tolist()) == ([1.0, 0.0], [True, True])
    assert (values.dtype, valid.dtype) == (np.float32, np.bool_)


def test_kwargs_receive_everything_as_lists():
    def check_kwargs(**kwargs):
        assert kwargs == {"prompts": PROMPTS, "completions": COMPLETIONS, **COLUMNS}
        assert all(type(column) is list for column in kwargs.values())
        return [1.0, 2.0]

    columns = {name: tuple(column) for name, column in COLUMNS.items()}
    assert ask(check_kwargs, columns)[0].tolist() == [1.0, 2.0]


def test_rewards_without_kwargs_get_only_named_columns():
    def by_level(completions, level, bonus=1.0):
        return [x + len(c) + bonus for x, c in zip(level, completions, strict=True)]

    def keyword_only(*, level):
        return level

    assert ask(by_level)[0].tolist() == [4.0, 10.0]
    assert ask(keyword_only)[0].tolist() == [1.0, 7.0]
    assert ask(functools.partial(by_level, bonus=0.0))[0].tolist() == [3.0, 9.0]


def test_reward_cannot_change_its_callers_lists():
    def clear_lists(completions, **kwargs):
        kwargs["level"].clear()
        completions.clear()
        return [0.0, 0.0]

    ask(clear_lists)
    assert (COMPLETIONS, COLUMNS["level"]) == (["#2", "#4"], [1, 7])


def test_none_means_no_verdict():
    values, valid = ask(lambda completions: [None, 3])
    assert (values.tolist(), valid.tolist()) == ([0.0, 3.0], [False, True])


@pytest.mark.parametrize(
    "returned",
    [
        [1, 0.5],
        (True, Fraction(1, 2)),
        np.array([1.0, 0.5]),
        [np.float32(1), np.array(0.5)],
        [np.bool_(True), np.float16(0.5)],
        jnp.array([1.0, 0.5]),
    ],
)
def test_rewards_may_return_many_types_of_numbers(returned):
    assert ask(lambda completions: returned)[0].tolist() == [1.0, 0.5]


async def patient(completions, **kwargs):
    await asyncio.sleep(0)
    return [float(len(completion)) for completion in completions]


def test_coroutines_are_awaited():
    assert ask(patient)[0].tolist() == [2.0, 2.0]


def test_coroutines_are_awaited_inside_a_running_loop():
    async def notebook():
        return ask(patient)[0].tolist()

    assert asyncio.run(notebook()) == [2.0, 2.0]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "returned None; it must return a list"),
        (1.0, "returned 1.0; it must return a list"),
        ("ab", "returned 'ab'; it must return a list"),
        ({0: 1.0, 1: 2.0}, r"returned \{0: 1.0, 1: 2.0\}; it must return a list"),
        (np.float32(1), "returned .*1.0.*; it must return a list"),
        ([1.0], "returned 1 value for 2 completions; it must return one per completion"),
        ([1.0] * 3, "returned 3 values for 2 completions"),
        ([1.0, "2"], r"returned '2' for completion 1 \(in \[1.0, '2'\]\); it must return a number"),
        ([[1.0], [2.0]], r"returned \[1.0\] for completion 0"),
        (np.ones((2, 1)), r"returned \[1.0\] for completion 0"),
        ([1j, 1.0], "returned 1j for completion 0"),
    ],
)
def test_invalid_return_value_is_refused(returned, message):
    def strange(completions):
        return returned

    with pytest.raises(InputError, match=rf"the reward .*test_reward_scores\S*strange {message}"):
        ask(strange)


OUT_OF_RANGE = [math.nan, math.inf, -math.inf, 3e38, -1e19, 1e300, 10**400, np.float32("nan"), np.float64(2e18)]


@pytest.mark.parametrize("value", OUT_OF_RANGE, ids=lambda value: f"{value:.6}" if isinstance(value, float) else "long")
def test_unusable_number_is_a_failure(value):
    def strange(completions):
        return [value, 1.0, *[0.5] * (len(completions) - 2)]

    scores = judge(strange, ["?"] * 20, ["a"] * 20, {})
    assert scores.valid.tolist() == [False] + [True] * 19
    assert scores.total.tolist() == [0.0, 1.0] + [0.5] * 18
    assert scores.failures["strange"].out_of_range == scores.failures["strange"].total == 1
    with pytest.raises(
        InputError, match=r"failed on 1 of 20 .*NaN, infinite or too large\).*completion 0: it returned .*1e18"
    ):
        judge(strange, ["?"] * 20, ["a"] * 20, {}, max_failure_share=0.0)


def test_unfinished_judgment_is_wrong_but_not_a_failure():
    def verifies(completions):
        return [Unfinished("no answer within 2 s")] * 15 + [1.0]

    scores = judge(verifier(verifies), ["?"] * 16, ["a"] * 16, {}, max_failure_share=0.0)
    assert scores.valid.all()
    assert scores.total.tolist() == scores.correct.tolist() == [0.0] * 15 + [1.0]
    assert scores.failures["verifies"].unfinished == 15
    assert scores.failures["verifies"].total == 0
    both = judge(
        Weighted({"a": verifies, "b": lambda completions: [Failed("raised", "x")] + [2.0] * 15}, {"a": 1, "b": 1}),
        ["?"] * 16,
        ["a"] * 16,
        {},
    )
    assert both.valid.tolist() == [False] + [True] * 15
    assert both.failed.tolist() == [1, *[UNFINISHED] * 14, 0]


def test_sum_does_not_depend_on_the_split():
    """The 32-bit sum of an amount does not depend on how it is split, so a group of equal rewards never counts as mixed."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        tenths = rng.integers(1, 30, size=rng.integers(2, 6))
        split = [float(n) / 10 for n in tenths]
        names = [f"part{n}" for n in range(len(split))]
        rewards = {name: lambda completions: [1.0, 0.0] for name in names} | {"all": lambda completions: [0.0, 1.0]}
        amount = float(tenths.sum()) / 10
        total = judge(
            Weighted(rewards, dict(zip(names, split, strict=True)) | {"all": amount}), ["?"] * 2, ["a"] * 2, {}
        ).total
        assert total[0] == total[1], (split, amount)
        returned = {name: lambda completions, value=value: [value, 0.0] for name, value in zip(names, split, strict=True)}
        returned["all"] = lambda completions, value=amount: [0.0, value]
        total = judge(Weighted(returned, dict.fromkeys(returned, 1.0)), ["?"] * 2, ["a"] * 2, {}).total
        assert total[0] == total[1], (split, amount)


class Judge:
    def __call__(self, completions):
        raise KeyError("no\nkey")


async def failing(completions):
    raise KeyError("no\nkey")


@pytest.mark.parametrize(("reward", "name"), [(Judge(), "Judge"), (failing, "failing")])
def test_the_exception_of_a_reward_is_chained(reward, name):
    with pytest.raises(InputError, match=rf"the reward \S*{name} raised KeyError: .* fix the function") as caught:
        ask(reward)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_missing_column_is_named():
    with pytest.raises(
        InputError, match=r"needs solution, tests, but the data has the columns prompts, completions, answer"
    ):
        ask(lambda completions, solution, tests, **kwargs: [0.0, 0.0])


def test_column_with_the_name_of_an_argument_is_refused():
    with pytest.raises(InputError, match="no column called 'completions' or 'prompts'"):
        ask(exact, {"prompts": [1, 2], "completions": [1, 2]})


def test_reward_without_a_signature_is_refused():
    with pytest.raises(InputError, match=r"the reward builtins\.dict has no readable signature; wrap it"):
        ask(dict)


def test_reward_with_positional_only_parameters_is_refused():
    with pytest.raises(InputError, match=r"takes completions by position only, .*; remove the `/` from its parameters"):
        ask(lambda completions, /, **kwargs: [0.0, 0.0])
    values, _ = ask(lambda scale=1.0, /, **kwargs: [scale, scale])
    assert values.tolist() == [1.0, 1.0]


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="completions must have one entry per prompt, got 1 for 2 prompts"):
        score(exact, PROMPTS, ["#2"], COLUMNS)
    with pytest.raises(ValueError, match="level must have one entry per prompt, got 1 for 2 prompts"):
        ask(exact, {"answer": ["2", "3"], "level": [1]})


def judge_sum(rewards, weights):
    return judge(Weighted(rewards, weights), PROMPTS, COMPLETIONS, COLUMNS)


def test_a_weighted_sum():
    rewards = {"exact": exact, "level": lambda level: level, "shy": lambda completions: [None, 4.0]}
    scores = judge_sum(rewards, {"exact": 2.0, "level": 0.5, "shy": -1.0})
    assert scores.total.tolist() == [2.5, -0.5]
    assert scores.valid.tolist() == [True, True]
    assert {name: part.tolist() for name, part in scores.parts.items() if name != "shy"} == {
        "exact": [1.0, 0.0],
        "level": [1.0, 7.0],
    }
    np.testing.assert_array_equal(scores.parts["shy"], [np.nan, 4.0])
    assert {array.dtype for array in (scores.total, *scores.parts.values())} == {np.dtype(np.float32)}


def test_completion_that_no_reward_judges_is_invalid():
    scores = judge_sum({"a": lambda completions: [None, 1.0], "b": lambda completions: [None, None]}, {"a": 1.0, "b": 1.0})
    assert (scores.total.tolist(), scores.valid.tolist()) == ([0.0, 1.0], [False, True])


@pytest.mark.parametrize(
    ("rewards", "weights", "message"),
    [
        ({}, {}, "there are no rewards to combine"),
        ({"a": exact}, {}, r"the weights are for \[\], but the rewards are \['a'\]"),
        ({"a": exact}, {"a": 1.0, "b": 1.0}, r"the weights are for \['a', 'b'\]"),
        ({"a": exact}, {"a": math.nan}, "the weight of the reward 'a' is nan"),
    ],
)
def test_weights_must_match(rewards, weights, message):
    with pytest.raises(InputError, match=message):
        judge_sum(rewards, weights)


def make_reward(count, *, raised=0, timed_out=0):
    failed = [Failed("raised", "KeyError: 'x'")] * raised + [Failed("timed_out", "no answer within 2 s")] * timed_out
    return lambda completions: [1.0] * (count - len(failed)) + failed


def judge_many(reward, count=20, **options):
    return judge(reward, ["?"] * count, ["#2"] * count, {}, **options)


def test_failures_have_their_own_counts_and_no_reward():
    scores = judge_many(make_reward(20, raised=1, timed_out=1))
    assert scores.failures == {"<lambda>": Failures(raised=1, timed_out=1)}
    assert scores.valid.tolist() == [True] * 18 + [False] * 2
    assert scores.total.tolist() == [1.0] * 18 + [0.0] * 2
    assert np.isnan(scores.parts["<lambda>"][18:]).all()
    values, valid = score(make_reward(20, raised=2), ["?"] * 20, ["#2"] * 20, {})
    assert (values.sum(), valid.sum()) == (18.0, 18)


@pytest.mark.parametrize(
    ("count", "failed", "share", "raises"),
    [
        (20, 2, 0.1, False),
        (20, 3, 0.1, True),
        (20, 1, 0.0, True),
        (20, 1, 0.01, False),
        (20, 2, 0.01, True),
        (2, 1, 0.1, False),
        (2, 2, 0.1, True),
        (1, 1, 0.1, True),
        (20, 20, 1.0, False),
        (20, 20, 0.99, True),
    ],
)
def test_too_many_failures_raise_an_error(count, failed, share, raises):
    reward = make_reward(count, raised=failed - failed // 2, timed_out=failed // 2)
    if not raises:
        assert judge_many(reward, count, max_failure_share=share).failures["<lambda>"].total == failed
        return
    with pytest.raises(
        InputError, match=rf"failed on {failed} of {count} completions \(1?.* raised.*more than the {share:.0%}"
    ):
        judge_many(reward, count, max_failure_share=share)


def test_error_quotes_the_first_failure():
    with pytest.raises(
        InputError, match=r"\(2 raised an exception, 3 timed out\).*the first was completion 15: KeyError: 'x'\. Fix"
    ):
        judge_many(make_reward(20, raised=2, timed_out=3))


def test_failed_call_is_allowed_only_if_max_failure_share_is_1():
    def short(completions):
        return [1.0]

    def broken(completions):
        raise KeyError("x")

    for reward, failures in ((short, Failures(wrong_count=20)), (broken, Failures(raised=20))):
        scores = judge_many(reward, max_failure_share=1.0)
        assert scores.failures == {reward.__name__: failures}
        assert not scores.valid.any()
        assert not scores.total.any()
        with pytest.raises(InputError, match=rf"{reward.__name__} (returned 1 value for|raised KeyError)"):
            judge_many(reward, max_failure_share=0.99)


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_max_failure_share_is_from_0_to_1(share):
    with pytest.raises(InputError, match=r"max_failure_share is .*; it must be a number from 0 to 1"):
        judge_many(make_reward(20), max_failure_share=share)


def test_input_error_of_a_reward_is_raised_unchanged():
    def careful(completions):
        raise InputError("the reference answer 3 is 'x'.")

    async def patient_and_careful(completions):
        raise InputError("the reference answer 3 is 'x'.")

    for reward in (careful, patient_and_careful):
        with pytest.raises(InputError, match=r"^the reference answer 3 is 'x'\.$"):
            judge_many(reward, max_failure_share=1.0)


def test_coroutines_run_concurrently():
    second_started = asyncio.Event()

    async def first(completions):
        await asyncio.wait_for(second_started.wait(), 5)
        return [1.0, 1.0]

    async def second(completions):
        second_started.set()
        return [2.0, 2.0]

    assert judge_sum({"a": first, "b": second, "c": exact}, {"a": 1.0, "b": 1.0, "c": 1.0}).total.tolist() == [4.0, 3.0]


def test_a_failing_coroutine_does_not_affect_the_others():
    both = Weighted({"good": patient, "bad": failing}, {"good": 1.0, "bad": 1.0})
    scores = judge(both, PROMPTS, COMPLETIONS, COLUMNS, max_failure_share=1.0)
    assert scores.parts["good"].tolist() == [2.0, 2.0]
    assert scores.failures == {"good": Failures(), "bad": Failures(raised=2)}
    assert not scores.valid.any()
    assert not scores.total.any()


def test_progress_is_passed_to_rewards_that_name_it():
    seen = []

    def named(completions, progress):
        progress(1, 2)
        return [0.0, 0.0]

    def unnamed(completions, **columns):
        assert "progress" not in columns
        return [0.0, 0.0]

    for reward in (named, unnamed):
        judge(reward, PROMPTS, COMPLETIONS, COLUMNS, progress=lambda done, count: seen.append((done, count)))
    assert seen == [(1, 2)]
    with pytest.raises(InputError, match="no column called 'progress'"):
        ask(exact, {"answer": ["2", "3"], "progress": [1, 2]})


def test_built_in_rewards_declare_the_form_of_their_answers():
    for name, reward in BY_NAME.items():
        assert form_of(reward), name
    both = Weighted({"right": BY_NAME["math"], "own": lambda completions: [0.0]}, {"right": 1.0, "own": 1.0})
    assert list(forms_of(both)) == ["math"]


@pytest.mark.parametrize("name", [field for field in RolloutMetrics.__annotations__ if field.startswith("reward_")])
def test_part_with_the_name_of_a_metric_of_the_run_is_refused(name):
    part = name.removeprefix("reward_")
    with pytest.raises(InputError, match=rf"^a part of the reward must not be called '{part}', because {name} is a metric"):
        Weighted({part: BY_NAME["exact"]}, {part: 1.0})


def test_part_with_the_name_of_a_count_of_failures_is_refused():
    with pytest.raises(InputError, match="because reward_raised is a metric of the run; rename it"):
        Weighted({"raised": BY_NAME["exact"]}, {"raised": 1.0})
