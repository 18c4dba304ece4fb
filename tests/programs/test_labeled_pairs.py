"""`rljax pairs`: pairs of right and wrong responses of a run's policy, in the form that `rljax reward-model` reads."""

import json
from unittest.mock import Mock

import pytest
from small_cli import printed, refused

from rljax.data.preferences import read_preferences
from rljax.data.problem import Problem
from rljax.data.tokenizer import ByteTokenizer
from rljax.programs.labeled_pairs import is_right, row_of
from rljax.programs.trained_policy import load
from rljax.rollout.judging import Judge
from rljax.rollout.worker import RolloutWorker
from rljax.training.parts.problems import make_problems

REWARDS = """
def even(completions):
    return [float(len(completion) % 2 == 0) for completion in completions]

def some(completions):
    return [None if index % 3 == 0 else float(index % 3 == 1) for index, _ in enumerate(completions)]

def nothing(completions):
    return [None for completion in completions]

def everything(completions):
    return [1.0 for completion in completions]
"""


@pytest.fixture(scope="module")
def rewards(tmp_path_factory):
    file = tmp_path_factory.mktemp("rewards") / "mine.py"
    file.write_text(REWARDS)
    return file


def test_each_wrong_response_is_paired_with_a_right_one(finished, rewards, tmp_path, capsys):
    out = tmp_path / "pairs.jsonl"
    options = ["--reward", f"{rewards}:even", "--prompts", "8", "--samples", "6"]
    text = printed(capsys, "pairs", str(finished.run), str(out), *options)
    pairs = read_preferences(out).preferences
    assert f"Pairs: {len(pairs)} in {out}" in text
    assert len(pairs) >= 8
    assert all(len(pair.chosen) % 2 == 0 and len(pair.rejected) % 2 for pair in pairs)
    assert len({(pair.prompt, pair.rejected) for pair in pairs}) == len(pairs), "equal responses count once"
    assert 4 <= len({pair.prompt for pair in pairs}) <= 8
    training_prompts = {problem.prompt for problem in make_problems(load(finished.run, reward="exact").config).train}
    assert {pair.prompt for pair in pairs} <= training_prompts
    refused(capsys, "pairs.jsonl' already exists", "pairs", str(finished.run), str(out), *options)


def test_demonstration_is_chosen_if_no_response_is_right(finished, tmp_path, capsys):
    out = tmp_path / "pairs.jsonl"
    options = ["--reward", "exact", "--prompts", "4", "--samples", "2", "--temperature", "3"]
    text = printed(capsys, "pairs", str(finished.run), str(out), *options)
    assert "Responses that are right: 0.0%." in text
    assert "paired with the demonstration as the chosen response: 4." in text
    demonstrations = {p.prompt: p.demonstration for p in make_problems(load(finished.run, reward="exact").config).train}
    pairs = read_preferences(out).preferences
    assert len({pair.prompt for pair in pairs}) == 4
    assert all(pair.chosen == demonstrations[pair.prompt] != pair.rejected for pair in pairs)


def test_reward_that_reads_messages_judges_a_demonstration():
    def last_character(completions, **columns):
        return [float(completion[-1]["content"].endswith("2")) for completion in completions]

    problem = Problem("1+1", "2", messages=({"role": "user", "content": "1+1"},))
    worker = Mock(spec=RolloutWorker, judge=Judge(ByteTokenizer(), last_character))
    assert is_right(worker, problem, "12")
    assert not is_right(worker, problem, "13")


def test_chat_pair_is_read_back(tmp_path):
    out = tmp_path / "pairs.jsonl"
    chat = ({"role": "system", "content": "Add."}, {"role": "user", "content": "1+1"})
    out.write_text(json.dumps(row_of(Problem("Add.\n1+1", "2", messages=chat), "2", "3")))
    (pair,) = read_preferences(out).preferences
    assert (pair.chosen, pair.rejected, pair.messages) == ("2", "3", chat)


def test_invalid_requests_are_refused(finished, rewards, tmp_path, capsys):
    words = ["pairs", str(finished.run), str(tmp_path / "pairs.jsonl")]
    small = ["--prompts", "2", "--samples", "2"]
    same = [*words, *small, "--reward", f"{rewards}:everything"]
    refused(capsys, "no prompt has both a right and a wrong response \\(all are right\\)", *same)
    nothing = [*words, *small, "--reward", f"{rewards}:nothing"]
    refused(capsys, "no prompt has both a right and a wrong response \\(no response has a verdict\\)", *nothing)
    text = printed(capsys, *words, "--prompts", "2", "--samples", "6", "--reward", f"{rewards}:some")
    assert "Responses that are right: 50.0%." in text
    assert "Responses without a verdict, which are in no pair: 4." in text
    (tmp_path / "pairs.jsonl").unlink()
    refused(capsys, "The run was started with reward passed to train\\(\\)", *words, *small)
    refused(capsys, "samples is 0; it must be at least 1", *words, "--samples", "0")
    refused(capsys, "--seed is -1; it must be at least 0", *words, "--seed", "-1")
    refused(capsys, "above 0", *words, "--temperature", "0")
    refused(capsys, "there is no folder", "pairs", str(finished.run), str(tmp_path / "none" / "pairs.jsonl"))
    refused(capsys, "is not the folder of a run, so its problems are unknown", "pairs", "nowhere", str(tmp_path / "new"))
