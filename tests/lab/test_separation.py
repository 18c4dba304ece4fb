"""Arms that a comparison can separate, and the committed comparison of arms on the generated tasks."""

import importlib.util
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from lab.claims import Interval
from lab.separation import draw_arms, draw_comparisons, is_apart, report, tiers

EXPERIMENT = Path(__file__).resolve().parents[2] / "experiments" / "tasks_that_separate.py"


def load_experiment(file):
    """Load an experiment as a module."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def experiment():
    return load_experiment(EXPERIMENT)


@pytest.fixture(scope="module")
def rows():
    return json.loads(EXPERIMENT.with_suffix(".json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("seed", range(20))
def test_tiers_are_a_largest_set_of_separate_arms(seed):
    bounds = np.random.default_rng(seed).uniform(0, 4, (6, 1)) + np.array([0.0, 1.0])
    found = {str(index): Interval(float(pair.mean()), *map(float, pair), 5) for index, pair in enumerate(bounds)}
    chosen = tiers(found)

    def all_apart(names):
        return all(
            found[a].high < found[b].low or found[b].high < found[a].low for a, b in itertools.combinations(names, 2)
        )

    assert all_apart(chosen)
    assert not any(all_apart(names) for names in itertools.combinations(found, len(chosen) + 1))


def test_intervals_that_touch_or_are_unknown_are_not_separate():
    low = Interval(0.5, 0.0, 1.0, 5)
    assert not is_apart(low, Interval(1.5, 1.0, 2.0, 5))
    assert is_apart(Interval(1.5, 1.01, 2.0, 5), low)
    assert tiers({"one seed": Interval(0.5, math.nan, math.nan, 1)}) == []


def test_a_picture_has_one_row_per_arm_with_all_its_seeds():
    axes = Figure().subplots()
    draw_arms(axes, {"high": {0: 3.0, 1: 5.0}, "low": {0: 1.0, 1: 2.0, 2: 1.5}})
    assert [label.get_text() for label in axes.get_yticklabels()] == ["low", "high"]
    seeds = [sorted(line.get_xdata()) for line in axes.get_lines() if line.get_marker() == "."]
    assert seeds == [[1.0, 1.5, 2.0], [3.0, 5.0]]
    means = [float(bars.lines[0].get_xdata()[0]) for bars in axes.containers]
    assert means == [1.5, 4.0]


def test_committed_rows_are_current_and_unique(experiment, rows):
    assert experiment.read_rows(EXPERIMENT.with_suffix(".json")) == rows
    assert len({(row["task"], row["arm"], row["seed"]) for row in rows}) == len(rows) > 0
    assert all(len(case.arms) == 4 for case in experiment.CASES.values())


def test_the_page_matches_the_committed_rows(experiment, rows):
    page = EXPERIMENT.with_suffix(".md").read_text(encoding="utf-8")
    assert page.partition("\n")[2] == report(rows, experiment.CASES, also=experiment.ALSO)


def test_cases_are_named_after_their_tasks(experiment):
    tasks = {name: type(experiment.config_of(name).generated_task).__name__ for name in experiment.CASES}
    assert tasks.pop("stale") == "SumsConfig"
    assert tasks == {name: f"{name.capitalize()}Config" for name in tasks}
    delays = [experiment.config_of_arm("stale", arm, 0).sampling.delay for arm in experiment.CASES["stale"].arms]
    assert delays == [0, 16, 32, 64]


def test_a_task_with_too_few_seeds_is_not_decided(experiment):
    arms = experiment.CASES["exploit"].arms
    metrics = dict.fromkeys((experiment.GAIN, experiment.END, experiment.MEAN, "training reward at the end"), 0.5)
    complete_rows = [
        {
            "task": "exploit",
            "arm": arm,
            "seed": seed,
            "curve": [0.0, index],
            "numbers": {name: value + index for name, value in metrics.items()},
        }
        for index, arm in enumerate(arms)
        for seed in range(5)
    ]
    page, incomplete_page = (
        report(rows, experiment.CASES, also=experiment.ALSO) for rows in (complete_rows, complete_rows[:-1])
    )
    assert "Tasks that are decided: 1; with at least two arms apart: 1; with three: 1; with all four: 1." in page
    assert " < ".join(arms) in page
    assert "an arm has 4 of 5 seeds" in incomplete_page
    assert "Tasks that are decided: 0;" in incomplete_page


def test_a_row_of_other_settings_is_not_read(experiment, rows, tmp_path):
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([rows[0], rows[1] | {"settings": "other"}]))
    assert experiment.read_rows(file) == [rows[0]]


@pytest.mark.parametrize("one", [{0: 1.0}, {}])
def test_the_picture_omits_arms_that_have_not_been_run(tmp_path, one):
    seen = {"one": {"a": one, "b": {0: 2.0}}, "two": {"a": {}, "b": {}}}
    file = tmp_path / "arms.png"
    draw_comparisons(seen, file)
    height, width, _ = imread(file).shape
    assert (width, height) == (1100, 210)


def test_rows_of_unknown_seeds_are_not_read(experiment, rows, tmp_path):
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([rows[0] | {"seed": 99}, rows[0]]))
    assert experiment.read_rows(file) == [rows[0]]
    assert {task: {row["seed"] for row in rows if row["task"] == task} for task in experiment.CASES} == {
        task: set(case.seeds) for task, case in experiment.CASES.items()
    }


def test_committed_sampler_delays_are_up_to_date():
    file = EXPERIMENT.with_name("sampler_delay.py")
    delays = load_experiment(file)
    rows = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
    arms = sorted((row["algorithm"], row["delay"], row["seed"]) for row in rows)
    assert arms == sorted(itertools.product(delays.OPTIONS, delays.DELAYS, delays.Arguments().seeds))
    assert {row["settings"] for row in rows} == {delays.settings_hash()}
    assert file.with_suffix(".md").read_text(encoding="utf-8").endswith(delays.report(rows))


def test_the_cost_of_a_delay_is_paired_by_seed():
    delays = load_experiment(EXPERIMENT.with_name("sampler_delay.py"))
    accuracy = {(0, 1): 0.5, (0, 2): 0.7, (8, 1): 0.4, (8, 2): 0.65, (8, 3): 0.0}
    rows = [{"algorithm": "grpo", "delay": d, "seed": s, "last": value} for (d, s), value in accuracy.items()]
    assert delays.cost(rows, "grpo", 8, "last") == {1: 0.1, 2: 0.05}
