"""The algorithm selector: its ridge regression is correct, and a choice never uses the scores of its own task."""

import json

import numpy as np
import pytest
import selector
from selector import choose, cross_fitted_best, leave_out, ridge, standardize

from lab.claim_tasks import facts_of, scores_in_results, with_algorithm, world_hash
from lab.claims import find_claim_file
from lab.rows import rows_of


def test_ridge_solves_least_squares():
    random = np.random.default_rng(0)
    facts, gains, penalty = random.normal(size=(12, 3)), random.normal(size=(12, 4)), 0.7
    rows = np.concatenate([np.c_[facts, np.ones(12)], np.sqrt(penalty) * np.eye(4)[:3]])
    expected = np.linalg.lstsq(rows, np.concatenate([gains, np.zeros((3, 4))]), rcond=None)[0]
    np.testing.assert_allclose(ridge(facts, gains, penalty=penalty), expected, atol=1e-10)


def test_constant_facts_have_no_weight():
    facts = np.array([[1.0, 5.0], [3.0, 5.0]])
    np.testing.assert_allclose(standardize(facts, facts), [[-1.0, 0.0], [1.0, 0.0]])
    model = ridge(np.zeros((2, 2)), np.array([[1.0, 0.0], [0.0, 0.5]]), penalty=0.0)
    np.testing.assert_allclose(model, [[0.0, 0.0], [0.0, 0.0], [0.5, 0.25]])


def only_itself(count):
    """Relations in which each task is related only to itself, so that only the task itself is left out."""
    return np.eye(count, dtype=bool)


def test_leave_out_ignores_related_tasks():
    random = np.random.default_rng(1)
    facts, scores, pairs = random.normal(size=(10, 2)), random.uniform(size=(10, 3, 4)), np.arange(10) // 2
    related = pairs[:, None] == pairs
    found = leave_out(facts, scores, related, fixed=0, penalty=1.0)
    for pair in range(5):
        changed = scores.copy()
        changed[pairs == pair] = changed[pairs == pair, ::-1] * 7
        again = leave_out(facts, changed, related, fixed=0, penalty=1.0)
        np.testing.assert_array_equal(again.chosen[pairs == pair], found.chosen[pairs == pair])
    seen = leave_out(facts, changed, only_itself(10), fixed=0, penalty=1.0)
    assert (seen.chosen[pairs == 4] != found.chosen[pairs == 4]).any()


def test_leave_out_ignores_scoring_seed():
    random = np.random.default_rng(5)
    facts, scores = random.normal(size=(9, 2)), random.uniform(size=(9, 3, 4))
    found, changed = leave_out(facts, scores, only_itself(9), fixed=0, penalty=1.0), scores.copy()
    changed[..., 2] = random.uniform(size=(9, 3)) * 100
    again = leave_out(facts, changed, only_itself(9), fixed=0, penalty=1.0)
    np.testing.assert_array_equal(again.chosen[:, 2], found.chosen[:, 2])


def test_leave_out_regrets():
    random = np.random.default_rng(6)
    facts, scores = random.normal(size=(5, 2)), random.uniform(size=(5, 3, 4))
    found = leave_out(facts, scores, only_itself(5), fixed=1, penalty=1.0)
    for n in range(5):
        by_seed = {"selector": [], "best_on_others": [], "fixed": []}
        for seed in range(4):
            others = [other for other in range(4) if other != seed]
            best = max(range(3), key=lambda a: sum(scores[n, a, other] for other in others))
            usual = max(range(3), key=lambda a: sum(scores[m, a, other] for m in range(5) if m != n for other in others))
            choices = {"selector": found.chosen[n, seed], "best_on_others": usual, "fixed": 1}
            for name, chosen in choices.items():
                by_seed[name].append(scores[n, best, seed] - scores[n, chosen, seed])
            assert found.usual[n, seed] == usual
        for name, regrets in by_seed.items():
            assert getattr(found, name)[n] == pytest.approx(np.mean(regrets))


def test_choose_ignores_task_difficulty():
    """Adding a constant to all scores of a task changes no choice."""
    random = np.random.default_rng(2)
    facts, scores = random.normal(size=(9, 2)), random.uniform(size=(9, 3))
    task = np.array([0.3, -0.1])
    assert choose(facts, scores, task, penalty=1.0) == choose(facts, scores + 10 * facts[:, :1], task, penalty=1.0)


def test_leave_out_learns_rule_from_facts():
    facts = np.random.default_rng(3).normal(size=(20, 2))
    scores = np.stack([facts[:, 0], -facts[:, 0], np.full(20, 0.0)], 1)[:, :, None].repeat(3, -1)
    found = leave_out(facts, scores, only_itself(20), fixed=2, penalty=0.1)
    assert found.selector.mean() < 0.05 < found.fixed.mean()
    assert found.selector.mean() < found.best_on_others.mean()


def test_leave_out_invalid_relations():
    facts, scores = np.zeros((3, 1)), np.zeros((3, 2, 2))
    with pytest.raises(ValueError, match="two or more unrelated tasks, got one with 1"):
        leave_out(facts, scores, np.array([[1, 0, 0], [0, 1, 1], [0, 0, 1]], bool), fixed=0, penalty=1.0)
    with pytest.raises(ValueError, match="each task must be related to itself"):
        leave_out(facts, scores, np.zeros((3, 3), bool), fixed=0, penalty=1.0)


def test_cross_fitted_best_is_unbiased():
    """The highest of six means is biased upwards by more than half a standard deviation; the cross-fitted best is unbiased."""
    scores = np.random.default_rng(4).normal(size=(4000, 6, 4))
    assert scores.mean(-1).max(1).mean() > 0.5
    assert abs(cross_fitted_best(scores).mean()) < 0.05
    assert cross_fitted_best(scores + 9 * np.eye(6)[2][:, None]).mean() == pytest.approx(9, abs=0.05)
    with pytest.raises(ValueError, match="two or more seeds, got 1"):
        cross_fitted_best(scores[..., :1])


@pytest.fixture(scope="module")
def experiment():
    """The imported module `selector`."""
    return selector


def test_committed_scores_match_claims_and_page(experiment):
    rows = json.loads(experiment.OUT.read_text(encoding="utf-8"))
    assert rows_of(experiment.OUT, experiment.hash_settings) == rows
    pages, results, found = experiment.read_claims()
    assert {(row["claim"], row["arm"]) for row in rows} == {(task.page.name, task.arm) for task in found.tasks}
    tables = f"{experiment.tasks_text(found, rows)}\n{experiment.report(rows)}"
    assert experiment.OUT.with_suffix(".md").read_text(encoding="utf-8").endswith(tables)
    for row in rows:
        task = next(task for task in found.tasks if (task.page.name, task.arm) == (row["claim"], row["arm"]))
        committed = scores_in_results(task, experiment.ALGORITHMS[row["algorithm"]], pages, results)
        assert (row["from"], row["scores"] if row["from"] else []) == (committed or ("", []))
        assert (row["claims"], row["world"]) == (task.claims, world_hash(task.setting.world))
    # Settings with a delay, with a sampler, and with fixed-length steps and a judge.
    for name in ("staleness_gepo", "masked_weights", "prompt_mean"):
        row = next(row for row in rows if row["claim"] == name)
        task = next(task for task in found.tasks if (task.page.name, task.arm) == (name, row["arm"]))
        assert facts_of(task.setting, task.seeds) == pytest.approx(row["facts"], rel=0.02)


def test_added_arm_is_measured_like_own_arms(experiment):
    """Measures an existing arm of the claim again, as if it were missing."""
    row = next(row for row in json.loads(experiment.OUT.read_text(encoding="utf-8")) if row["from"] == "cispo: cispo")
    page = find_claim_file(row["claim"])
    changed = with_algorithm(page.claim.arms[row["arm"]], experiment.ALGORITHMS["cispo"])
    np.testing.assert_allclose(page.claim.measure(changed, page.claim.seed_range[:2])["area"], row["scores"][:2], rtol=2e-3)
