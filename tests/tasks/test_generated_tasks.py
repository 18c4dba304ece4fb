"""Generated tasks: a seed determines the problems, training and held-out prompts differ, and demonstrations are right."""

import pytest

from rljax.cli import main, parse
from rljax.data.heldout import is_heldout, sample_parts
from rljax.data.problem import Problem, reward_columns
from rljax.data.tokenizer import load_tokenizer
from rljax.errors import InputError
from rljax.rewards import resolve
from rljax.tasks import TASKS, task_name
from rljax.tasks.brackets import BracketsConfig
from rljax.tasks.countdown import CountdownConfig
from rljax.tasks.digits import DigitsConfig
from rljax.tasks.drift import DriftConfig
from rljax.tasks.exploit import ExploitConfig
from rljax.tasks.lengths import LengthsConfig
from rljax.tasks.mixed import MixedConfig
from rljax.tasks.outliers import OutliersConfig
from rljax.tasks.tight import TightConfig
from rljax.training.config import TrainConfig

SMALL_TASKS = [
    CountdownConfig(train_problems=80),
    LengthsConfig(train_problems=80),
    OutliersConfig(train_problems=80),
    TightConfig(train_problems=80),
    MixedConfig(train_problems=80),
    DriftConfig(train_problems=80),
    BracketsConfig(train_problems=80, malformed_share=0.0),
    ExploitConfig(train_problems=80),
    DigitsConfig(train_problems=80),
]
PROMPT_TOKENS, RESPONSE_TOKENS = 8, 32
"""Limits of the default experiment; within them, `rljax train --task NAME` needs no other settings."""
WRONG = ("", "#", "#0", "#-1", "#1000", "no", ")(", ";" * 20)


def compute_rewards(task, problems, completions):
    return resolve(task.reward)([problem.prompt for problem in problems], completions, **reward_columns(problems))


def test_every_task_is_tested():
    tested_elsewhere = {"sums", "iteration", "reasoning_gym"}
    assert {task_name(task) for task in SMALL_TASKS} == set(TASKS) - tested_elsewhere


@pytest.mark.parametrize("task", SMALL_TASKS, ids=task_name)
def test_a_seed_determines_the_problems_but_not_which_prompts_are_held_out(task):
    train, heldout = task.problems(20, seed=0)
    assert (train, heldout) == task.problems(20, seed=0)
    other = task.problems(20, seed=1)
    assert train != other[0]
    assert (len({problem.prompt for problem in train}), len({problem.prompt for problem in heldout})) == (80, 20)
    assert not any(is_heldout(problem.prompt) for problem in [*train, *other[0]])
    assert all(is_heldout(problem.prompt) for problem in [*heldout, *other[1]])


@pytest.mark.parametrize("task", SMALL_TASKS, ids=task_name)
def test_demonstrations_are_right_and_nonsense_is_not(task):
    _, heldout = task.problems(20, seed=2)
    assert compute_rewards(task, heldout, [problem.demonstration for problem in heldout]) == [1.0] * 20
    assert task.optimum(heldout) is not None
    for text in WRONG:
        right = [problem for problem in heldout if text == f"#{problem.answer}"]
        assert sum(compute_rewards(task, heldout, [text] * 20)) == len(right)


@pytest.mark.parametrize("task", SMALL_TASKS, ids=task_name)
def test_prompts_and_most_demonstrations_fit_the_default_experiment(task):
    tokenizer = load_tokenizer(task.tokenizer)
    train, heldout = task.problems(20, seed=3)
    assert max(len(tokenizer.encode(problem.prompt)) for problem in [*train, *heldout]) <= PROMPT_TOKENS
    lengths = [len(tokenizer.encode(problem.demonstration)) + 1 for problem in train]
    assert sum(length <= RESPONSE_TOKENS for length in lengths) >= len(lengths) / 2


@pytest.mark.parametrize("name", sorted(set(TASKS) - {"reasoning_gym"}))
def test_settings_round_trip_and_the_task_sets_the_reward(name):
    config = TrainConfig.flat(task=name, train_problems=7)
    assert TrainConfig.from_json(config.to_json()) == config
    assert (config.reward.name, config.task.train_problems) == (TASKS[name].reward, 7)
    assert resolve(config.reward.name) is not None


def test_settings_of_a_task_are_flags_only_with_that_task(capsys):
    assert parse(["train", "--task", "countdown", "--numbers", "4"]).config.task.numbers == 4
    for words in (["--numbers", "4"], ["--task", "tight", "--numbers", "4"]):
        assert main(["train", *words]) == 2
        assert "--numbers is a setting of the task countdown" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "--task", "countdown", "--help-all"])
    shown = capsys.readouterr().out
    assert "--tries" in shown
    assert "--filler" not in shown


@pytest.mark.parametrize(
    ("record", "settings", "message"),
    [
        (CountdownConfig, {"numbers": 5}, "numbers is 5; it must be between 2 and 4"),
        (CountdownConfig, {"tries": 0}, "tries is 0"),
        (LengthsConfig, {"unknown_share": 1.5}, "unknown_share is 1.5"),
        (OutliersConfig, {"outlier_share": -0.1}, "outlier_share is -0.1"),
        (TightConfig, {"terms": (3, 8)}, "terms is "),
        (MixedConfig, {"kinds": ("copy", "copies")}, "kinds is .*; choose one or more of copy, sum, product"),
        (DriftConfig, {"stage_prompts": 0}, "stage_prompts is 0"),
        (BracketsConfig, {"operations": (0, 2)}, "operations is "),
        (ExploitConfig, {"doubled_share": 2.0}, "doubled_share is 2.0"),
        (DigitsConfig, {"pixel_noise": 0.5}, "pixel_noise is 0.5; it must be at least 0 and below 0.5"),
    ],
)
def test_invalid_settings_are_refused(record, settings, message):
    with pytest.raises(InputError, match=message):
        record(**settings)


def test_too_many_problems_are_refused_with_the_available_number():
    def generate(random):
        return Problem(f"{random.randrange(40)}=", "")

    with pytest.raises(InputError, match=r"train_problems is 50, but .* only \d+ distinct training problems"):
        sample_parts(generate, train=50, heldout=1, seed=0)
    with pytest.raises(InputError, match=r"heldout_problems is 30, but .* only \d+ distinct held-out problems"):
        sample_parts(generate, train=1, heldout=30, seed=0)
