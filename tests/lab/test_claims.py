"""Claims: the decision rule, the stored results, and the committed experiments."""

import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

import rljax
from lab.claim_plots import plot_all, plot_claim
from lab.claim_tasks import setting_of
from lab.claims import (
    agreement,
    at_rest,
    claim_files,
    difference_at_equal_success,
    find_claim_file,
    over_seeds,
    read_claim_file,
    still_learning,
    verdict_of,
)
from lab.keys import arm_key
from lab.results import budget_of, describe_contents, outcome_of, read_results, rekey, run_missing, summary_of
from lab.worlds import exact
from rljax.algorithms import grpo
from rljax.book.claims import VERDICTS, Interval, claims_folder, read_claim
from rljax.book.trainer_experiments import read_trainer_experiment, trainer_experiments
from rljax.cli import main
from rljax.errors import InputError

EXPERIMENT = '''"""Is two more than one?

Setting: arithmetic.
"""

import numpy as np

from lab.claims import Claim, difference

ARMS = {"one": 1.0, "two": 2.0}
STEPS = 3


def measure(value, seeds, more=0.0):
    """The value and some noise."""
    CALLS.append((value, list(seeds)))
    noise = [0.1 * (seed % 3) * value for seed in seeds]
    return {"number": np.array([value + part for part in noise]), "curve": np.full((len(seeds), 3), value + more)}


CALLS = []
CLAIM = Claim(
    paper="a paper",
    place="Section 1",
    text="two is more than one",
    arms=ARMS,
    measure=measure,
    statistic=difference("number", "two", "one"),
    unit="two minus one",
    margin=0.5,
    seeds=6,
    figures={"the reverse": difference("number", "one", "two")},
)
'''


@pytest.fixture
def page(tmp_path):
    file = tmp_path / "two.py"
    file.write_text(EXPERIMENT)
    return read_claim_file(file)


def recorded_calls(page):
    return page.claim.measure.__globals__["CALLS"]


def test_over_seeds_matches_scipy_t_interval():
    values = np.random.default_rng(0).normal(size=12)
    low, high = stats.t.interval(0.95, 11, values.mean(), stats.sem(values))
    assert over_seeds(values) == pytest.approx((values.mean(), low, high, 12), rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "low", "high", "expected"),
    [
        ("above", 0.2, 0.4, "holds here"),
        ("above", 0.05, 0.4, "not decided"),
        ("above", -0.4, 0.4, "not decided"),
        ("above", -0.05, 0.05, "not seen at this scale"),
        ("above", -0.4, -0.05, "not seen at this scale"),
        ("above", -0.4, -0.2, "contradicted"),
        ("equal", -0.05, 0.05, "holds here"),
        ("equal", 0.05, 0.4, "not decided"),
        ("equal", 0.2, 0.4, "contradicted"),
        ("equal", -0.4, -0.2, "contradicted"),
        ("above", math.nan, math.nan, "not decided"),
    ],
)
def test_verdict_of_interval(kind, low, high, expected):
    assert verdict_of(Interval((low + high) / 2, low, high, 8), kind=kind, margin=0.1) == expected


def test_too_few_seeds_are_not_decided():
    assert verdict_of(Interval(9.0, 8.0, 10.0, 4), kind="above", margin=0.0) == "not decided"
    assert math.isnan(over_seeds([1.0, 2.0, 3.0, 4.0]).low)
    assert math.isnan(over_seeds([]).value)


def test_an_experiment_without_results_is_not_decided(page):
    outcome = outcome_of(page, read_results(page))
    assert (outcome.verdict, outcome.date, outcome.statistic.seeds) == ("not decided", "", 0)


def test_a_run_is_stored_and_not_repeated(page):
    outcome = outcome_of(page, run_missing(page))
    assert outcome.verdict == "holds here"
    assert outcome.statistic.value == pytest.approx(1.1)
    assert outcome.figures["the reverse"].value == pytest.approx(-1.1)
    assert len(recorded_calls(page)) == 2
    assert outcome_of(page, run_missing(page)).statistic == outcome.statistic
    assert len(recorded_calls(page)) == 2
    run_missing(page, again=True)
    assert len(recorded_calls(page)) == 4


def test_only_missing_seeds_are_run(page):
    run_missing(page)
    file = page.file.with_suffix(".json")
    stored = json.loads(file.read_text())
    del stored["runs"]["two"]["3"], stored["runs"]["two"]["5"]
    file.write_text(json.dumps(stored))
    assert read_results(page).seeds == [0, 1, 2, 4]
    assert outcome_of(page, read_results(page)).verdict == "not decided"
    run_missing(page)
    assert recorded_calls(page)[2:] == [(2.0, [3, 5])]
    assert read_results(page).seeds == list(range(6))


def test_a_second_look_uses_only_new_seeds(page):
    run_missing(page)
    first = outcome_of(page, read_results(page)).statistic
    again = page._replace(claim=replace(page.claim, seeds=8, first_look=first))
    assert read_results(again).seeds == []
    results = run_missing(again)
    assert results.seeds == list(range(6, 14))
    assert recorded_calls(page)[2:] == [(1.0, list(range(6, 14))), (2.0, list(range(6, 14)))]
    assert outcome_of(again, results).statistic.seeds == 8


def test_seeds_below_the_first_seed_are_ignored(page):
    run_missing(page)
    later = page._replace(claim=replace(page.claim, first_seed=6))
    assert read_results(later).seeds == []
    assert run_missing(later).seeds == list(range(6, 12))
    with pytest.raises(ValueError, match="first_seed must be 0"):
        replace(later.claim, first_look=Interval(0.1, -0.1, 0.3, 16))


def test_a_pilot_states_which_seeds_were_seen_before():
    claims = [find_claim_file(name).claim for name in claim_files()]
    later = [claim for claim in claims if claim.first_seed]
    assert later
    for claim in later:
        assert f"seeds 0 to {claim.first_seed - 1}" in claim.pilot
        assert f"seeds {claim.seed_range[0]} to {claim.seed_range[-1]}." in claim.pilot


@pytest.mark.parametrize("name", [name for name in claim_files() if find_claim_file(name).claim.first_look])
def test_the_first_look_at_a_claim_was_not_decided(name, capsys):
    claim = find_claim_file(name).claim
    assert claim.first_look is not None
    assert (claim.first_look.seeds, claim.seed_range) == (16, range(16, 80))
    assert verdict_of(claim.first_look, kind=claim.kind, margin=claim.margin) == "not decided"
    assert main(["claims", name]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"first look {claim.first_look.text()} with 16 seeds, which did not decide it" in words
    assert "run 64 seeds, " in words
    assert main(["claims", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["first_look"] == claim.first_look_text()


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("arithmetic.", "more arithmetic.", True),
        ("two is more than one", "two exceeds one", True),
        ("margin=0.5", "margin=0.6", True),
        ("seeds]", "list(seeds)]", True),
        ("STEPS = 3", "LENGTH = 3", False),
        ("STEPS = 3", "STEPS = 4", False),
        ('"two": 2.0', '"two": 3.0', False),
        ("measure=measure", "measure=partial(measure, more=1.0)", False),
    ],
)
def test_only_changed_settings_invalidate_results(page, old, new, same):
    run_missing(page)
    assert old in EXPERIMENT
    page.file.write_text(
        EXPERIMENT.replace(old, new).replace("import numpy", "from functools import partial\n\nimport numpy")
    )
    changed = read_claim_file(page.file)
    assert bool(read_results(changed).seeds) is same


def test_rekey_keeps_the_results_of_moved_code(page):
    run_missing(page)
    before = page.file.with_suffix(".json").read_text()
    page.file.write_text(EXPERIMENT.replace("STEPS = 3", "CURVE_STEPS = 3"))
    moved = read_claim_file(page.file)
    assert read_results(moved).seeds == []
    assert rekey(moved) == []
    assert read_results(moved).seeds == list(range(6))
    page.file.with_suffix(".json").write_text(before)
    page.file.write_text(EXPERIMENT.replace('"two": 2.0', '"two": 2.5'))
    assert rekey(read_claim_file(page.file)) == ["two"]
    assert page.file.with_suffix(".json").read_text() == before


@pytest.mark.parametrize("name", claim_files())
def test_committed_summaries_match_the_experiments(name):
    """`rljax claims` reads the committed summary. If this fails, run `rljax claims --finish NAME`."""
    page = find_claim_file(name)
    stored = json.loads(page.file.with_suffix(".json").read_text(encoding="utf-8"))["claim"]
    assert stored == summary_of(page.claim, outcome_of(page, read_results(page)))


def test_the_arms_of_a_claim_have_different_keys():
    for name in claim_files():
        page = find_claim_file(name)
        keys = [arm_key(page, arm) for arm in page.claim.arms]
        assert len(set(keys)) == len(keys), name


BUDGETS = ("cispo", "kl_limit", "kl_cov_entropy", "dynamic_sampling", "rloo_ppo", "k3_variance")


def test_budget_of_states_equal_amounts_and_learning_rates():
    budgets = {name: find_claim_file(name).claim for name in BUDGETS}
    words = {name: budget_of(claim) for name, claim in budgets.items()}
    equal = "1600 updates in every arm; 12800 sampled responses in every arm"
    assert words["cispo"] == f"{equal}; each arm's learning rate is the best of a search on other seeds"
    assert words["kl_limit"] == f"{equal}; one fixed learning rate"
    assert words["kl_cov_entropy"] == f"{equal}; one learning rate, the best for the baseline in a search on other seeds"
    assert "19200 to 76800 sampled responses, not equal" in words["dynamic_sampling"]
    assert words["rloo_ppo"].endswith("each arm's learning rate is the best of a search on other seeds")
    assert words["k3_variance"] == "estimates alone, nothing is trained"


def test_results_of_a_former_algorithm_are_ignored(page):
    def with_beta(beta):
        arms = page.claim.arms | {"two": (grpo(beta=beta), page.claim.arms["two"])}
        measure = page.claim.measure
        settings = replace(page.claim, arms=arms, measure=lambda arm, seeds: measure(arm if arm == 1.0 else arm[1], seeds))
        return page._replace(claim=settings)

    run_missing(with_beta(0.0))
    assert read_results(with_beta(0.0)).seeds == list(range(6))
    changed = read_results(with_beta(0.04))
    assert (len(changed.runs["one"]), changed.runs["two"]) == (6, {})
    assert outcome_of(with_beta(0.04), changed).verdict == "not decided"


def test_committed_results_have_the_current_algorithms():
    """If this lists an arm, its algorithm has changed since its results were computed: run `rljax claims --finish NAME`."""
    differing = [
        f"{name}: {arm}"
        for name in claim_files()
        for arm, settings in find_claim_file(name).claim.arms.items()
        if json.loads(claim_files()[name].with_suffix(".json").read_text())["algorithms"][arm]
        != describe_contents(settings)
    ]
    assert differing == []


def test_arms_without_an_algorithm_name_their_equations():
    contents = {
        name: [describe_contents(arm) for arm in find_claim_file(name).claim.arms.values()] for name in claim_files()
    }
    # The arms of these two claims are plain numbers.
    assert {name for name, arms in contents.items() if [] in arms} == {"controller", "k3_variance"}
    assert contents["k3_gradient"][-2:] == [[{"function": "k3"}], [{"function": "importance_weighted_k3"}]]
    assert contents["ipo_certain"][0] == [{"loss": "dpo_loss beta=0.01"}]
    assert contents["simpo_length"] == [[{"loss": "simpo_loss"}]] * 2


def test_controller_page_states_the_recovered_success():
    page = find_claim_file("controller")
    final_success = {arm: metrics["success"].mean() for arm, metrics in read_results(page).arms().items()}
    for rate in ("x 10", "/ 10"):
        recovered, lost = (
            final_success[arm] - final_success[f"fixed, {rate}"] for arm in (f"controlled, {rate}", "fixed, x 1")
        )
        assert f"costs {lost:.3f}, and the controller recovers {recovered:.3f}" in " ".join(page.text.split())


def test_a_picture_is_drawn_with_or_without_curves(page, tmp_path):
    outcome = outcome_of(page, run_missing(page))
    plot_claim(page.claim, outcome, tmp_path / "with.png")
    bare = outcome._replace(arms={arm: {"number": metrics["number"]} for arm, metrics in outcome.arms.items()})
    plot_claim(page.claim, bare, tmp_path / "without.png")
    assert (tmp_path / "with.png").stat().st_size > (tmp_path / "without.png").stat().st_size > 1000


def test_picture_of_all_claims_has_one_row_per_claim(page, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, file: figures.append(figure))
    outcome = outcome_of(page, run_missing(page))
    lost = outcome._replace(verdict="contradicted", statistic=Interval(-1.0, -1.5, -0.75, 6))
    claims = [
        read_claim("cispo")._replace(name=name, verdict=found.verdict, statistic=found.statistic, margin=0.5)
        for name, found in {"two": outcome, "lost": lost}.items()
    ]
    plot_all(claims, tmp_path / "all.png")
    (axes,) = figures[0].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["lost", "two"]
    assert [float(bars.lines[0].get_xdata()[0]) for bars in axes.containers] == pytest.approx([-2.0, 2.2])
    ends = [bars.lines[2][0].get_segments()[0][:, 0] for bars in axes.containers]
    np.testing.assert_allclose(ends[0], [-3.0, -1.5])
    assert {text.get_text() for text in axes.get_legend().get_texts()} >= {"holds here (1)", "contradicted (1)"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0", "cannot be run .ZeroDivisionError"),
        ('"""Words."""', "does not define CLAIM"),
        (EXPERIMENT.split('"""\n', 1)[1], "no docstring"),
    ],
)
def test_a_file_without_a_claim_is_refused(tmp_path, text, message):
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(InputError, match=message):
        read_claim_file(tmp_path / "bad.py")


STATED = re.compile(r"is right on about one response in (\d+)")
PAGES = {name: " ".join(find_claim_file(name).text.split()) for name in claim_files()}


def initial_pass_rate(setting):
    """Mean pass rate of a setting's random initial policies."""
    keys = jax.random.split(jax.random.key(0), 500)
    with jax.numpy_rank_promotion("allow"):  # as in the claims' own processes
        return float(jax.vmap(lambda key: exact(setting.world, setting.initial(key)).success.mean())(keys).mean())


@pytest.mark.parametrize("name", [name for name, text in PAGES.items() if STATED.search(text)])
def test_stated_initial_pass_rates_are_right(name):
    """A docstring's figure is within 15 % of the mean over random initial policies and contexts of an arm."""
    settings = [setting_of(arm) for arm in find_claim_file(name).claim.arms.values()]
    rates = {initial_pass_rate(setting) for setting in settings if setting is not None}
    for stated in map(int, STATED.findall(PAGES[name])):
        assert not rates or any(abs(1 / rate / stated - 1) < 0.15 for rate in rates), (stated, rates)


@pytest.mark.parametrize("name", claim_files())
def test_committed_claims_have_a_complete_page(name):
    page = find_claim_file(name)
    source = "document" if "design document" in page.claim.paper else "paper"
    for words in ("Setting: ", f"Deviations from the {source}: ", f"Command: rljax claims --rerun {name}"):
        assert words in page.text
    assert page.text.split("\n")[0].endswith("?")
    outcome = outcome_of(page, read_results(page))
    assert outcome.statistic.seeds == page.claim.seeds >= 5
    assert outcome.verdict in VERDICTS
    assert np.isfinite(outcome.statistic[:3]).all()
    assert outcome.minutes <= 2 * page.claim.seeds / 16
    assert page.file.with_suffix(".png").is_file()


@pytest.mark.parametrize("name", [name for name in claim_files() if find_claim_file(name).claim.kind != "equal"])
def test_arms_of_a_committed_claim_have_different_results(name):
    page = find_claim_file(name)
    arms = read_results(page).arms()
    for one, two in itertools.combinations(arms.values(), 2):
        assert any((one[metric] != two[metric]).any() for metric in one), name
    assert page.claim.statistic(arms).any()


@pytest.mark.parametrize("name", ["k3_gradient", "k3_variance", "temporal_groups"])
@pytest.mark.usefixtures("standard_promotion")
def test_committed_results_match_the_current_equations(name):
    page = find_claim_file(name)
    committed = read_results(page).arms()
    for arm, settings in page.claim.arms.items():
        metrics = page.claim.measure(settings, page.claim.seed_range[:1])
        for metric in ["curve"] if "curve" in metrics else metrics:
            # Only the first steps are compared: one token sampled differently on another machine changes all later steps.
            again, stored = (np.ravel(values[metric][0])[:4] for values in (metrics, committed[arm]))
            np.testing.assert_allclose(again, stored, rtol=0.02, atol=1e-3, err_msg=f"{arm}: {metric}")


def test_arms_are_compared_at_the_same_pass_rate():
    rate = np.array([[0.0, 0.4, 0.3, 0.8], [0.1, 0.2, 0.5, 0.6]])
    slow = np.array([[0.0, 0.1, 0.2, 0.5], [0.1, 0.1, 0.2, 0.3]])
    arms = {
        "fast": {"curve": rate, "number": 10 * np.maximum.accumulate(rate, -1)},
        "slow": {"curve": slow, "number": slow},
    }
    level = slow[:, 0] + 0.8 * (slow[:, -1] - slow[:, 0])
    np.testing.assert_allclose(difference_at_equal_success("number", "fast", "slow")(arms), 9 * level)


def test_agreement_matches_kendall_tau_without_ties():
    areas = np.random.default_rng(1).normal(size=(5, 6))
    arms = {str(i): {"area": areas[:, i]} for i in range(6)}
    expected = [stats.kendalltau(range(6), row)[0] for row in areas]
    np.testing.assert_allclose(agreement("area", list(arms), tie=0.0)(arms), expected)


def test_a_small_difference_counts_as_a_tie():
    arms = {name: {"area": np.array([value])} for name, value in {"a": 0.5, "b": 0.495, "c": 0.7}.items()}
    assert agreement("area", ["a", "b", "c"], tie=0.01)(arms).item() == pytest.approx(2 / 3)
    assert agreement("area", ["a", "b", "c"], tie=0.001)(arms).item() == pytest.approx(1 / 3)
    assert agreement("area", ["a", "b", "c"], tie=0.3)(arms).item() == 0


def test_still_learning_is_negative_for_an_arm_at_rest():
    rest, slow = np.minimum(np.linspace(0, 2, 11), 0.9)[None], np.linspace(0, 0.5, 11)[None]
    arms = {"rest": {"curve": rest}, "slow": {"curve": slow}}
    assert still_learning("rest")[1](arms).item() == pytest.approx(-0.01)
    assert still_learning("slow")[1](arms).item() == pytest.approx(0.09)
    assert still_learning("rest", "slow")[1](arms).item() == pytest.approx(0.04)


def test_a_page_states_what_was_chosen_after_a_pilot(capsys):
    assert main(["claims", "orz_lambda"]) == 0
    assert "condition was added after the first results" in " ".join(capsys.readouterr().out.split())
    assert main(["claims", "orz_lambda", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["pilot"] == find_claim_file("orz_lambda").claim.pilot


def test_an_experiment_whose_condition_fails_is_not_decided(page):
    results = run_missing(page)
    for shift, verdict in ((1.0, "holds here"), (-10.0, "not decided")):
        condition = ("the first number", lambda arms, shift=shift: arms["one"]["number"] + shift)
        outcome = outcome_of(page._replace(claim=replace(page.claim, condition=condition)), results)
        assert outcome.verdict == verdict
        assert outcome.condition is not None


def test_an_unknown_claim_is_refused_with_the_list(capsys):
    assert main(["claims", "staleness_gep"]) == 2
    message = capsys.readouterr().err
    assert "did you mean 'staleness_gepo'?" in message
    names = list(claim_files())
    assert f"The claims are {', '.join(names)}." in message


def test_claims_table_has_every_claim_and_fits_a_terminal(capsys):
    assert main(["claims"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert all(f"\n{name}\n" in text for name in claim_files())
    words = " ".join(text.split())
    assert all(f"`rljax claims --rerun {name}` runs experiments/claims/{name}.py" in words for name in claim_files())


def test_claims_command_shows_trainer_experiments(capsys):
    names = list(trainer_experiments())
    assert "sampler_delay" in names
    assert main(["claims"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"decided by the same rule ({len(names)})" in words
    assert all(f"`python experiments/{name}.py" in words for name in names)
    assert main(["claims", "sampler_delay"]) == 0
    table = (claims_folder().parent / "sampler_delay.md").read_text(encoding="utf-8").strip()
    assert capsys.readouterr().out.endswith(f"\n\n{table}\n")
    assert main(["claims", "sampler_delay", "sapo", "--json"]) == 0
    claim, experiment = json.loads(capsys.readouterr().out)
    assert (claim["name"], experiment["name"], experiment["table"]) == ("sapo", "sampler_delay", table)


def test_rerun_of_a_trainer_experiment_is_refused(capsys):
    assert main(["claims", "--rerun", "sampler_delay"]) == 2
    assert "run `python experiments/sampler_delay.py` (about an hour" in capsys.readouterr().err


def test_a_trainer_experiment_without_a_command_is_refused(tmp_path):
    (tmp_path / "long.py").write_text('"""Does it take long?"""\n', encoding="utf-8")
    with pytest.raises(ValueError, match="must have a command"):
        read_trainer_experiment(tmp_path / "long.py")


def test_claims_are_printed_as_json_and_as_a_page(capsys):
    assert main(["claims", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(claim_files())
    assert all(row["low"] <= row["value"] <= row["high"] for row in rows)
    assert main(["claims", "staleness_gepo"]) == 0
    text = capsys.readouterr().out
    assert "not decided; the claim holds here if the 95 % interval is above 0.01" in " ".join(text.split())
    assert "GEPO without delay, minus half of that of GRPO" in " ".join(text.split())
    assert "Deviations from the paper" in text


def test_showing_and_running_claims_exclude_each_other(capsys):
    assert main(["claims", "sapo", "--rerun", "sapo"]) == 2
    assert "not both" in capsys.readouterr().err


def test_at_rest_is_negative_for_an_arm_that_still_learns():
    rest, slow = np.minimum(np.linspace(0, 2, 11), 0.9)[None], np.linspace(0, 0.5, 11)[None]
    arms = {"rest": {"curve": rest}, "slow": {"curve": slow}}
    assert at_rest("rest")[1](arms).item() == pytest.approx(0.01)
    assert at_rest("rest", "slow")[1](arms).item() == pytest.approx(-0.09)
    for name in ("soft_overlong", "negative_only"):  # the conditions of these two claims are not met
        assert outcome_of(find_claim_file(name), read_results(find_claim_file(name))).verdict == "not decided"


def test_experiments_run_from_a_wheel(tmp_path):
    """In a wheel, experiments/ is inside the package; a claim whose results are complete is rewritten unchanged."""
    package = Path(rljax.__file__).parent
    shutil.copytree(package, tmp_path / "rljax", ignore=shutil.ignore_patterns("__pycache__"))
    inside = tmp_path / "rljax" / "experiments"
    shutil.copytree(package.parent / "experiments" / "lab", inside / "lab", ignore=shutil.ignore_patterns("__pycache__"))
    (inside / "claims").mkdir()
    for suffix in (".py", ".json"):
        shutil.copy(claims_folder() / f"k3_variance{suffix}", inside / "claims")
    command = [sys.executable, "-m", "rljax", "claims", "--finish", "k3_variance"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("k3_variance\n")
    assert (inside / "claims" / "k3_variance.png").is_file()
    written = json.loads((inside / "claims" / "k3_variance.json").read_text())
    assert written == json.loads((claims_folder() / "k3_variance.json").read_text())
