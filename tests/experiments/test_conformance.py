"""The committed results of the conformance kit are complete, and the kit still finds a sample of the planted faults."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "conformance"
SETS = {name: json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")) for name in ("planted", "second_faults")}
sys.path.append(str(FOLDER))
LIBRARY_ROWS = json.loads((FOLDER / "field.json").read_text(encoding="utf-8"))


def load_module(name):
    specification = importlib.util.spec_from_file_location(f"conformance_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


planted, field = load_module("planted"), load_module("field")

FAULTS_PER_CHECK = 13
"""The tests plant every 13th fault again."""
SOURCES = {"planted": planted.SOURCES, "second_faults": planted.SECOND_SOURCES}
FAULTS = [
    (which, name, *fault)
    for which, sources in SOURCES.items()
    for name, source in sources.items()
    for fault in source.faults
]


def test_every_fault_was_found_with_small_example():
    rows = [(which, row) for which, found in SETS.items() for row in found["faults"]]
    assert [(which, row["in"], row["fault"]) for which, row in rows] == [fault[:3] for fault in FAULTS]
    assert len(SETS["planted"]["faults"]) == 100
    assert len(SETS["second_faults"]["faults"]) >= 100
    for _, row in rows:
        assert all((row["found"], row["small"], planted.is_small(row["says"], planted.size_limit_of(row["fault"])))), row[
            "fault"
        ]


def test_faults_that_need_three_responses():
    shapes = {row["fault"]: planted.shape_of(row["says"]) for row in SETS["second_faults"]["faults"]}
    assert {fault for fault, shape in shapes.items() if shape[1] > 2} == planted.second_faults.NEED_THREE_RESPONSES


def test_fault_names_differ_between_sets():
    first, second = ([row["fault"] for row in SETS[which]["faults"]] for which in ("planted", "second_faults"))
    assert not set(first) & set(second)


@pytest.mark.parametrize("which", SETS)
def test_fault_page_matches_rows(which):
    assert (FOLDER / f"{which}.md").read_text(encoding="utf-8") == planted.format_page(SETS[which], which)


def test_correct_implementations_passed():
    assert [row["style"] for row in SETS["planted"]["correct"]] == list(planted.correct.CORRECT)
    assert [row["style"] for row in SETS["second_faults"]["correct"]] == list(planted.SECOND_SOURCES)
    assert not any(row["found"] for found in SETS.values() for row in found["correct"])


@pytest.mark.parametrize(
    ("which", "name", "fault", "texts"), [(*f[:3], f[3:]) for f in FAULTS[::FAULTS_PER_CHECK]], ids=str
)
def test_planted_fault_is_found(which, name, fault, texts, standard_promotion):
    source = SOURCES[which][name]
    with planted.jax.numpy_rank_promotion("allow"):
        found = planted.run_kit(planted.plant(source, *texts), source.like, source.arrays, **source.options)
    committed = next(row for row in SETS[which]["faults"] if (row["in"], row["fault"]) == (name, fault))
    assert found["found"]
    assert planted.is_small(found["says"], planted.size_limit_of(fault))
    assert found["says"].splitlines()[0] == committed["says"].splitlines()[0], "the wording must be current"


@pytest.mark.parametrize("style", [style for style, (_, arrays, _) in planted.correct.CORRECT.items() if arrays == "numpy"])
def test_correct_implementation_passes(style):
    name, arrays, source = planted.correct.CORRECT[style]
    assert not planted.run_kit(planted.compile_source(source, name), name, arrays)["found"]


def test_is_small_reads_size_from_report():
    loss = "differs from grpo in: clip.\n  {} prompts x 2 responses, lengths [[1, {}]]\n"
    assert planted.is_small(loss.format(2, 3))
    assert not planted.is_small(loss.format(3, 3))
    assert not planted.is_small(loss.format(2, 4))
    assert not planted.is_small("differs from grpo in: padding. The loss was 1 and is 2.")


def test_library_page_matches_rows():
    assert (FOLDER / "field.md").read_text(encoding="utf-8") == field.format_page(LIBRARY_ROWS)
    assert {row["library"] for row in LIBRARY_ROWS} == set(field.LIBRARIES)
    assert all(field.with_verdict(row)["verdict"] == row["verdict"] for row in LIBRARY_ROWS)


def test_library_rows_with_other_verdicts_are_explained():
    noted = set(field.NOTES)
    assert noted <= {(row["library"], row["algorithm"]) for row in LIBRARY_ROWS}
    assert {(row["library"], row["algorithm"]) for row in LIBRARY_ROWS if row["verdict"] != "paper"} <= noted


def test_library_versions_match_packages():
    for library, title in field.LIBRARIES.items():
        version = title.rpartition(" ")[2]
        assert any(part.endswith(f"=={version}") for call in field.PACKAGES[library] for part in call), title
