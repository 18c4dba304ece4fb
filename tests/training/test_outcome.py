"""The summary at the end of a run, and its suggested commands, which must work on that run."""

import pytest

from rljax.cli import COMMANDS
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.evaluation.comparison import Comparison
from rljax.tracking.display_text import check_judged, describe_events, next_commands
from rljax.tracking.run_folder import RunFolder
from rljax.training.checkpoints.checkpoint import Quality
from rljax.training.config import TrainConfig
from rljax.training.lifecycle.finish import describe_outcome
from rljax.training.run import resume_command

PROBLEMS = [Problem("long " * 20, ""), Problem("two\nlines", ""), Problem("what's 3+4?", "7")]


def run_with(tmp_path, *passed_objects):
    return RunFolder.create(tmp_path / "my run", {"seams": list(passed_objects)})


def test_suggested_commands_name_the_run_and_one_of_its_prompts(tmp_path):
    run = run_with(tmp_path)
    path = f"'{tmp_path}/my run'"
    assert next_commands(run, PROBLEMS) == [
        f"rljax eval {path}",
        f"""rljax sample {path} --prompt 'what'"'"'s 3+4?'""",
        f"rljax export {path} my-model",
    ]
    assert resume_command(run, TrainConfig()) == f"rljax train --resume {path}"
    assert all(command.split()[1] in COMMANDS for command in next_commands(run, PROBLEMS[:2]))


@pytest.mark.parametrize(
    ("passed_objects", "names"),
    [
        (["reward"], ["plot", "sample", "export"]),
        (["dataset"], ["plot", "export"]),
        (["environment"], ["plot", "export"]),
        (["policy", "reward"], ["plot"]),
        (["optimizer"], ["eval", "sample", "export"]),
    ],
)
def test_only_commands_that_work_without_the_passed_objects_are_suggested(tmp_path, passed_objects, names):
    run = run_with(tmp_path, *passed_objects)
    assert [command.split()[1] for command in next_commands(run, PROBLEMS)] == names
    passed = "".join(f", {name}={name}" for name in passed_objects)
    assert resume_command(run, TrainConfig()) == f"rljax.train(resume='{tmp_path}/my run'{passed})"


def test_outcome_summary():
    before, after, compared = Quality(0.25, -0.5), Quality(0.5, 0.5), Comparison(1, 0, 1, 1, [])
    lines = describe_outcome(before, after, compared, accuracy="rewards above 0", count=4)
    assert lines == [
        "Held-out rewards above 0: 25.0% (mean reward -0.500) before RL, 50.0% after (4 problems, greedy answers).",
        "Of the 3 problems judged both times, 1 rose above 0, 0 fell to 0 or below, 1 stayed above 0, 1 stayed at 0 or below.",
    ]
    assert len(describe_outcome(before, after, None, accuracy="accuracy", count=4)) == 1
    unknown = Quality(float("nan"), float("nan"))
    assert "unknown" in describe_outcome(unknown, after, None, accuracy="accuracy", count=4)[0]
    skipped = unknown._replace(judged=0, answers=0)
    line = "Held-out accuracy: not measured before RL, 50.0% after (4 problems, greedy answers)."
    assert describe_outcome(skipped, after, None, accuracy="accuracy", count=4) == [line]


def test_repeated_events_are_summarized_in_one_line():
    normal_step = {"trained_groups": 4.0, "unfilled_groups": 0.0, "unjudged": 0.0}
    assert describe_events([normal_step] * 3, prompts=4) == []
    assert describe_events([], prompts=4) == []
    failing_step = {
        "trained_groups": 0.0,
        "unfilled_groups": 4.0,
        "unjudged": 3.0,
        "reward_raised": 1.0,
        "reward_timed_out": 2.0,
    }
    assert describe_events([normal_step, failing_step, failing_step], prompts=4) == [
        "2 of 3 steps found fewer than 4 groups with a signal (8 missing in total) and trained on the groups they did find.",
        "2 of 3 steps found no group with a signal and changed nothing: the problems are too hard or too easy.",
        "Excluded from training: 6 responses on which the reward failed (2 raised an exception, 4 timed out).",
    ]


def test_a_reward_that_always_abstains_is_an_error_at_the_end():
    check_judged([])
    check_judged([{"loss": 0.0}, {"reward": 0.0}])
    with pytest.raises(InputError, match="abstained on every response in 2 RL steps, so nothing was learned"):
        check_judged([{"loss": 0.0}, {"reward": None}])
