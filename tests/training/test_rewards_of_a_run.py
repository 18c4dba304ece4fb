"""Rewards inside a run: their components, their failures, and the progress of judging."""

import json
import re

import pytest
from shared_run import TINY, rows
from small_runs import even_length

import rljax
from rljax.errors import InputError
from rljax.rewards.correctness import Failed
from rljax.rewards.reward_scores import Weighted
from rljax.tracking.plain_display import PlainDisplay
from rljax.training import loop


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    """Retry failing rewards at once; `test_retries.py` tests the real waits."""
    monkeypatch.setattr(loop, "WAITS", (0.0,) * len(loop.WAITS))


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (lambda completions: 1 / 0, "ZeroDivisionError"),
        (lambda completions: [1.0], "1"),
        (lambda completions: [float("nan")] * len(completions), "nan"),
    ],
)
def test_failing_rewards_are_reported(tmp_path, reward, message):
    with pytest.raises(InputError, match=message):
        rljax.train(TINY.replace(run=str(tmp_path / "bad"), warm_start_steps=0), reward)


def test_a_reward_that_raises_is_named_with_its_line_and_leaves_no_folder(tmp_path):
    def broken(completions):
        return [json.loads(completion) for completion in completions]

    with pytest.raises(
        InputError, match=rf"broken raised JSONDecodeError.* at {re.escape(__file__)}:\d+; fix the function"
    ):
        rljax.train(TINY.replace(run=str(tmp_path / "run"), warm_start_steps=0), broken)
    assert not list(tmp_path.iterdir())


def test_components_and_failures_of_a_reward_are_logged_separately(tmp_path):
    def sometimes_fails(completions):
        return [Failed("timed_out", "too long") if i % 8 == 0 else 1.0 for i in range(len(completions))]

    reward = Weighted({"even": even_length, "done": sometimes_fails}, {"even": 1.0, "done": 0.5})
    config = TINY.replace(run=str(tmp_path / "run"), warm_start_steps=0, steps=2, checkpoint_every=1, max_failure_share=0.2)
    result = rljax.train(config.replace(algorithm="rloo", algorithm_options={}, eval_every=0), reward)
    for row in rows(result.run):
        if row["phase"] == "rl":
            assert row["reward_timed_out"] == TINY.sampling.prompts * TINY.sampling.group_size / 8
            assert row["reward_done"] == 1.0
            assert 0 < row["reward_even"] < 1
            assert row["reward"] == pytest.approx(row["reward_even"] + 0.5, abs=0.15)


def test_the_display_shows_the_progress_of_judging(tmp_path, monkeypatch):
    reported = []
    monkeypatch.setattr(PlainDisplay, "judging", lambda self, done, total: reported.append((done, total)))

    def reporting_reward(completions, progress):
        for done in range(len(completions)):
            progress(done + 1, len(completions))
        return even_length(completions)

    rljax.train(TINY.replace(run=str(tmp_path / "run"), warm_start_steps=0, steps=1), reporting_reward)
    rows = TINY.data.heldout_problems
    assert reported[:rows] == [(done, rows) for done in range(1, rows + 1)]
    assert len(reported) > rows


def test_a_reward_that_fails_too_often_stops_the_run(tmp_path):
    def fails(completions):
        return [Failed("raised", "KeyError: 'x'")] * len(completions)

    with pytest.raises(InputError, match="more than the 10% that may fail"):
        rljax.train(TINY.replace(run=str(tmp_path / "run"), warm_start_steps=0), fails)


def test_judging_during_sampling_changes_no_metric(finished, tmp_path):
    """Compares rewards, metrics, samples and answers of complete runs."""
    path = tmp_path / "meanwhile"
    rljax.train(TINY.replace(run=str(path), reward_groups=2), even_length)
    assert rows(path) == rows(finished.run)
    assert (path / "samples.jsonl").read_text() == (finished.run / "samples.jsonl").read_text()
