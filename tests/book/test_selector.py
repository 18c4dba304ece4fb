"""The selector: its regression against a solver by hand, and what it may not see of the task that it chooses for."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from rljax.book.experiment_rows import rows_of
from rljax.book.selector import choice, cross_fitted_best, leave_one_out, ridge, standardised


def test_ridge_solves_its_least_squares_problem():
    random = np.random.default_rng(0)
    facts, gains, penalty = random.normal(size=(12, 3)), random.normal(size=(12, 4)), 0.7
    rows = np.concatenate([np.c_[facts, np.ones(12)], np.sqrt(penalty) * np.eye(4)[:3]])
    expected = np.linalg.lstsq(rows, np.concatenate([gains, np.zeros((3, 4))]), rcond=None)[0]
    np.testing.assert_allclose(ridge(facts, gains, penalty=penalty), expected, atol=1e-10)


def test_facts_that_never_differ_count_for_nothing():
    facts = np.array([[1.0, 5.0], [3.0, 5.0]])
    np.testing.assert_allclose(standardised(facts, facts), [[-1.0, 0.0], [1.0, 0.0]])
    model = ridge(np.zeros((2, 2)), np.array([[1.0, 0.0], [0.0, 0.5]]), penalty=0.0)
    np.testing.assert_allclose(model, [[0.0, 0.0], [0.0, 0.0], [0.5, 0.25]])


def test_a_choice_does_not_see_the_scores_of_its_own_task():
    random = np.random.default_rng(1)
    facts, scores = random.normal(size=(9, 2)), random.uniform(size=(9, 3))
    found = leave_one_out(facts, scores, fixed=0)
    for task in range(9):
        changed = scores.copy()
        changed[task] = changed[task][::-1] * 7
        assert leave_one_out(facts, changed, fixed=0).chosen[task] == found.chosen[task]
        assert found.selector[task] == scores[task].max() - scores[task, found.chosen[task]]
    np.testing.assert_allclose(found.fixed, scores.max(1) - scores[:, 0])
    assert (found.selector >= 0).all()


def test_hard_tasks_do_not_outweigh_easy_ones():
    """A constant of a task, the same for all its algorithms, changes no choice."""
    random = np.random.default_rng(2)
    facts, scores = random.normal(size=(9, 2)), random.uniform(size=(9, 3))
    task = np.array([0.3, -0.1])
    assert choice(facts, scores, task, penalty=1.0) == choice(facts, scores + 10 * facts[:, :1], task, penalty=1.0)


def test_it_learns_a_rule_that_facts_decide():
    facts = np.random.default_rng(3).normal(size=(20, 2))
    scores = np.stack([facts[:, 0], -facts[:, 0], np.full(20, 0.0)], 1)
    found = leave_one_out(facts, scores, fixed=2, penalty=0.1)
    assert found.selector.mean() < 0.05 < found.fixed.mean()
    assert found.selector.mean() < found.best_on_others.mean()


def test_a_table_of_one_task_is_refused():
    with pytest.raises(ValueError, match="two or more tasks, got 1 and 1"):
        leave_one_out(np.zeros((1, 2)), np.zeros((1, 2)), fixed=0)


def test_the_best_of_equal_algorithms_is_no_better_than_they_are():
    """The highest of six means is half a standard deviation of a score above their level; the cross-fitted one is at the level."""
    scores = np.random.default_rng(4).normal(size=(4000, 6, 4))
    assert scores.mean(-1).max(1).mean() > 0.5
    assert abs(cross_fitted_best(scores).mean()) < 0.05
    assert cross_fitted_best(scores + 9 * np.eye(6)[2][:, None]).mean() == pytest.approx(9, abs=0.05)
    with pytest.raises(ValueError, match="two or more seeds, got 1"):
        cross_fitted_best(scores[..., :1])


def test_the_committed_scores_are_of_the_present_settings_and_their_page_is_made_from_them():
    file = Path(__file__).resolve().parents[2] / "experiments" / "choosing" / "selector.py"
    spec = importlib.util.spec_from_file_location(file.stem, file)
    experiment = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(experiment)
    rows = json.loads(experiment.OUT.read_text(encoding="utf-8"))
    assert rows_of(experiment.OUT, lambda row: experiment.settings_of(row["algorithm"])) == rows
    assert experiment.OUT.with_suffix(".md").read_text(encoding="utf-8").endswith(experiment.report(rows))
