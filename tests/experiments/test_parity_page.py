"""The committed comparison with transformers and peft is complete, within its bound, and reproducible."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "parity"
ROWS = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))
FAMILIES = (
    "Llama",
    "Llama, stretched rotations",
    "Mistral",
    "Mistral, sliding window",
    "Qwen2",
    "Qwen2, sliding window",
    "Qwen3",
)
BOUND = 1e-4


@pytest.fixture(scope="module")
def parity():
    """The comparison's module, imported as `parity_run`."""
    pytest.importorskip("torch", reason="parity with transformers needs PyTorch: pip install torch")
    spec = importlib.util.spec_from_file_location("parity_run", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["parity_run"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["parity_run"]


def test_rows_cover_families_and_ways():
    adapters = ["adapter of every matrix", "adapter of some"]
    expected = [
        (library, family, way)
        for family in FAMILIES
        for library, ways in (
            ("transformers", ["loaded", *(["exported"] if not family.startswith("Mistral") else []), "trained"]),
            ("peft", adapters),
        )
        for way in ways
    ]
    assert [(row["library"], row["family"], row["way"]) for row in ROWS] == expected


def test_differences_are_within_bound():
    for row in ROWS:
        assert 0 < row["logit_difference"] <= BOUND < 1 < row["largest_logit"], row
        assert 0 < row["logp_difference"] <= BOUND, row
        assert row.get("change_by_adapter", 1) > 0.1, row


def test_page_has_rows_and_versions():
    page = (FOLDER / "results.md").read_text(encoding="utf-8")
    assert page.count("| yes |") == len(ROWS)
    assert {row["versions"] for row in ROWS} == {ROWS[0]["versions"]}
    assert ROWS[0]["versions"] in page


def test_one_family_is_within_bound_again(parity, tmp_path):
    assert parity.BOUND == BOUND
    assert tuple(parity.FAMILIES) == FAMILIES
    rows = list(parity.model_rows("Qwen3", tmp_path))
    assert [row["way"] for row in rows] == ["loaded", "exported", "trained"]
    assert all(map(parity.is_equal, rows))


def test_is_equal_detects_differences(parity):
    row = {"logit_difference": 0.0, "logp_difference": 0.0}
    assert parity.is_equal(row)
    assert parity.is_equal(row | {"change_by_adapter": 0.5})
    assert not parity.is_equal(row | {"logp_difference": 2 * BOUND})
    assert not parity.is_equal(row | {"logit_difference": 2 * BOUND})
    assert not parity.is_equal(row | {"change_by_adapter": 0.0})
