"""Starting a run: what `resume="auto"` continues, paths in config.json, and addresses that are not folders."""

import fcntl
import json
import re
from contextlib import nullcontext
from pathlib import Path

import pytest
from small_runs import SMALL

import rljax
from rljax.cli import main
from rljax.errors import InputError
from rljax.files import absolute_paths
from rljax.programs.export import check_new
from rljax.tracking.run_folder import RunFolder
from rljax.training.config import TrainConfig
from rljax.training.lifecycle.start import find_resumable


def test_files_of_a_process_without_a_save_yet_are_kept(tmp_path):
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


def test_a_run_continues_from_any_working_directory(tmp_path, monkeypatch):
    place = tmp_path / "project"
    place.mkdir()
    (place / "own.py").write_text(
        "def even(completions, **columns):\n    return [float(len(c) % 2 == 0) for c in completions]\n"
    )
    rows = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(24)]
    (place / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(place)
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
    saved = json.loads((place / "run" / "config.json").read_text())
    assert saved["data"]["dataset"] == str(place / "rows.jsonl")
    assert saved["reward"]["name"] == f"{place}/own.py:even"
    assert saved["model"]["tokenizer"] == "bytes"
    again = rljax.train(config.replace(steps=2), resume="run")  # the same relative names are not a change
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
    for words in (["train", "--run", address], ["train", "--resume", address], ["compare", "a", "b", "--out", address]):
        with pytest.raises(SystemExit) if words[1] == "--run" else nullcontext():
            assert main(words) == 2
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
