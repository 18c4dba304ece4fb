"""Runs that were stopped, extended or damaged give bit for bit the same results as uninterrupted runs."""

import json
import re
import shutil

import chex
import pytest
from run_states import read_checkpoint
from shared_run import TINY, last_checkpoint, rows
from small_runs import even_length, stopping_after

import rljax
from rljax.errors import InputError
from rljax.tracking.run_folder import RunFolder
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.interrupt import Interrupted
from rljax.training.loop import ABNORMAL_END_WARNING


@pytest.mark.parametrize("calls", [1, 5], ids=["in the warm start", "in reinforcement learning"])
def test_resumed_run_equals_uninterrupted_run(finished, tmp_path, calls, capsys):
    path = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        rljax.train(TINY.replace(run=str(path)), stopping_after(calls))
    hint = f"\nTo continue:\n  rljax.train(resume={str(path)!r}, reward=reward)\n"
    assert capsys.readouterr().out.endswith(hint), (
        "the hint must be a Python call, because a command cannot pass a reward function"
    )
    stopped = last_checkpoint(path)
    assert int(stopped.state.warm_step) + int(stopped.state.step) < TINY.warm_start.steps + TINY.optimization.steps
    rljax.train(None, even_length, resume=path)
    ours, theirs = last_checkpoint(path), last_checkpoint(finished.run)
    chex.assert_trees_all_equal(ours.state, theirs.state)
    assert ours.carried is not None, "otherwise, this does not test groups that are carried over"
    chex.assert_trees_all_equal(ours.carried, theirs.carried)
    assert ours.notes == theirs.notes
    assert rows(path) == rows(finished.run)


def test_resume_auto_continues_the_run(finished, tmp_path):
    config = TINY.replace(run=str(tmp_path / "run"))
    RunFolder.create(tmp_path / "run", {"killed": "before its first save"})
    (tmp_path / "run" / "checkpoints" / "last" / "0.orbax-checkpoint-tmp").mkdir(parents=True)
    (tmp_path / "run" / ".lock").touch()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"phase": "warm_start", "step": 1, "loss": 9.0}\n')
    with pytest.raises(Interrupted):
        rljax.train(config, stopping_after(5), resume="auto")
    assert ABNORMAL_END_WARNING not in (tmp_path / "run" / "log.txt").read_text(), "the run must start from the beginning"
    (tmp_path / "run").rename(tmp_path / "moved")
    (tmp_path / "moved" / ".lock").touch()
    (tmp_path / "moved" / ".unfinished-last-1").mkdir()
    moved = config.replace(run=str(tmp_path / "moved"))
    rljax.train(moved, even_length, resume="auto")
    (tmp_path / "moved").rename(tmp_path / "run")
    assert "Resumed at RL step" in (tmp_path / "run" / "log.txt").read_text()
    assert ABNORMAL_END_WARNING in (tmp_path / "run" / "log.txt").read_text()
    assert not list((tmp_path / "run").glob(".*"))
    chex.assert_trees_all_equal(last_checkpoint(tmp_path / "run").state, last_checkpoint(finished.run).state)
    assert rows(tmp_path / "run") == rows(finished.run)
    with pytest.raises(InputError, match="cannot change learning_rate"):
        rljax.train(config.replace(learning_rate=1e-7), even_length, resume="auto")
    with pytest.raises(InputError, match=r"resume='auto' continues the run in a folder that you name; pass run=FOLDER"):
        rljax.train(TINY, even_length, resume="auto")


def test_damaged_checkpoints_are_skipped(finished, tmp_path):
    """If the newest checkpoint is truncated, the run reports it and continues from the previous one, with the same results."""
    path = tmp_path / "run"
    shutil.copytree(finished.run, path)
    newest, older = sorted((int(save.name) for save in (path / "checkpoints" / "last").iterdir()), reverse=True)
    weights = max((path / "checkpoints" / "last" / str(newest)).rglob("*"), key=lambda file: file.stat().st_size)
    weights.write_bytes(weights.read_bytes()[:-1])
    (path / "samples.jsonl").unlink()
    best, last = (checkpoints.notes_in(path / "checkpoints" / kind) for kind in ("best", "last"))
    later = {f"best-{number}" for number, notes in best.items() if notes.best_step > last[older].best_step}
    rljax.train(None, even_length, resume=path)
    shown = (path / "log.txt").read_text()
    assert re.search(rf"last/{newest} cannot be used: \S+ has \d+ bytes instead of \d+\.", shown), shown
    assert "samples.jsonl is gone: its rows up to the checkpoint are lost." in shown
    set_aside = {save.name.rpartition("-")[0] for save in (path / "checkpoints" / "damaged").iterdir()}
    assert set_aside == {f"last-{newest}"} | later
    chex.assert_trees_all_equal(last_checkpoint(path).state, last_checkpoint(finished.run).state)
    assert rows(path) == rows(finished.run)
    assert older < newest


def test_resume_without_the_reward_that_was_passed_is_refused(finished):
    with pytest.raises(InputError, match="reward passed to train"):
        rljax.train(resume=finished.run)


def test_a_configuration_or_a_run_to_resume_is_needed():
    for train in (rljax.train, rljax.sft):
        with pytest.raises(InputError, match=r"^Training needs a configuration, or resume=FOLDER"):
            train()


def test_extended_run_equals_a_longer_run(finished, tmp_path, capsys):
    path = tmp_path / "short"
    rljax.train(TINY.replace(run=str(path), steps=2), even_length)
    rljax.train(TINY.replace(eval_every=2, microbatch_rows=4, shown_samples=1), even_length, resume=path)
    ours, theirs = last_checkpoint(path), last_checkpoint(finished.run)
    chex.assert_trees_all_equal(ours.state, theirs.state)
    chex.assert_trees_all_equal(ours.carried, theirs.carried)
    assert rows(path) == rows(finished.run)
    text = (path / "log.txt").read_text()
    assert "Resumed at RL step 2 of 4." in text
    assert "Changed: steps: 2 -> 4, shown_samples: 3 -> 1." in text
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d held-out accuracy so far: .{2,} -> ", text, re.MULTILINE)
    assert json.loads((path / "config.json").read_text())["optimization"]["steps"] == 4
    first, second = (json.loads(line) for line in (path / "starts.jsonl").read_text().splitlines())
    assert [row["step"] for row in (first, second)] == [0, 2]
    assert second["changes"][0] == {"name": "steps", "before": 2, "after": 4}
    assert {"jax", "jaxlib", "python", "rljax"} <= set(first["versions"])
    unchanged = (path / "config.json").read_bytes()
    for changes, message in (
        ({"learning_rate": 1.0, "quiet": False}, "cannot change learning_rate: 0.01 -> 1.0; its results"),
        ({"steps": 3}, "steps is 3, but the run has already taken 4 RL steps"),
        ({"run": "elsewhere"}, "cannot change run: .*short -> elsewhere"),
        ({"task": "iteration", "iterations": (2, 3)}, "cannot change task: sums -> iteration"),
    ):
        with pytest.raises(InputError, match=message):
            rljax.train(TINY.replace(**changes), even_length, resume=path)
    assert (path / "config.json").read_bytes() == unchanged


def test_final_evaluation_runs_if_steps_is_lowered_to_those_done(tmp_path):
    path, short = tmp_path / "run", TINY.replace(eval_every=0, checkpoint_every=1)
    with pytest.raises(Interrupted):
        rljax.train(short.replace(run=str(path)), stopping_after(5))
    done = int(last_checkpoint(path).state.step)
    assert 0 < done < TINY.optimization.steps
    ended = rljax.train(short.replace(steps=done), even_length, resume=path)
    whole = rljax.train(short.replace(steps=done, run=str(tmp_path / "whole")), even_length)
    assert rows(path) == rows(whole.run)
    assert (ended.accuracy_before, ended.accuracy_after) == (whole.accuracy_before, whole.accuracy_after)
    assert (path / "heldout.jsonl").read_bytes() == (whole.run / "heldout.jsonl").read_bytes()
    rljax.train(None, even_length, resume=path)
    assert rows(path) == rows(whole.run), "an evaluated run is not evaluated again"


def test_a_best_checkpoint_that_was_being_deleted_does_not_prevent_resuming(finished, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(finished.run, path)
    best = path / "checkpoints" / "best"
    older = best / "0"
    shutil.copytree(max(best.iterdir(), key=lambda save: int(save.name)), older, dirs_exist_ok=True)
    (older / "sha256.json").unlink()
    shutil.rmtree(older / "notes")
    rljax.train(None, even_length, resume=path)
    assert rows(path) == rows(finished.run)


def test_a_lost_best_checkpoint_is_reported_and_replaced(tmp_path):
    """With a learning rate of almost 0, all evaluations are equal, so the newest is the best."""
    path, settings = tmp_path / "run", TINY.replace(learning_rate=1e-12, models="both", best_metric="response_length")
    rljax.train(settings.replace(run=str(path), steps=2), even_length)
    best = path / "checkpoints" / "best"
    newest = max(int(save.name) for save in best.iterdir())
    shutil.rmtree(best / str(newest))
    rljax.train(settings.replace(steps=3, eval_every=0), even_length, resume=path)
    shown = (path / "log.txt").read_text()
    assert (
        f"{best} no longer has the checkpoint of the best step, 2; the checkpoint of step 0 now counts as the best."
        in shown
    )
    assert "Best checkpoint: step 3" in shown
    shutil.rmtree(best)
    rljax.train(None, even_length, resume=path)
    shown = (path / "log.txt").read_text()
    assert "no longer has the checkpoint of the best step, 3; no other is left." in shown
    assert shown.rindex("Best checkpoint: step 3") > shown.rindex("no other is left")
    assert read_checkpoint(settings, path, "best", reward=even_length).state.step == 3
