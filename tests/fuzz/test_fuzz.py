"""Commands with bad input: a small sample of the commands that `python tests/fuzz/run.py` generates."""

import os
import shutil

import pytest
from fuzz.cases import KINDS
from fuzz.harness import describe_result, make_valid_input, run_command, stop_before_computing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

LIMIT_IN_PARALLEL = 60.0
"""Longest time that one command may take, in seconds, while other tests run; `harness.LIMIT` is for a free machine."""


@pytest.fixture(scope="module")
def valid_input(tmp_path_factory):
    return make_valid_input(tmp_path_factory.mktemp("fuzz") / "valid_input")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("without_type_checks")
def test_bad_input_gets_a_one_paragraph_error(valid_input, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "case"

    @settings(max_examples=10 if "folders" in kind else 30, suppress_health_check=list(HealthCheck), database=None)
    @given(st.data())
    def check(data):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        os.chdir(tmp_path)
        result = run_command(data.draw(KINDS[kind](valid_input, directory)), limit=LIMIT_IN_PARALLEL)
        assert not result.fault, describe_result(result)

    with stop_before_computing(valid_input):
        check()


def test_a_pickle_is_refused_and_never_run(valid_input, tmp_path):
    folder = shutil.copytree(valid_input.folder / "model", tmp_path / "model")
    (folder / "model.safetensors").unlink()
    run = tmp_path / "ran"
    (folder / "pytorch_model.bin").write_bytes(f"cos\nsystem\n(S'touch {run}'\ntR.".encode())
    result = run_command(
        ["train", "--model", str(folder), "--dataset", str(valid_input.folder / "rows.jsonl"), "--reward", "exact"]
    )
    assert result.code == 2
    assert "Pickled weights (.bin) are never opened, because they can run code." in result.text
    assert not run.exists()


@pytest.mark.parametrize("file", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors"])
def test_an_index_may_name_only_files_in_its_folder(valid_input, tmp_path, file):
    folder = shutil.copytree(valid_input.folder / "model", tmp_path / "model")
    (folder / "model.safetensors").unlink()  # the index is read only if this file does not exist
    (folder / "model.safetensors.index.json").write_text(f'{{"weight_map": {{"a": "{file}"}}}}')
    result = run_command(
        ["train", "--model", str(folder), "--dataset", str(valid_input.folder / "rows.jsonl"), "--reward", "exact"]
    )
    assert result.code == 2
    assert "which is not in the folder of the model; correct it" in result.text
