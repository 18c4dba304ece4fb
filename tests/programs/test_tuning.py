"""`rljax tune` without training: candidates of each rung, continued and retried tuning runs, and refused input."""

import json
import math
from types import SimpleNamespace

import pytest
from small_cli import printed, refused
from small_runs import SMALL

import rljax.cli.tune
import rljax.programs.train
from rljax.cli.run_settings import without_flags
from rljax.cli.tune import OWN_FLAGS, OWN_SWITCHES, tuning_text, values_of, words_of
from rljax.errors import InputError
from rljax.programs.tuning import FILE, Rung, Trial, rungs_of, score_candidates, tune, winner
from rljax.training.config import TrainConfig
from rljax.training.interrupt import Interrupted

RATES = {f"learning_rate={rate:g}": SMALL.replace(learning_rate=rate) for rate in (0.1, 0.2, 0.3, 0.4)}
RUNGS = rungs_of(4, 8, 2)


@pytest.mark.parametrize(
    ("count", "steps", "cut", "expected"),
    [
        (2, 10, 2, [(5, 2), (10, 1)]),
        (6, 140, 2, [(35, 6), (70, 3), (140, 1)]),
        (6, 140, 3, [(46, 6), (140, 2)]),
        (9, 9, 3, [(1, 9), (3, 3), (9, 1)]),
        (2, 3, 3, [(3, 2)]),
    ],
)
def test_rungs_keep_fewer_candidates_for_more_steps(count, steps, cut, expected):
    rungs = rungs_of(count, steps, cut)
    assert [tuple(rung) for rung in rungs] == expected
    assert rungs[-1].steps == steps


@pytest.mark.parametrize(
    ("count", "steps", "cut", "message"),
    [(1, 8, 2, "one candidate"), (4, 3, 2, "at least 4"), (4, 8, 1, "cut is 1")],
)
def test_invalid_rungs_are_refused(count, steps, cut, message):
    with pytest.raises(InputError, match=message):
        rungs_of(count, steps, cut)


class FakeTrainer:
    """A fake trainer whose accuracy is a formula of rate, seed and steps; it records its calls, and can stop or fail."""

    def __init__(self, *, stop=None, fail=()):
        self.calls, self.stop, self.fail = [], stop, fail

    def __call__(self, config):
        if len(self.calls) == self.stop:
            raise Interrupted
        rate, seed, steps = config.optimization.learning_rate, config.run.seed, config.optimization.steps
        self.calls.append((rate, seed, steps, config.run.folder))
        if rate in self.fail:
            raise InputError("the updates are not finite")
        return 0.1, min(rate + 0.01 * steps - 0.02 * seed, 1.0)


def run_tuning(trainer, folder, *, configs=RATES, seeds=(0,), rungs=RUNGS, **options):
    return tune(configs, seeds=seeds, rungs=rungs, folder=folder, train=trainer, on_trial=lambda trial: None, **options)


def test_best_half_continues_in_its_own_runs(tmp_path):
    trainer = FakeTrainer()
    trials = run_tuning(trainer, tmp_path)
    assert [(rate, steps) for rate, _, steps, _ in trainer.calls] == [
        *[(rate, 2) for rate in (0.1, 0.2, 0.3, 0.4)],
        *[(0.3, 4), (0.4, 4), (0.4, 8)],
    ]
    folders = {rate: {folder for other, _, _, folder in trainer.calls if other == rate} for rate, *_ in trainer.calls}
    assert all(len(own_folders) == 1 for own_folders in folders.values())
    assert len(set.union(*folders.values())) == 4
    assert winner(trials) == "learning_rate=0.4"
    assert score_candidates(trials, 1) == {
        "learning_rate=0.3": pytest.approx(0.34),
        "learning_rate=0.4": pytest.approx(0.44),
    }


def test_candidate_is_judged_by_the_mean_over_seeds(tmp_path):
    trainer = FakeTrainer()
    trials = run_tuning(trainer, tmp_path, seeds=(3, 4))
    assert [seed for _, seed, *_ in trainer.calls] == [3, 4] * 7
    assert score_candidates(trials, 0)["learning_rate=0.1"] == pytest.approx(0.12 - 0.07)


@pytest.mark.parametrize("stop", [0, 1, 3, 4, 6])
def test_stopped_tuning_run_continues_without_repetition(tmp_path, stop):
    uninterrupted = FakeTrainer()
    expected = run_tuning(uninterrupted, tmp_path / "uninterrupted")
    first, second = FakeTrainer(stop=stop), FakeTrainer()
    with pytest.raises(Interrupted):
        run_tuning(first, tmp_path / "stopped")
    trials = run_tuning(second, tmp_path / "stopped")
    assert [trial._replace(seconds=0.0) for trial in trials] == [trial._replace(seconds=0.0) for trial in expected]
    assert [call[:3] for call in first.calls + second.calls] == [call[:3] for call in uninterrupted.calls]


def test_failed_run_is_retried(tmp_path):
    with pytest.raises(
        InputError, match=r"1 run failed, and a failed run has no accuracy: learning_rate=0\.4 \(seed 0\): .*--drop-failed"
    ):
        run_tuning(FakeTrainer(fail=(0.4,)), tmp_path)
    again = FakeTrainer()
    assert winner(run_tuning(again, tmp_path)) == "learning_rate=0.4"
    assert [(rate, steps) for rate, _, steps, _ in again.calls] == [(0.4, 2), (0.3, 4), (0.4, 4), (0.4, 8)]


def test_drop_failed_drops_a_failed_candidate(tmp_path):
    trials = run_tuning(FakeTrainer(fail=(0.4,)), tmp_path, drop_failed=True)
    assert winner(trials) == "learning_rate=0.3"
    (failed,) = (trial for trial in trials if trial.error)
    assert (failed.candidate, failed.accuracy) == ("learning_rate=0.4", None)
    text = tuning_text(trials, RUNGS, winner(trials), width=80)
    assert "     failed           learning_rate=0.4\n" in text
    assert "      32.0%  kept     learning_rate=0.3\n" in text
    assert "      38.0%  wins     learning_rate=0.3" in text
    assert "16 RL steps in " in text


def test_temporary_error_does_not_drop_a_candidate(tmp_path):
    steady, failed = FakeTrainer(), []

    def train(config):
        if config.optimization.learning_rate == 0.4 and not failed:
            failed.append(config)
            raise InputError("the judge is down for a moment")
        return steady(config)

    trials = run_tuning(train, tmp_path / "flaky")
    assert failed
    expected = run_tuning(FakeTrainer(), tmp_path / "steady")
    assert [trial._replace(seconds=0.0) for trial in trials] == [trial._replace(seconds=0.0) for trial in expected]


def test_second_process_in_the_folder_is_refused(tmp_path):
    def train(config):
        with pytest.raises(
            InputError, match=r"another process is tuning in .*; wait until it ends, or choose another --out"
        ):
            run_tuning(FakeTrainer(), tmp_path)
        return 0.1, config.optimization.learning_rate

    assert winner(run_tuning(train, tmp_path)) == "learning_rate=0.4"
    assert not list(tmp_path.glob(".tuning*"))


def test_reason_is_reported_if_all_candidates_fail(tmp_path):
    with pytest.raises(InputError, match="every candidate failed; the first error was: InputError: the updates are not"):
        run_tuning(FakeTrainer(fail=(0.1, 0.2, 0.3, 0.4)), tmp_path)
    assert winner(run_tuning(FakeTrainer(), tmp_path)) == "learning_rate=0.4"


def test_a_run_without_a_judged_answer_has_failed(tmp_path):
    def train(config):
        rate = config.optimization.learning_rate
        return math.nan, math.nan if rate in unjudged else rate

    unjudged = (0.1, 0.2, 0.3, 0.4)
    with pytest.raises(
        InputError, match="every candidate failed; the first error was: the reward judged no held-out answer"
    ):
        run_tuning(train, tmp_path)
    unjudged = (0.4,)
    assert winner(run_tuning(train, tmp_path, drop_failed=True)) == "learning_rate=0.3"
    assert "NaN" not in (tmp_path / "tuning.json").read_text()


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"trials": [{"rung": 0}]}'])
def test_unreadable_results_are_refused(tmp_path, content):
    (tmp_path / "tuning.json").write_text(content)
    with pytest.raises(
        InputError, match=r"tuning.json does not contain the results of a tuning run \(.*\); restore it, or choose"
    ):
        run_tuning(FakeTrainer(), tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seeds": (0, 1)}, "different seeds"),
        ({"rungs": (Rung(4, 4), Rung(8, 1))}, "different rungs"),
        ({"configs": {name: config.replace(prompts=16) for name, config in RATES.items()}}, "different settings"),
        ({"configs": dict(list(RATES.items())[:3])}, "different candidates"),
    ],
)
def test_results_of_different_tuning_runs_are_not_mixed(tmp_path, change, message):
    run_tuning(FakeTrainer(), tmp_path)
    with pytest.raises(InputError, match=message):
        run_tuning(FakeTrainer(), tmp_path, **change)


def test_settings_without_effect_on_results_may_change(tmp_path):
    run_tuning(FakeTrainer(), tmp_path)
    again = FakeTrainer()
    run_tuning(again, tmp_path, configs={name: config.replace(eval_every=1) for name, config in RATES.items()})
    assert not again.calls


def test_tuning_flags_are_parsed_and_removed():
    config = TrainConfig()
    assert values_of(["learning-rate=1,2", "with=advantage=rank;weights=length_reweighted,alpha=0.5"], config) == {
        "learning_rate": ("1", "2"),
        "with": ("advantage=rank", "weights=length_reweighted,alpha=0.5"),
    }
    words = ["--out", "x", "--steps=3", "--try=a=1,2", "--seeds", "2", "--json", "--chat"]
    assert without_flags(words, OWN_FLAGS, OWN_SWITCHES) == [
        "--steps=3",
        "--chat",
    ]
    assert words_of(["chat"], ["False"]) == ["--no-chat"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--try", "learning_rat=1,2"],
            r"no setting 'learning_rat' to try; did you mean 'learning_rate' or .*\? `rljax train --help-all` lists all settings\.",
        ),
        (
            ["--try", "nonsense=3"],
            r"no setting 'nonsense' to try; the nearest are '\w+', '\w+', '\w+'\. `rljax train --help-all`",
        ),
        (["--try", "temp=1,2"], "the nearest are 'temperature', "),
        (["--try", "learning_rate"], "has no values"),
        (["--try", "learning_rate=1,1"], "each of its values once"),
        (["--try", "learning_rate=1e-4"], "one candidate"),
        ([], "one candidate"),
        (["--try", "steps=1,2"], "all candidates have the same steps"),
        (["--try", "schedule=constant,cosine"], "--schedule cosine cannot be tuned"),
        (
            ["--try", "learning_rate=1,2", "--algorithm", "ppo", "--learning-rate-warmup", "100", "--passes", "9"],
            r"cannot be tuned: its training depends on the total number of steps \(the warm-up of the critic's learning rate\)",
        ),
        (["--try", "learning_rate=1,2", "--learning-rate", "3"], "--learning-rate is both tried with --try and set"),
        (["--try", "prompts=1,2", "--try", "passes=1,2", "--passes=3", "--prompts=2"], "passes, prompts are both"),
        (["--try", "learning_rate=1,2", "--run", "x"], "--out"),
        (["--try", "learning_rate=1,2", "--steps", "1"], "at least 2"),
        (["--try", "learning_rate=1,2", "--seeds", "0"], "seeds is 0"),
    ],
)
def test_invalid_input_is_refused_with_a_hint(capsys, tmp_path, words, message):
    refused(capsys, message, "tune", "--out", str(tmp_path / "out"), *words)
    assert not (tmp_path / "out").exists()


def test_command_prints_plots_and_names_the_winner(capsys, tmp_path, monkeypatch):
    trainer = FakeTrainer()
    monkeypatch.setattr(rljax.cli.tune, "train_candidate", trainer)
    words = [
        "tune",
        "--try",
        "learning_rate=0.1,0.2",
        "--try",
        "algorithm=grpo,dapo",
        "--steps",
        "8",
        "--warm-start-steps",
        "3",
    ]
    text = printed(capsys, *words, "--out", str(tmp_path))
    assert "Rung 3: held-out accuracy after 8 RL steps\n      28.0%  wins     learning_rate=0.2 algorithm=grpo" in text
    assert "    rljax train --steps 8 --warm-start-steps 3 --learning-rate 0.2 --algorithm grpo" in text
    assert (tmp_path / "tuning.png").stat().st_size > 10_000
    row = json.loads((tmp_path / FILE).read_text())
    assert row["winner"] == "learning_rate=0.2 algorithm=grpo"
    assert len([Trial(**trial) for trial in row["trials"]]) == len(trainer.calls) == 7
    assert json.loads(printed(capsys, *words, "--out", str(tmp_path), "--json")) == row
    assert len(trainer.calls) == 7


def test_rung_continues_the_runs_of_the_previous_rung(monkeypatch):
    calls = []

    def train(config, *, resume):
        calls.append((config, resume))
        return SimpleNamespace(accuracy_before=0.25, accuracy_after=0.5)

    monkeypatch.setattr(rljax.programs.train, "train", train)
    assert rljax.cli.tune.train_candidate(SMALL) == (0.25, 0.5)
    assert calls == [(SMALL, "auto")]


def test_unfinished_files_are_removed(tmp_path):
    (tmp_path / ".unfinished-0").write_text("{")
    run_tuning(FakeTrainer(), tmp_path)
    assert not list(tmp_path.glob(".unfinished-*"))
