"""A sample of the commands with bad input that `python tests/fuzz/run.py` tries by the thousand."""

import os
import shutil

import pytest
from fuzz.cases import KINDS
from fuzz.harness import answer, make_good, show, stopped_before_computing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

BESIDE_OTHERS = 60.0
"""Longest time of one command while other tests run, in seconds; alone, `LIMIT` holds."""


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return make_good(tmp_path_factory.mktemp("fuzz") / "good")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("untyped")
def test_bad_input_is_answered_by_one_paragraph(good, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "case"

    @settings(max_examples=10 if "folders" in kind else 30, suppress_health_check=list(HealthCheck), database=None)
    @given(st.data())
    def check(data):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        os.chdir(tmp_path)
        found = answer(data.draw(KINDS[kind](good, place)), limit=BESIDE_OTHERS)
        assert not found.fault, show(found)

    with stopped_before_computing(good):
        check()


def test_a_pickle_is_refused_and_never_run(good, tmp_path):
    """Nothing that is loaded runs code."""
    folder = shutil.copytree(good.folder / "model", tmp_path / "model")
    (folder / "model.safetensors").unlink()
    run = tmp_path / "ran"
    (folder / "pytorch_model.bin").write_bytes(f"cos\nsystem\n(S'touch {run}'\ntR.".encode())
    found = answer(["train", "--model", str(folder), "--dataset", str(good.folder / "rows.jsonl"), "--reward", "exact"])
    assert found.code == 2
    assert "Pickled weights (.bin) are never opened, because they can run code." in found.text
    assert not run.exists()


@pytest.mark.parametrize("file", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors"])
def test_an_index_names_files_of_its_own_folder_only(good, tmp_path, file):
    folder = shutil.copytree(good.folder / "model", tmp_path / "model")
    (folder / "model.safetensors").unlink()  # an index is read where there is no such file
    (folder / "model.safetensors.index.json").write_text(f'{{"weight_map": {{"a": "{file}"}}}}')
    found = answer(["train", "--model", str(folder), "--dataset", str(good.folder / "rows.jsonl"), "--reward", "exact"])
    assert found.code == 2
    assert "which is not in the folder of the model; correct it" in found.text
