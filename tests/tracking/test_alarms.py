"""Alarms: each is raised once by its own problem and never by a healthy run, is cleared after the problem ends, and names
only flags and metrics that exist."""

import json
import math
import re

import pytest

from rljax.tracking.alarm_conditions import RECENT, History, above, risen_to, spiked
from rljax.tracking.alarms import ALARMS, BY_NAME, QUIET, AlarmState, unmeasured_alarms, watch_rows
from rljax.tracking.glossary import GLOSSARY
from rljax.training.config import TrainConfig

STEPS = 120


def healthy_row(step):
    """Return a row of a run that learns, with noise, falling entropy, and groups that become easy."""
    progress, noise = step / STEPS, 1 + 0.2 * math.sin(7.0 * step)
    accuracy = min(0.4 + 0.6 * progress, 0.96)
    return {
        "phase": "rl",
        "step": step,
        "reward": accuracy * (1 + 0.05 * math.sin(3.0 * step)),
        "accuracy": accuracy,
        "reward_variance": accuracy * (1 - accuracy),
        "response_length": 26 + 2 * progress * noise,
        "truncated_share": 0.01 * noise,
        "reward_length_correlation": 0.4 * noise,
        "repetition": 0.02 * noise,
        "commonest_response": 0.01,
        "groups_all_right": 0.8 * progress,
        "groups_all_wrong": 0.2 * (1 - progress),
        "unfilled_groups": 2.0 * (step % 17 == 0),
        "trained_groups": 32.0,
        "staleness": 0.1,
        "entropy": 0.04 * (1 - 0.6 * progress) * noise,
        "kl": 1e-4 * noise,
        "kl_to_reference": 0.05 * progress,
        "sampler_gap": 1e-7,
        "clip_fraction_low": 0.003,
        "clip_fraction_high": 0.004,
        "up_clipped_probability": 0.02,
        "grad_norm": 0.5 * noise * (3 if step == 60 else 1),
        "advantage_variance": 0.9 * noise,
        "skipped_updates": 0.0,
        "explained_variance": 0.3 * progress * noise,
    }


def change_from(step, **metrics):
    """Return a function from a step to the metrics that it changes, none before `step`; values may be functions of the step."""
    return lambda now: (
        {} if now < step else {name: value(now) if callable(value) else value for name, value in metrics.items()}
    )


PROBLEMS = {
    "reward_absent": change_from(30, reward=None, accuracy=None, reward_variance=None),
    "reward_constant": change_from(30, reward_variance=0.0),
    "no_answer_stated": change_from(30, unstated_share=0.9),
    "reward_falls": change_from(60, reward=0.3),
    "heldout_falls": change_from(STEPS),  # tested below, because it needs evaluations
    "entropy_collapse": change_from(30, entropy=0.001),
    "entropy_explosion": change_from(30, entropy=lambda step: 0.04 + 0.05 * (step - 30)),
    "far_from_reference": change_from(30, kl_to_reference=lambda step: 0.05 + 0.01 * (step - 30)),
    "large_steps": change_from(30, kl=0.5),
    "advantage_jumps": change_from(60, advantage_variance=50.0),
    "gradient_jumps": change_from(60, grad_norm=20.0),
    "updates_skipped": change_from(30, skipped_updates=lambda step: float(step % 4 == 0)),
    "critic_blind": change_from(1, explained_variance=lambda step: 0.02 * math.sin(step) - 0.01),
    "clipped_low": change_from(30, clip_fraction_low=0.4),
    "clipped_high": change_from(30, clip_fraction_high=0.4, up_clipped_probability=0.9),
    "exploration_clipped": change_from(30, clip_fraction_high=0.1, up_clipped_probability=0.03),
    "truncated": change_from(30, truncated_share=0.6),
    "repetition": change_from(30, repetition=0.8),
    "length_grows": change_from(
        30, response_length=lambda step: 26 + 2 * (step - 30), accuracy=0.4, reward=0.4, reward_length_correlation=0.0
    ),
    "length_shrinks": change_from(30, response_length=4.0, accuracy=0.4, reward=0.4),
    "reward_follows_length": change_from(
        30, response_length=lambda step: 26 + 2 * (step - 30), reward_length_correlation=0.9
    ),
    "one_response": change_from(30, commonest_response=0.95),
    "too_easy": change_from(30, groups_all_right=0.97),
    "too_hard": change_from(30, groups_all_wrong=0.95),
    "nothing_trained": change_from(30, grad_norm=None, correction_cut=1.0),
    "groups_missing": change_from(30, unfilled_groups=24.0, trained_groups=8.0),
    "tokens_masked": change_from(30, surrogate_masked=0.45),
    "sampler_gap": change_from(30, sampler_gap=0.05),
}
"""Alarm -> the problem that raises it."""


def run_rows(problem=lambda step: {}, steps=STEPS):
    """Yield the rows of a run with a problem; metrics that are None are absent."""
    for step in range(1, steps + 1):
        row = healthy_row(step) | problem(step)
        yield {name: value for name, value in row.items() if value is not None}


def raised_alarms(rows):
    """Return the names of the alarms that are raised, with their steps."""
    return [(event.alarm.name, event.step) for event in watch_rows(rows)[1] if event.what == "raised"]


def test_a_run_that_learns_raises_nothing():
    assert raised_alarms(run_rows()) == []


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - {"heldout_falls"}))
def test_each_problem_raises_its_alarm_once_and_soon(name):
    ((found, step),) = raised_alarms(run_rows(PROBLEMS[name]))
    assert found == name
    began = next((now for now in range(1, STEPS) if PROBLEMS[name](now)), 1)
    assert began <= step <= began + 40


def test_every_alarm_has_a_problem():
    assert set(PROBLEMS) == set(BY_NAME)
    assert len(BY_NAME) == len(ALARMS)


@pytest.mark.parametrize(
    ("reward", "variance", "seen"),
    [
        (0.7, 0.0, "reward_variance is 0 in"),
        (0.7, 1e-33, "reward_variance is 0 in"),  # rounding in the mean of equal rewards
        (5e-31, 2.5e-61, "rewards differ by about 5e-31 in"),
        (1e8, 0.0, "reward_variance is 0 in"),  # 1e8 and 1e8 + 1 are the same 32-bit number
        (0.5, 0.25, None),
        (1e17, 1e30, None),
    ],
)
def test_equal_rewards_and_tiny_differences_are_distinguished(reward, variance, seen):
    rows = [{"phase": "rl", "step": step, "reward": reward, "reward_variance": variance} for step in range(1, 12)]
    found = [event.seen for event in watch_rows(rows)[1] if event.alarm.name == "reward_constant"]
    assert len(found) == (seen is not None)
    assert all(text.startswith(seen) for text in found)
    assert "32-bit" in BY_NAME["reward_constant"].meaning


def evaluations(*accuracies):
    return [{"phase": "eval", "step": 10 * i, "accuracy": accuracy} for i, accuracy in enumerate(accuracies)]


def test_only_repeated_falls_of_held_out_accuracy_are_reported():
    assert raised_alarms(evaluations(0.35, 0.8, 0.75, 0.78, 0.7, 0.8)) == []
    assert raised_alarms(evaluations(0.35, 0.8, 0.4, 0.8)) == []
    assert raised_alarms(evaluations(0.35, 0.8, 0.4, 0.3, 0.2)) == [("heldout_falls", 30)]


def test_an_alarm_is_cleared_after_quiet_rows_and_raised_again():
    def truncation(step):
        return {"truncated_share": 0.9} if 20 <= step < 30 or step >= 60 else {}

    events = [(event.what, event.step) for event in watch_rows(run_rows(truncation))[1]]
    (first, raised), (second, cleared), (third, raised_again) = events
    assert (first, second, third) == ("raised", "cleared", "raised")
    assert 20 <= raised <= 24
    assert 30 + QUIET <= cleared <= 34 + QUIET
    assert 60 <= raised_again <= 64


def test_a_watch_continued_from_half_the_rows_equals_one_of_all_rows():
    rows = list(run_rows(PROBLEMS["entropy_collapse"]))
    half, before = watch_rows(json.loads(json.dumps(rows[:50])))
    events = list(before)
    for row in rows[50:]:
        half, new = half.after_row(row)
        events += new
    assert (half, events) == watch_rows(rows)
    assert len(half.history.recent) == RECENT < half.history.steps == STEPS


def test_metrics_that_are_not_finite_count_as_absent():
    rows = [healthy_row(step) | {"entropy": math.nan, "grad_norm": math.inf, "kl": None} for step in range(1, 60)]
    assert raised_alarms(rows) == []


def test_other_phases_are_ignored():
    row = {"phase": "warm_start", "step": 1, "entropy": 9.0}
    assert AlarmState().after_row(row) == (AlarmState(), [])
    assert History().after_row(row) == History()


@pytest.mark.parametrize("alarm", ALARMS, ids=lambda alarm: alarm.name)
def test_flags_and_metrics_of_an_alarm_exist(alarm):
    flags = {f"--{name.replace('_', '-')}" for name in TrainConfig().to_flat()}
    assert alarm.remedy.flag in flags
    assert alarm.remedy.flag in alarm.remedy.change
    text = f"{alarm.meaning} {' '.join(alarm.remedy)}"
    assert set(re.findall(r"--[a-z-]+[a-z]", text)) <= flags
    assert set(alarm.metrics) <= {entry.name for entry in GLOSSARY}
    assert alarm.metrics
    assert alarm.meaning.endswith(".")
    assert not any(part.endswith(".") for part in alarm.remedy)


def test_an_event_explains_its_alarm_and_the_remedy():
    event = watch_rows(run_rows(PROBLEMS["truncated"]))[1][0]
    assert event.text().startswith(f"truncated at step {event.step}: truncated_share is ")
    assert "(limit 0.25). Many responses are truncated" in event.text()
    assert event.text().endswith("room to finish, or a reason to be brief.")
    row = event.to_json()
    assert (row["alarm"], row["event"], row["flag"], row["metrics"]) == (
        "truncated", "raised", "--max-response-tokens", ["truncated_share"],
    )  # fmt: skip
    json.dumps(row, allow_nan=False)


def test_alarms_whose_metrics_are_missing_are_listed():
    rows = [{name: value for name, value in row.items() if name != "kl_to_reference"} for row in run_rows(steps=20)]
    assert find_unmeasured([*rows, *evaluations(0.5)]) == {"far_from_reference": ("kl_to_reference",)}


def test_evaluations_and_rl_steps_measure_different_metrics():
    """An evaluation has no step's metrics, nor a step an evaluation's; a metric without a value is not measured."""
    rows = [row | {"kl_to_reference": None} for row in run_rows(steps=20)]
    assert find_unmeasured(rows) == {"far_from_reference": ("kl_to_reference",), "heldout_falls": ("accuracy",)}
    assert find_unmeasured([*rows, {"phase": "eval", "step": 20, "kl_to_reference": 0.1, "accuracy": None}]).keys() == {
        "far_from_reference",
        "heldout_falls",
    }


def find_unmeasured(rows):
    watch, events = watch_rows(rows)
    return unmeasured_alarms(watch.history, events)


def test_alarms_that_were_or_can_be_raised_are_not_listed_as_unmeasured():
    rows = [{"phase": "rl", "step": step, "response_length": 4.0, "staleness": 9.0} for step in range(1, 9)]
    watch, events = watch_rows(rows)
    assert {"reward_absent", "sampler_gap"} == {event.alarm.name for event in events}
    unmeasured = unmeasured_alarms(watch.history, events)
    assert not {"reward_absent", "sampler_gap", "length_grows", "length_shrinks"} & set(unmeasured)
    assert unmeasured["critic_blind"] == ("explained_variance",)
    assert unmeasured["exploration_clipped"] == ("clip_fraction_high", "up_clipped_probability")
    assert "reward_absent" not in find_unmeasured(rows[:1]), "this alarm needs no metric"
    assert find_unmeasured([{"phase": "rl", "step": 1}])["sampler_gap"] == ("sampler_gap", "staleness")
    for alarm in ALARMS:
        assert {name for names in alarm.needed or () for name in names} <= set(alarm.metrics)


@pytest.mark.parametrize("name", ["length_grows", "length_shrinks"])
def test_a_length_that_changes_while_the_reward_rises_raises_no_alarm(name):
    def improve(step):
        return PROBLEMS[name](step) | {"reward": 0.4 + 0.006 * step, "accuracy": 1.0}

    assert raised_alarms(run_rows(lambda step: PROBLEMS[name](step) | {"accuracy": 1.0, "reward": 0.4})) != []
    assert raised_alarms(run_rows(improve)) == []


def rows_with(name, steps, values):
    return [
        {"phase": "rl", "step": step} | ({name: values[step]} if step in values else {}) for step in range(1, steps + 1)
    ]


def test_old_values_alone_do_not_meet_a_condition():
    rows = rows_with("kl", 60, dict.fromkeys(range(1, 40), 0.5))
    histories = [watch_rows(rows[:end])[0].history for end in (39, 43, 60)]
    assert [above("kl", 0.1)(each) is not None for each in histories] == [True, True, False]
    jump = rows_with("kl", 60, dict.fromkeys(range(1, 30), 0.01) | dict.fromkeys((30, 31, 32), 5.0))
    assert spiked("kl", 10.0)(watch_rows(jump[:32])[0].history) is not None
    assert spiked("kl", 10.0)(watch_rows(jump)[0].history) is None


@pytest.mark.parametrize(("start", "limit"), [(0.04, "0.3 above that"), (2.0, "3 times that")])
def test_the_message_states_the_crossed_limit(start, limit):
    values = {step: start if step <= 20 else 9.0 for step in range(1, 31)}
    message = risen_to("entropy", 3.0, by=0.3)(watch_rows(rows_with("entropy", 30, values))[0].history)
    assert message.endswith(f"(limit {limit})")
