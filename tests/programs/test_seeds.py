"""`rljax train --seeds`: one run per seed, which resumes after a kill, and one summary."""

import json
import shutil
import subprocess
import sys
import time
from datetime import date

import chex
import pytest
from run_states import read_checkpoint
from small_cli import printed, refused
from small_runs import SMALL, is_time

import rljax
from rljax.programs.seeds import with_common_date
from rljax.tracking.rows import read_metrics
from rljax.tracking.seeds import over_seeds

TINY = SMALL.replace(
    **{"name": "tiny", "train_problems": 40, "heldout_problems": 6, "algorithm": "grpo", "algorithm_options": {}},
    **{"warm_start_steps": 4, "warm_start_batch": 8, "steps": 4, "prompts": 4, "group_size": 4, "eval_every": 2},
    **{"checkpoint_every": 1, "learning_rate": 1e-2, "sample_every": 0},
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """A file of settings for `--config`."""
    file = tmp_path_factory.mktemp("settings") / "tiny.json"
    file.write_text(json.dumps(TINY.to_json()))
    return str(file)


def read_rows(run):
    return [
        {name: value for name, value in row.items() if not is_time(name)} for row in read_metrics(run / "metrics.jsonl")
    ]


def test_killed_seeds_end_like_separate_runs(settings, tmp_path, capsys):
    folder = tmp_path / "many"
    words = ["train", "--config", settings, "--seeds", "3", "1", "2", "--run", str(folder)]
    process = subprocess.Popen([sys.executable, "-m", "rljax", *words], stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 240
    while not (folder / "seed-1" / "metrics.jsonl").is_file():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (folder / "seed-2").exists()
    log_of_finished_seed = (folder / "seed-3" / "log.txt").read_text()
    shown = printed(capsys, *words)
    assert (folder / "seed-3" / "log.txt").read_text() == log_of_finished_seed, "a finished seed is not opened again"
    for seed in (1, 2, 3):
        separate = rljax.train(TINY.replace(seed=seed, run=str(tmp_path / f"alone-{seed}")))
        assert read_rows(separate.run) == read_rows(folder / f"seed-{seed}")
        assert read_checkpoint(TINY.replace(seed=seed), folder / f"seed-{seed}").state.step == 4
    found = json.loads((folder / "seeds.json").read_text())
    assert [run["seed"] for run in found["runs"]] == [3, 1, 2]
    mean = over_seeds([read_rows(folder / f"seed-{seed}")[-1]["accuracy"] for seed in (1, 2, 3)])
    assert found["after"]["value"] == pytest.approx(mean.value)
    assert f"{mean.value:.1%}" in shown.split("mean ")[-1]
    assert (folder / "seeds.png").is_file()
    assert "(3 seeds)" not in printed(capsys, "plot", str(folder), "--out", str(tmp_path / "group.png"))
    assert (tmp_path / "group.png").is_file()
    longer = printed(capsys, *words, "--steps", "5")
    assert longer.count("Resumed at RL step 4 of 5") == 3 or all(
        read_rows(folder / f"seed-{s}")[-1]["step"] == 5 for s in (1, 2, 3)
    )


def test_seeds_of_sft_report_perplexity(settings, tmp_path, capsys):
    words = ["--config", settings, "--reward", "none", "--steps", "3", "--seeds", "0", "1", "--run", str(tmp_path / "sft")]
    shown = printed(capsys, "sft", *words)
    assert "held-out perplexity of 2 seeds" in shown
    found = json.loads((tmp_path / "sft" / "seeds.json").read_text())
    assert found["metric"] == "perplexity"
    assert found["after"]["value"] < found["before"]["value"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--seeds 1 1", "each seed must be at least 0, and no seed may occur twice"),
        ("--seeds 1 2 --seed 3", "cannot be used together; leave one of them out"),
        ("--seeds 1 2 --coordinator auto", "trains on one host"),
    ],
)
def test_invalid_options_for_seeds_are_refused(words, message, settings, tmp_path, capsys):
    refused(capsys, message, "train", "--config", settings, *words.split(), "--run", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_changed_setting_needs_another_folder(settings, tmp_path, capsys):
    words = ["train", "--config", settings, "--steps", "1", "--seeds", "0", "--run", str(tmp_path / "run")]
    printed(capsys, *words)
    refused(capsys, "cannot change --learning-rate", *words, "--learning-rate", "1")


def cut_off_last_save(run):
    """Turn a finished run into one that was killed after it logged its last step, and before it saved that step."""
    newest = max((run / "checkpoints" / "last").iterdir(), key=lambda save: int(save.name))
    shutil.rmtree(newest)
    (run / ".lock").touch()


@pytest.mark.parametrize("program", ["train", "sft"])
def test_a_run_whose_last_step_is_not_saved_is_not_finished(program, settings, tmp_path, capsys):
    folder = tmp_path / "many"
    words = [program, "--config", settings, "--seeds", "0", "--run", str(folder)]
    words += [] if program == "train" else ["--checkpoint-every", "2"]
    printed(capsys, *words)
    run = folder / "seed-0"
    before, params = read_rows(run), read_checkpoint(TINY, run).state.params
    assert "finished" in printed(capsys, "runs", str(folder))
    cut_off_last_save(run)
    assert "stopped" in printed(capsys, "runs", str(folder))
    printed(capsys, *words)
    assert "finished" in printed(capsys, "runs", str(folder))
    assert read_rows(run) == before
    chex.assert_trees_all_equal(read_checkpoint(TINY, run).state.params, params)


def test_missing_or_old_models_are_written(settings, tmp_path, capsys):
    folder = tmp_path / "many"
    words = ["train", "--config", settings, "--seeds", "0", "--run", str(folder)]
    printed(capsys, *words)
    for models, added in (("last", {"last"}), ("both", {"last", "best"})):
        printed(capsys, *words, "--models", models)
        assert {path.name for path in (folder / "seed-0").iterdir()} >= added
    old = (folder / "seed-0" / "last").stat().st_ino
    (folder / "seed-0" / ".lock").touch()  # killed before the models of the last step were complete
    printed(capsys, *words, "--models", "both")
    assert (folder / "seed-0" / "last").stat().st_ino != old


def test_all_runs_of_a_folder_have_the_same_date(tmp_path):
    settings = TINY.replace(chat=True, model=str(tmp_path))
    today = date.today().isoformat()
    assert with_common_date(TINY, tmp_path) == TINY
    assert with_common_date(settings, tmp_path).model.chat_date == today
    for seed, day in enumerate(("2001-02-03", "2004-05-06")):
        (tmp_path / f"seed-{seed}" / "model").mkdir(parents=True)
        (tmp_path / f"seed-{seed}" / "model" / "config.json").write_text('{"model_type": "llama"}')
        (tmp_path / f"seed-{seed}" / "config.json").write_text(json.dumps(settings.replace(chat_date=day).to_json()))
        expected = "2001-02-03" if seed == 0 else None
        assert with_common_date(settings, tmp_path).model.chat_date == expected, "runs with several dates keep their own"
    own = settings.replace(chat_date="2007-08-09")
    assert with_common_date(own, tmp_path) == own
