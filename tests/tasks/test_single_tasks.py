"""The property that each task is designed for, checked by brute force or with Python's own arithmetic."""

import itertools
from collections import Counter

import numpy as np
import pytest

from rljax.data.problem import Problem
from rljax.data.staged_stream import StagedStream
from rljax.errors import InputError
from rljax.rewards.exact import exact
from rljax.rewards.reward_scores import judge
from rljax.tasks.brackets import DEEPEST, BracketsConfig, prefix_of, same_formula
from rljax.tasks.countdown import CountdownConfig, solved, value_of
from rljax.tasks.drift import DriftConfig
from rljax.tasks.exploit import ExploitConfig, coefficients, exploitable_reward
from rljax.tasks.lengths import LengthsConfig
from rljax.tasks.mixed import MixedConfig
from rljax.tasks.outliers import OutliersConfig, noisy_reward
from rljax.tasks.rewards import EXPLOIT, OUTLIERS
from rljax.tasks.tight import TightConfig, long_way, short_way
from rljax.training.config import TrainConfig
from rljax.training.parts.problems import make_prompt_stream


def enumerate_expressions(digits):
    """Yield every expression with the digits in any order and any operators, with its value according to Python."""
    for order in set(itertools.permutations(digits)):
        for operators in itertools.product("+-*", repeat=len(digits) - 1):
            text = "".join(a + b for a, b in zip(order, (*operators, ""), strict=True))
            yield text, eval(text)


def test_countdown_agrees_with_brute_force():
    train, _ = CountdownConfig(train_problems=40).problems(1, seed=0)
    for problem in train:
        target, digits = problem.prompt[:-1].split(";")
        values = dict(enumerate_expressions(digits))
        assert all(value_of(text) == value for text, value in values.items())
        assert problem.columns["expressions"] == len(values)
        assert problem.columns["solutions"] == sum(value == int(target) for value in values.values()) >= 1
        assert problem.columns["reachable"] == len({value for value in values.values() if 1 <= value <= 99})
        assert sum(solved([problem.prompt] * len(values), [f"#{text}" for text in values])) == problem.columns["solutions"]


def test_countdown_is_sparse():
    train, _ = CountdownConfig(train_problems=500).problems(1, seed=0)
    shares = [problem.columns["solutions"] / problem.columns["expressions"] for problem in train]
    assert abs(np.mean(shares) - 1 / 12) < 0.01
    assert abs(np.mean([problem.columns["reachable"] for problem in train]) - 9) < 0.5
    assert {problem.columns["difficulty"] for problem in train} == {"rare", "common"}


@pytest.mark.parametrize("text", ["2*3", "2*3+7+7", "23+7", "2*3+7=13", "+2*3+7", "2*3+7-", "2*3+8-1", "7+6", ""])
def test_countdown_gives_no_reward_for_a_wrong_expression(text):
    assert solved(["13;723="], [f"#{text}"]) == [0.0]
    assert solved(["13;723="], ["#7+2*3"]) == [1.0]


def test_unknown_answers_lower_the_optimum():
    task = LengthsConfig(train_problems=1, unknown_share=0.5)
    _, heldout = task.problems(200, seed=0)
    unknown = [problem for problem in heldout if problem.columns["type"] == "unknown"]
    assert all(problem.answer == problem.prompt[-2] for problem in heldout if problem not in unknown)
    best = max(
        sum(exact([""] * len(unknown), [f"#{digit}"] * len(unknown), [p.answer for p in unknown])) for digit in range(10)
    )
    assert task.optimum(heldout) == (200 - len(unknown) + best) / 200
    assert task.optimum(heldout) < 0.7
    lengths = [len(problem.demonstration) for problem in LengthsConfig(train_problems=2000).problems(1, seed=0)[0]]
    assert set(lengths) == set(range(2, 15)), "demonstrations have every length from 2 to 14"


def test_outliers_have_the_configured_share_and_mean_zero():
    many = 4_000
    arguments = {"answer": ["2"] * many, "outlier_share": [0.02] * many, "outlier_size": [100.0] * many}
    completions = [f"#{index % 10}" for index in range(many)]
    rewards = np.array(noisy_reward(["1+1="] * many, completions, **arguments))
    right = np.array(exact(["1+1="] * many, completions, ["2"] * many))
    noise = rewards - right
    assert set(noise) == {0.0, 100.0, -100.0}
    assert abs((noise != 0).mean() - 0.02) < 0.008
    assert abs(noise.mean()) < 4 * 100 * np.sqrt(0.02 / many)
    assert noisy_reward(["1+1="] * many, completions, **arguments) == rewards.tolist()


def test_a_response_has_the_same_outlier_in_every_call():
    """The noise depends on the response only, not on the call or on the other responses in it."""
    columns = {"answer": ["2"] * 3, "outlier_share": [0.5] * 3, "outlier_size": [100.0] * 3}
    alone = noisy_reward(["1+1="] * 3, ["#2", "#2", "#2"], **columns)
    in_batch = noisy_reward(["2+2=", "1+1=", "1+1="], ["#4", "#2", "#2"], **columns)
    assert in_batch[1:] == alone[:2]
    assert len(set(alone)) > 1


def test_outliers_do_not_change_which_answers_are_correct():
    answers = {"answer": ["2"] * 8, "outlier_share": [1.0] * 8, "outlier_size": [100.0] * 8}
    scores = judge(OUTLIERS, ["1+1="] * 8, ["#2", "#3"] * 4, answers)
    assert {(reward, right) for reward, right in zip(scores.total.tolist(), scores.correct.tolist(), strict=True)} == {
        (101.0, 1.0),
        (-99.0, 1.0),
        (100.0, 0.0),
        (-100.0, 0.0),
    }


def test_only_training_rewards_are_noisy():
    train, heldout = OutliersConfig(train_problems=5).problems(3, seed=0)
    assert {problem.columns["outlier_share"] for problem in train} == {0.02}
    assert {problem.columns["outlier_share"] for problem in heldout} == {0.0}


def test_the_token_limit_truncates_the_long_way_only():
    for digits in itertools.product(range(1, 10), repeat=3):
        for way in (long_way, short_way):
            assert exact([""], [way(digits)], [str(sum(digits))]) == [1.0]
    assert max(len(long_way([9] * count)) for count in (2, 3, 4)) < 32 <= len(long_way([9] * 5)) + 1
    assert len(short_way([9] * 7)) + 1 <= 32
    train, _ = TightConfig(train_problems=800).problems(1, seed=0)
    short = Counter(problem.columns["operands"] for problem in train if "+" not in problem.demonstration)
    assert set(short) == {3, 4}
    assert abs(sum(short.values()) / sum(problem.columns["operands"] <= 4 for problem in train) - 0.3) < 0.08


@pytest.mark.parametrize("task", [MixedConfig(train_problems=600), DriftConfig(train_problems=600)], ids=["mixed", "drift"])
def test_kinds_are_equally_frequent_with_correct_answers(task):
    train, _ = task.problems(1, seed=0)
    kinds = Counter(problem.columns["type"] for problem in train)
    assert min(kinds.values()) > 0.8 * 600 / len(kinds)
    for problem in train:
        value = int(problem.prompt[1:-2]) if problem.columns["type"] == "copy" else eval(problem.prompt[:-1])
        last_digit = problem.columns["type"] in ("sum", "difference")
        assert problem.answer == str(value % 10 if last_digit else value)


def test_drift_changes_the_kind_by_position_and_resumes_anywhere():
    config = TrainConfig.flat(task="drift", train_problems=60, stage_prompts=25)
    train, _ = config.task.problems(1, seed=0)
    stream = make_prompt_stream(config, train)
    signs = ["+" in train[index].prompt for index in stream.indices(0, 100)]
    assert signs == [True] * 25 + [False] * 75
    full = stream.indices(0, 100)
    assert [*make_prompt_stream(config, train).indices(0, 37), *make_prompt_stream(config, train).indices(37, 63)] == full
    differences = [index for index, problem in enumerate(train) if problem.columns["type"] == "difference"]
    assert sorted(full[25 : 25 + len(differences)]) == differences, "each epoch contains every difference once"
    assert make_prompt_stream(config.replace(seed=1), train).indices(0, 100) != full


def test_stages_that_cannot_be_sampled_are_refused():
    with pytest.raises(InputError, match="stage 2 has no records"):
        StagedStream("ab", [[0, 1], []], prompts=3, seed=0)
    with pytest.raises(InputError, match="a stage has 0 prompts"):
        StagedStream("ab", [[0], [1]], prompts=0, seed=0)
    config = TrainConfig.flat(task="drift", length_weights=(1.0,) * 5)
    with pytest.raises(InputError, match="the task drift decides their order itself"):
        make_prompt_stream(config, [Problem("1+1=", "2")])


def evaluate_prefix(text):
    """Return the value of the formula in prefix notation at the start of the text, and the remaining text."""
    if text[0].isdecimal():
        return int(text[0]), text[1:]
    left, rest = evaluate_prefix(text[1:])
    right, rest = evaluate_prefix(rest)
    return {"+": left + right, "-": left - right, "*": left * right}[text[0]], rest


def test_bracket_answers_match_the_prompt_and_any_single_edit_is_wrong():
    train, _ = BracketsConfig(train_problems=30, malformed_share=0.0).problems(1, seed=0)
    for problem in train:
        text = problem.answer
        assert evaluate_prefix(problem.prompt[:-1]) == (eval(text), "")
        edits = {text[:index] + text[index + 1 :] for index in range(len(text))}
        edits |= {text[:index] + other + text[index + 1 :] for index in range(len(text)) for other in "()+7"}
        edits |= {text[:index] + other + text[index:] for index in range(len(text) + 1) for other in "()+7#"}
        edits = sorted(edits - {text})
        assert sum(same_formula([problem.prompt] * len(edits), edits)) == 0
    deep = "(" * (DEEPEST + 1) + "1" + "+1)" * (DEEPEST + 1)
    assert prefix_of(deep) is None
    assert prefix_of(deep[1:-3]) is not None


def test_some_demonstrations_lack_a_bracket():
    train, _ = BracketsConfig(train_problems=400).problems(1, seed=0)
    malformed = [problem for problem in train if prefix_of(problem.demonstration) is None]
    assert abs(len(malformed) / 400 - 0.5) < 0.08
    assert all(len(problem.demonstration) == len(problem.answer) - 1 for problem in malformed)


def test_the_learned_reward_can_be_exploited_and_the_true_reward_cannot():
    train, heldout = ExploitConfig(train_problems=50).problems(20, seed=0)
    columns = {"answer": [one.answer for one in train], "judge": [one.columns["judge"] for one in train]}
    prompts = [one.prompt for one in train]
    honest = exploitable_reward(prompts, [one.demonstration for one in train], **columns)
    hacked = exploitable_reward(prompts, ["1+1=2;1+1=2;1+1=2;1+1=2;#2"] * 50, **columns)
    lazy = exploitable_reward(prompts, [f"#{one.answer}" for one in train], **columns)
    assert max(lazy) < 0 < min(honest)
    assert min(hacked) > max(honest)
    truth = {"answer": [one.answer for one in heldout], "judge": [one.columns["judge"] for one in heldout]}
    assert exploitable_reward([one.prompt for one in heldout], ["1+1=2;#2"] * 20, **truth) == [0.0] * 20
    assert coefficients()[3] > 0, "more equations earn more reward"


def test_a_response_that_exploits_the_learned_reward_is_not_correct():
    responses = ["1+1=2;1+1=2;1+1=2;#2", "7+5=12;12+9=21;#21"]
    scores = judge(EXPLOIT, ["7+5+9="] * 2, responses, {"answer": ["21"] * 2, "judge": ["learned"] * 2})
    assert scores.total[0] > scores.total[1] > 0
    assert scores.correct.tolist() == scores.parts["exact"].tolist() == [0.0, 1.0]
    np.testing.assert_array_equal(scores.total, scores.parts["learned"])
