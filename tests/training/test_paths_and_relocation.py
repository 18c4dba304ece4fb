"""Starting a run: what `resume="auto"` continues, absolute paths in config.json, remote addresses, and runs that were moved."""

import fcntl
import json
import re
import shutil
from pathlib import Path

import pytest
from small_runs import SMALL

import rljax
from rljax.cli import main
from rljax.errors import InputError
from rljax.files import absolute_paths
from rljax.programs.export import check_new
from rljax.rollout.environment import functions_in
from rljax.tracking.run_folder import RunFolder
from rljax.training.config import TrainConfig
from rljax.training.lifecycle.start import find_resumable


def test_files_of_an_unsaved_run_are_kept_while_its_process_lives(tmp_path):
    path = tmp_path / "run"
    config = TrainConfig.flat(run=str(path))
    RunFolder.create(path, config.to_json())
    with (path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match=r"another process is training in .*; wait until it ends, or stop it"):
            find_resumable(config)
        assert (path / "config.json").exists()
    assert find_resumable(config) is None, "the process has ended without a save"
    assert not (path / "config.json").exists()


@pytest.mark.parametrize(("logged", "is_refused"), [(4, False), (5, True)])
def test_a_run_whose_checkpoints_were_deleted_is_not_restarted(logged, is_refused, tmp_path):
    config = TrainConfig.flat(run=str(tmp_path / "run"), checkpoint_every=4)
    folder = RunFolder.create(tmp_path / "run", config.to_json())
    rows = [{"phase": "rl", "step": step} for step in range(1, logged + 1)]
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if is_refused:
        with pytest.raises(InputError, match=r"logged 5 steps, but its checkpoints were deleted.*move the run away"):
            find_resumable(config)
        assert len(folder.metrics.read_text().splitlines()) == logged
    else:
        assert find_resumable(config) is None, "a run may die before its first save has begun"
        assert not folder.metrics.exists()


def test_a_run_continues_from_any_working_directory(tmp_path, monkeypatch):
    project_folder = tmp_path / "project"
    project_folder.mkdir()
    (project_folder / "own.py").write_text(
        "def even(completions, **columns):\n    return [float(len(c) % 2 == 0) for c in completions]\n"
    )
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(24)]
    (project_folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(project_folder)
    config = SMALL.replace(
        task=None,
        dataset="rows.jsonl",
        tokenizer="bytes",
        reward="own.py:even",
        steps=1,
        heldout_problems=2,
        max_prompt_tokens=8,
    )
    run = rljax.train(config.replace(run="run")).run
    saved = json.loads((project_folder / "run" / "config.json").read_text())
    assert saved["data"]["dataset"] == str(project_folder / "rows.jsonl")
    assert saved["reward"]["name"] == f"{project_folder}/own.py:even"
    assert saved["model"]["tokenizer"] == "bytes"
    again = rljax.train(config.replace(steps=2), resume="run")  # the same relative paths do not count as a change
    monkeypatch.chdir(tmp_path)
    assert rljax.train(resume=again.run, trust=True).run == run
    assert rljax.evaluate(run, trust=True) is not None


def test_names_that_are_not_paths_are_unchanged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("bytes", "exact", "hub"):
        (tmp_path / name).mkdir()
    names = {"tokenizer": "bytes", "reward": "exact,brier:exact,count_bonus:0.5", "dataset": "openai/gsm8k:main"}
    config = TrainConfig.flat(**names)
    assert absolute_paths(config.to_flat()) == {}
    found = absolute_paths(config.replace(model="hub", reward="model:hub,math").to_flat())
    assert found == {"model": str(tmp_path / "hub"), "reward": f"model:{tmp_path}/hub,math"}


@pytest.mark.parametrize("address", ["gs://bucket/run", "s3://bucket/run", "gs:/bucket/run"])
def test_an_address_in_a_remote_store_is_refused_at_the_start(address, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for call in (
        lambda: TrainConfig.flat(run=address),
        lambda: RunFolder.create(address, {}),
        lambda: RunFolder.open(address),
        lambda: check_new(Path(address)),
    ):
        with pytest.raises(InputError, match=r"is '(gs|s3)://bucket/run', an address in a remote store"):
            call()
    for arguments in (["train", "--run", address], ["train", "--resume", address], ["compare", "a", "b", "--out", address]):
        assert main(arguments) == 2
        assert "address in a remote store" in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        *(f"{command} s3://b/x" for command in ("eval", "serve", "search", "chat", "show", "doctor")),
        *(
            "export s3://b/x out",
            "sample s3://b/x --prompt a",
            "generate s3://b/x o.jsonl",
            "pairs s3://b/x o.jsonl",
            "compare s3://b/x s3://b/y",
        ),
        *("train --config s3://b/x.yaml", "train --config s3://b/x.py", "train --experiment s3://b/x.py"),
        *(
            "train --model s3://b/x --dataset d.jsonl --reward math",
            "train --dataset s3://b/x.jsonl",
            "plan --model s3://b/x",
        ),
        *("train --tokenizer s3://b/x --dataset d.jsonl --reward math", "preprocess s3://b/x.jsonl o.jsonl"),
        "train --dataset d.jsonl --reward constitution:s3://b/x.yaml",
    ],
)
def test_every_command_refuses_a_remote_address_and_prints_it_in_full(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.jsonl").write_text("".join(f'{{"prompt": "{n}+1=", "answer": "{n + 1}"}}\n' for n in range(9)))
    assert main(words.split()) == 2
    assert re.search(r"is 's3://b/x[^']*', an address in a remote store", " ".join(capsys.readouterr().err.split()))


def test_paths_in_environment_options_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "math").mkdir()
    for name in ("own.py", "notes", "sub/own.py", "sub/passages.jsonl"):
        (tmp_path / name).write_text("")
    options = {
        "passages": "sub/passages.jsonl",
        "notes": "notes",
        "folder": "sub/",
        "reward": "exact,own.py:judge, sub/own.py:judge",
        "model": "model:sub/",
        "game": "math",
        "request": "Look again: yes, no/maybe",
        "tools": ["own.py:add", {"file": "notes"}, 3, None],
    }
    found = absolute_paths({"environment_options": json.dumps(options)})
    assert json.loads(found["environment_options"]) == options | {
        "passages": f"{tmp_path}/sub/passages.jsonl",
        "notes": f"{tmp_path}/notes",
        "folder": f"{tmp_path}/sub",
        "reward": f"exact,{tmp_path}/own.py:judge,{tmp_path}/sub/own.py:judge",
        "model": f"model:{tmp_path}/sub",
        "tools": [f"{tmp_path}/own.py:add", {"file": f"{tmp_path}/notes"}, 3, None],
    }
    again = absolute_paths(found)
    assert again == {}, "absolute paths are unchanged"
    assert absolute_paths({"environment_options": '{"size":5}'}) == {}
    assert absolute_paths({"critic": "policy"}) == {}


def test_functions_in_nested_environment_options_are_found():
    assert functions_in('{"tools": ["own.py:add", {"of": "package.tools:sub"}], "n": 2}') == (
        "own.py:add",
        "package.tools:sub",
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A finished run whose dataset, additional held-out set and reward function are files in one folder, which can be moved."""
    project_folder = tmp_path_factory.mktemp("made") / "project"
    project_folder.mkdir()
    (project_folder / "own.py").write_text(
        "def even(completions, **columns):\n    return [float(len(c) % 2 == 0) for c in completions]\n"
    )
    for name, begin in (("rows", 0), ("further", 100)):
        rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(begin, begin + 24)]
        (project_folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = SMALL.replace(
        **{
            "task": None,
            "dataset": f"{project_folder}/rows.jsonl",
            "tokenizer": "bytes",
            "reward": f"{project_folder}/own.py:even",
        },
        **{
            "steps": 1,
            "heldout_problems": 2,
            "max_prompt_tokens": 8,
            "also_heldout": {"more": f"{project_folder}/further.jsonl"},
        },
    )
    rljax.train(config.replace(run=f"{project_folder}/run"))
    return project_folder


def test_a_run_whose_files_were_moved_is_relocated(project, tmp_path, capsys):
    old, new = project, tmp_path / "elsewhere"
    shutil.copytree(project, new)
    project.rename(project.with_name("away"))
    run, resume = str(new / "run"), ["train", "--resume", str(new / "run"), "--steps", "2", "--trust"]
    try:
        for words in (resume, ["eval", run, "--trust"]):
            assert main(words) == 2
            assert re.search(r"rows\.jsonl' does not exist.*`rljax relocate RUN OLD NEW`", capsys.readouterr().err)
        assert main(["relocate", run, str(tmp_path / "other"), str(new)]) == 2
        assert re.search(
            r"no setting of the run .* at or below .*other'; its paths: .*rows\.jsonl", capsys.readouterr().err
        )
        assert main(["relocate", run, str(old), str(tmp_path / "absent")]) == 2
        assert "absent' does not exist" in capsys.readouterr().err
        assert main(["relocate", run, str(old), str(new)]) == 0
        printed = capsys.readouterr().out
        assert f"dataset: {old}/rows.jsonl -> {new}/rows.jsonl" in printed
        assert f"reward: {old}/own.py:even -> {new}/own.py:even" in printed
        assert main(["eval", run, "--trust"]) == 0
        assert main(resume) == 0
        (new / "rows.jsonl").write_text((new / "rows.jsonl").read_text().replace('"answer": "3"', '"answer": "4"'))
        capsys.readouterr()
        assert main(["train", "--resume", run, "--steps", "3", "--trust"]) == 2
        assert "rows of the run" in capsys.readouterr().err
    finally:
        project.with_name("away").rename(project)
