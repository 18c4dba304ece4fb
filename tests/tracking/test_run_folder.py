"""The run folder: files can be read back, foreign files are never overwritten, and a rewind keeps only earlier rows."""

import json
from dataclasses import FrozenInstanceError, dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from rljax.errors import InputError
from rljax.tracking.rows import read_metrics
from rljax.tracking.run_folder import RunFolder, default_run_path


@dataclass(frozen=True)
class Optimizer:
    name: str
    betas: tuple[float, float]


def write_rows(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def read_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def metrics_row(phase, step, **metrics):
    return {"phase": phase, "step": step, **metrics}


def test_the_path_of_a_run_does_not_depend_on_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    folders = [RunFolder.create("run", {"seed": 0}), RunFolder.open("run")]
    monkeypatch.chdir("elsewhere")
    assert [folder.path for folder in folders] == [tmp_path / "run"] * 2


def test_config_round_trips_sorted_and_indented(tmp_path):
    config = {"seed": 0, "data": Path("data") / "train.jsonl", "clip": np.float32(0.5), "adam": Optimizer("adam", (0.9, 0.99)),
              "limit": float("inf"), "resume": None, "quiet": True, "nested": {"b": [1], "a": "é"}}  # fmt: skip
    run = RunFolder.create(tmp_path / "deep" / "run", config)
    plain = {"seed": 0, "data": "data/train.jsonl", "clip": 0.5, "adam": {"name": "adam", "betas": [0.9, 0.99]},
             "limit": "inf", "resume": None, "quiet": True, "nested": {"b": [1], "a": "é"}}  # fmt: skip
    assert run.config == plain
    assert RunFolder.open(tmp_path / "deep" / "run") == run
    text = (run.path / "config.json").read_text()
    assert text == json.dumps(plain, sort_keys=True, indent=2) + "\n"
    assert [part.name for part in run.path.iterdir()] == ["config.json"]
    assert {run: 1}[RunFolder.open(run.path)] == 1
    with pytest.raises(FrozenInstanceError):
        run.path = tmp_path


def test_a_config_value_that_json_does_not_support_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"adam\.betas\[1\] must be a value that JSON supports, got <object"):
        RunFolder.create(tmp_path / "run", {"adam": Optimizer("adam", (0.9, object()))})
    assert not (tmp_path / "run").exists()


def test_paths(tmp_path):
    run = RunFolder.create(tmp_path, {})
    paths = {"metrics": "metrics.jsonl", "samples": "samples.jsonl", "curves": "curves.png"}
    paths |= {"tensorboard": "tensorboard", "checkpoints": "checkpoints"}
    assert {name: getattr(run, name) for name in paths} == {name: tmp_path / path for name, path in paths.items()}


@pytest.mark.parametrize("existing", ["config.json", "metrics.jsonl", "checkpoints/", "best/"])
def test_create_refuses_a_folder_that_contains_a_run(tmp_path, existing):
    path = tmp_path / existing
    if existing.endswith("/"):
        path.mkdir()
    else:
        path.write_text("kept")
    remedy = f"--resume {tmp_path}" if existing == "config.json" else "restore its config.json, without which it cannot"
    message = f"{tmp_path} already contains a run \\({path.name}\\).* --run.* {remedy}"
    with pytest.raises(InputError, match=message):
        RunFolder.create(tmp_path, {"seed": 0})
    assert path.is_dir() or path.read_text() == "kept"


def test_create_accepts_a_folder_with_other_files(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    assert RunFolder.create(tmp_path, {"seed": 0}).config == {"seed": 0}


def test_create_refuses_a_path_through_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/run cannot be created .* choose another with --run"):
        RunFolder.create(tmp_path / "file" / "run", {})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "contains no run .there is no config.json"),
        ("{", "config.json is not valid JSON"),
        ("[1]", r"config.json must contain one JSON object, got \[1\]"),
    ],
)
def test_open_refuses_a_folder_without_a_run(tmp_path, config, message):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(InputError, match=message):
        RunFolder.open(tmp_path)


def test_default_run_path():
    now = datetime(2025, 12, 1, 23, 4, 5)
    assert default_run_path("addition", now) == Path("runs") / "addition-20251201-230405"
    for name in ("", "a/b", "a/"):
        with pytest.raises(InputError, match="is not a folder name"):
            default_run_path(name, now)


def test_rewind_truncates_the_files_to_their_saved_sizes(tmp_path):
    run = RunFolder.create(tmp_path, {})
    write_rows(run.metrics, [metrics_row("rl", 1), metrics_row("eval", 1)])
    run.samples.write_bytes('{"step": 1,  "completion": "a\u2028b\x85c é"}\n'.encode())
    file_states, before = run.file_states(), (run.metrics.read_bytes(), run.samples.read_bytes())
    for path in (run.metrics, run.samples):
        with path.open("ab") as file:
            file.write('{"phase": "rl", "step": 2}\n{"step": 3, "completion": "é'.encode()[:-1])
    assert run.rewind(file_states) == []
    assert (run.metrics.read_bytes(), run.samples.read_bytes()) == before
    assert run.rewind(file_states) == []
    assert sorted(part.name for part in tmp_path.iterdir()) == ["config.json", "metrics.jsonl", "samples.jsonl"]


def test_rewind_to_the_beginning_empties_the_files(tmp_path):
    run = RunFolder.create(tmp_path, {})
    file_states = run.file_states()
    assert run.rewind(file_states) == []
    assert not run.metrics.exists()
    write_rows(run.metrics, [metrics_row("rl", 1)])
    assert run.rewind(file_states) == []
    assert run.metrics.read_bytes() == b""


def test_a_missing_file_is_reported(tmp_path):
    run = RunFolder.create(tmp_path, {})
    write_rows(run.metrics, [metrics_row("rl", 1)])
    file_states = run.file_states()
    run.metrics.unlink()
    assert run.rewind(file_states) == [f"{run.metrics} is gone: its rows up to the checkpoint are lost."]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda content: b"",
            r"metrics\.jsonl has only 0 of the \d+ bytes that it had when the checkpoint was saved\. Restore it, or move it away",
        ),
        (lambda content: content[:-1], r"metrics\.jsonl has only \d+ of the \d+ bytes"),
        (
            lambda content: content.splitlines(keepends=True)[1] * 3,
            r"metrics\.jsonl has changed since the checkpoint was saved",
        ),
        (lambda content: content.replace(b"1", b"7"), r"metrics\.jsonl has changed since the checkpoint was saved"),
    ],
    ids=["emptied", "shortened", "a row twice", "a digit changed"],
)
def test_a_changed_file_is_refused_and_not_modified(tmp_path, change, message):
    run = RunFolder.create(tmp_path, {})
    write_rows(run.metrics, [metrics_row("rl", 1), metrics_row("rl", 2), metrics_row("rl", 3)])
    write_rows(run.samples, [{"step": 1}])
    file_states = run.file_states()
    write_rows(run.samples, [{"step": 1}, {"step": 2}])
    changed = change(run.metrics.read_bytes())
    run.metrics.write_bytes(changed)
    samples = run.samples.read_bytes()
    with pytest.raises(InputError, match=message):
        run.rewind(file_states)
    assert (run.metrics.read_bytes(), run.samples.read_bytes()) == (changed, samples)


def test_read_metrics_returns_every_row(tmp_path):
    rows = [metrics_row("rl", 1, reward=0.5, loss=None), metrics_row("eval", 1, accuracy=1)]
    write_rows(tmp_path / "metrics.jsonl", rows)
    assert read_metrics(tmp_path / "metrics.jsonl") == rows
    # The last row may lack its newline, if it is complete JSON.
    (tmp_path / "metrics.jsonl").write_text(json.dumps(rows[0]))
    assert read_metrics(tmp_path / "metrics.jsonl") == rows[:1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "is not valid JSON"),
        ("", "is not valid JSON"),
        ("[]", "must be a JSON object"),
        ('{"step": 1}', 'must have a "phase" that is one of warm_start, value, rl, preference, reward_model, eval'),
        ('{"phase": "train", "step": 1}', 'must have a "phase" that is one of'),
        ('{"phase": "rl"}', 'must have a whole number "step"'),
        ('{"phase": "rl", "step": -1}', 'must have a whole number "step"'),
        ('{"phase": "rl", "step": 1.5}', 'must have a whole number "step"'),
        ('{"phase": "rl", "step": true}', 'must have a number or null as "step"'),
        ('{"phase": "rl", "step": 1, "loss": "x"}', 'must have a number or null as "loss"'),
        ('{"phase": "rl", "step": 1, "loss": NaN}', "is not valid JSON .NaN is not a JSON number"),
        ('{"phase": ["rl"], "step": 1}', 'must have a "phase" that is one of'),
    ],
)
def test_read_metrics_names_file_and_line(tmp_path, line, message):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"phase": "rl", "step": 0}}\n{line}\n{{"phase": "rl", "step": 2}}\n')
    with pytest.raises(InputError, match=f"metrics.jsonl line 2 .*{message}"):
        read_metrics(path)


def test_read_metrics_refuses_missing_and_empty_files(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(InputError, match=r"there is no metrics file .*metrics\.jsonl"):
        read_metrics(path)
    path.write_text("")
    with pytest.raises(InputError, match=r"metrics\.jsonl line 1: the file is empty"):
        read_metrics(path)


def test_discarding_a_run_without_progress_removes_only_its_own_files(tmp_path):
    run = RunFolder.create(tmp_path / "run", {})
    (run.checkpoints / "last" / "0").mkdir(parents=True)
    (run.path / "notes.txt").write_text("mine")
    run.log.write_text("begun")
    run.discard()
    assert [path.name for path in run.path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("progress", ["metrics", "a save", "a best save"])
def test_a_run_with_progress_is_never_discarded(tmp_path, progress):
    run = RunFolder.create(tmp_path, {})
    if progress == "metrics":
        write_rows(run.metrics, [metrics_row("rl", 1)])
    else:
        (run.checkpoints / ("last/1" if progress == "a save" else "best/0")).mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    run.discard()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_with_a_file_that_a_run_would_write_is_refused(tmp_path):
    (tmp_path / "log.txt").write_text("mine")
    with pytest.raises(InputError, match=r"already contains a run \(log.txt\)"):
        RunFolder.create(tmp_path, {})


def test_unfinished_files_of_a_killed_process_are_removed(tmp_path):
    run = RunFolder.create(tmp_path, {})
    unfinished = [tmp_path / ".unfinished-last-1", run.checkpoints / "step-5" / ".unfinished-1"]
    for folder in (*unfinished, run.checkpoints / "last" / "0", run.checkpoints / "step-5" / "0"):
        folder.mkdir(parents=True)
        (folder / "weights").write_text("some")
    (tmp_path / ".unfinished-2").write_text("a row")
    run.remove_unfinished()
    remaining = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(remaining) == ["checkpoints/last/0/weights", "checkpoints/step-5/0/weights", "config.json"]


def test_two_processes_cannot_lock_a_run(tmp_path):
    run = RunFolder.create(tmp_path, {})
    with run.lock(), pytest.raises(InputError, match="another process is training in"), RunFolder.open(tmp_path).lock():
        pass
    with RunFolder.open(tmp_path).lock() as abandoned:
        assert not abandoned
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
