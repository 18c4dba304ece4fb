"""Arms that a comparison tells apart, and the committed comparison of arms on the generated tasks."""

import importlib.util
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from rljax.book.claims import Interval
from rljax.book.separation import is_apart, tiers

EXPERIMENT = Path(__file__).resolve().parents[2] / "experiments" / "tasks_that_separate.py"


@pytest.fixture(scope="module")
def experiment():
    spec = importlib.util.spec_from_file_location(EXPERIMENT.stem, EXPERIMENT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows():
    return json.loads(EXPERIMENT.with_suffix(".json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("seed", range(20))
def test_no_larger_choice_of_arms_is_apart(seed):
    ends = np.random.default_rng(seed).uniform(0, 4, (6, 1)) + np.array([0.0, 1.0])
    found = {str(place): Interval(float(pair.mean()), *map(float, pair), 5) for place, pair in enumerate(ends)}
    chosen = tiers(found)

    def all_apart(names):
        return all(
            found[a].high < found[b].low or found[b].high < found[a].low for a, b in itertools.combinations(names, 2)
        )

    assert all_apart(chosen)
    assert not any(all_apart(names) for names in itertools.combinations(found, len(chosen) + 1))


def test_intervals_that_touch_or_have_no_ends_are_not_apart():
    low = Interval(0.5, 0.0, 1.0, 5)
    assert not is_apart(low, Interval(1.5, 1.0, 2.0, 5))
    assert is_apart(Interval(1.5, 1.01, 2.0, 5), low)
    assert tiers({"one seed": Interval(0.5, math.nan, math.nan, 1)}) == []


def test_committed_rows_are_of_the_present_settings_and_complete(experiment, rows):
    assert experiment.read_rows(EXPERIMENT.with_suffix(".json")) == rows
    measured = {(row["task"], row["arm"], row["seed"]) for row in rows}
    assert len(measured) == len(rows)
    for task in {row["task"] for row in rows}:
        seeds = [
            {seed for name, arm, seed in measured if (name, arm) == (task, each)} for each in experiment.CASES[task].arms
        ]
        assert len(seeds) == 4
        assert all(each == seeds[0] and len(each) >= 5 for each in seeds)


def test_the_page_is_that_of_the_committed_rows(experiment, rows):
    page = EXPERIMENT.with_suffix(".md").read_text(encoding="utf-8")
    assert page.partition("\n")[2] == experiment.report(rows)


def test_a_row_of_other_settings_is_not_read(experiment, rows, tmp_path):
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([rows[0], rows[1] | {"settings": "other"}]))
    assert experiment.read_rows(file) == [rows[0]]
