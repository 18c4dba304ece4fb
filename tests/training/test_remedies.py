"""`--remedy auto`: which setting each alarm changes and by how much, on example rows and in complete runs."""

import json

import chex
import numpy as np
import pytest
from small_runs import SMALL, even_length, is_time, stopping_after

import rljax
from rljax.cli.doctor_output import settings_of
from rljax.options.remedies import (
    ADJUSTMENTS,
    OPTIMIZER_SETTINGS,
    AppliedRemedy,
    apply_remedies,
    choose_changes,
    select_effective,
)
from rljax.tracking.alarms import BY_NAME, AlarmState
from rljax.tracking.rows import read_metrics
from rljax.tracking.run_folder import RunFolder
from rljax.training.config import TrainConfig
from rljax.training.interrupt import Interrupted

CONFIG = TrainConfig.flat(learning_rate=0.027, max_tries=3, max_grad_norm=1.0)


def changes_by(alarm, steps):
    """All changes if this alarm is raised at every step."""
    made = ()
    for step in range(steps):
        made = (*made, *choose_changes(CONFIG, made, {alarm}, step))
    return made


def changes_in(rows):
    """All changes in a run with these rows, watched from its first step."""
    made, watch = (), AlarmState()
    for row in rows:
        watch, _ = watch.after_row(row)
        made = (*made, *choose_changes(CONFIG, made, select_effective(watch.active, own_optimizer=False), row["step"]))
    return [(change.step, change.alarm, change.setting) for change in made]


def test_alarms_change_settings_that_exist():
    assert set(ADJUSTMENTS) <= set(BY_NAME)
    assert {adjustment.setting for adjustment in ADJUSTMENTS.values()} <= set(CONFIG.to_flat())
    for adjustment in ADJUSTMENTS.values():
        assert (adjustment.factor < 1) == (adjustment.bound < 1)


@pytest.mark.parametrize(
    ("alarm", "setting", "values"),
    [
        ("entropy_collapse", "learning_rate", [0.009, 0.003, 0.001]),
        ("large_steps", "learning_rate", [0.009, 0.003, 0.001]),
        ("gradient_jumps", "max_grad_norm", [0.5, 0.25, 0.125]),
        ("groups_missing", "max_tries", [6, 12]),
    ],
)
def test_a_setting_changes_at_most_every_ten_steps_and_up_to_a_bound(alarm, setting, values):
    made = changes_by(alarm, 45)
    assert [change.step for change in made] == list(range(0, 10 * len(values), 10))
    np.testing.assert_allclose([change.after for change in made], values, rtol=1e-12)
    assert {change.setting for change in made} == {setting}
    assert apply_remedies(CONFIG, made).to_flat()[setting] == made[-1].after
    assert type(made[-1].after) is type(CONFIG.to_flat()[setting])


def test_two_alarms_change_one_setting_once():
    assert choose_changes(CONFIG, (), {"one_response", "too_easy"}, 5) == ()
    (both,) = choose_changes(CONFIG, (), {"entropy_collapse", "clipped_low"}, 5)
    assert both.setting == "learning_rate"
    assert both.after == pytest.approx(0.009)


def test_two_settings_are_changed_in_one_step():
    found = choose_changes(CONFIG, (), {"groups_missing", "clipped_low", "large_steps"}, 5)
    assert [(change.alarm, change.setting) for change in found] == [
        ("large_steps", "learning_rate"),
        ("groups_missing", "max_tries"),
    ]


def test_only_a_lasting_alarm_causes_another_change():
    """In the first run the alarm lasts from step 5 to step 31; in the second, the problem is gone after the first cut."""
    rows = [{"phase": "rl", "step": step, "kl": 0.5} for step in range(1, 32)]
    lasting = [(step, "large_steps", "learning_rate") for step in (5, 15, 25)]
    assert changes_in(rows) == lasting
    assert changes_in([row | {"kl": 0.5 if row["step"] <= 5 else 0.0} for row in rows]) == lasting[:1]


def test_alarm_soon_after_a_change_waits_ten_steps():
    """Steps are too large until the first cut at step 5; the alarm of tokens clipped from step 8 on waits until step 15."""
    rows = [
        {"phase": "rl", "step": step, "kl": 0.5 if step <= 5 else 0.0, "clip_fraction_low": 0.5 if step >= 8 else 0.0}
        for step in range(1, 18)
    ]
    assert changes_in(rows) == [(5, "large_steps", "learning_rate"), (15, "clipped_low", "learning_rate")]


def test_settings_of_a_passed_optimizer_are_not_changed():
    assert select_effective(set(BY_NAME), own_optimizer=False) == set(ADJUSTMENTS)
    assert select_effective(set(BY_NAME), own_optimizer=True) == {
        name for name, adjustment in ADJUSTMENTS.items() if adjustment.setting not in OPTIMIZER_SETTINGS
    }


PROVOKED = SMALL.replace(
    algorithm="grpo",
    remedy="auto",
    train_problems=24,
    heldout_problems=4,
    steps=8,
    prompts=4,
    group_size=4,
    minibatches=2,
    microbatch_rows=8,
    learning_rate=0.9,
    learning_rate_warmup=0,
    eval_every=0,
    checkpoint_every=100,
)
"""Updates are too large from the start, so the alarm "large steps" is raised at step 5."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folders of an uninterrupted run and of a run that was stopped after the remedy and resumed."""
    whole, stopped = (tmp_path_factory.mktemp("remedies") / name for name in ("whole", "stopped"))
    rljax.train(PROVOKED.replace(run=str(whole)), even_length)
    with pytest.raises(Interrupted):
        rljax.train(PROVOKED.replace(run=str(stopped)), stopping_after(7))
    (stopped / "remedies.jsonl").write_text("of a future that was cut off\n")
    rljax.train(resume=stopped, reward=even_length)
    return whole, stopped


def rows_of(run):
    rows = [row for row in read_metrics(run / "metrics.jsonl") if row["phase"] == "rl"]
    return [{name: value for name, value in row.items() if not is_time(name)} for row in rows]


def test_run_applies_and_reports_a_remedy(runs):
    run, _ = runs
    np.testing.assert_allclose([row["learning_rate"] for row in rows_of(run)], [0.9] * 5 + [0.3] * 3, rtol=1e-6)
    (row,) = map(json.loads, (run / "remedies.jsonl").read_text().splitlines())
    assert AppliedRemedy(**row) == AppliedRemedy(5, "large_steps", "learning_rate", 0.9, pytest.approx(0.3))
    line = "--learning-rate is 0.3 in place of 0.9 after step 5, because of the alarm large steps."
    assert f"remedy: {line} The next step is compiled again." in (run / "log.txt").read_text()
    folder = RunFolder.open(run)
    assert settings_of(folder).notes == (line,)
    assert json.loads((run / "config.json").read_text())["optimization"]["learning_rate"] == 0.9


def test_a_resumed_run_has_the_remedies_of_its_checkpoint(runs):
    whole, stopped = runs
    assert rows_of(stopped) == rows_of(whole)
    assert (stopped / "remedies.jsonl").read_bytes() == (whole / "remedies.jsonl").read_bytes()
    chex.assert_trees_all_equal(*(rljax.load(run, which="last", reward=even_length).params for run in runs))


def test_evaluations_do_not_affect_the_remedies():
    """`--eval-every` may therefore change when a run with `--remedy auto` is resumed."""
    assert all(BY_NAME[name].phase == "rl" for name in ADJUSTMENTS)
    alone, evaluated, seen = AlarmState(), AlarmState(), set()
    for step in range(1, 40):
        row = {"phase": "rl", "step": step, "entropy": max(0.01, 1 - step / 20), "kl": 0.2 * (step > 30), "reward": 1.0}
        evaluated, _ = evaluated.after_row({"phase": "eval", "step": step - 1, "accuracy": 1 - step / 40})
        (alone, _), (evaluated, _) = alone.after_row(row), evaluated.after_row(row)
        assert alone.active & {*ADJUSTMENTS} == evaluated.active & {*ADJUSTMENTS}
        seen |= alone.active
    assert {"entropy_collapse", "large_steps"} <= seen
