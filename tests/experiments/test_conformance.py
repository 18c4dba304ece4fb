"""The committed results of the conformance kit: complete, and a few faults as they are found now."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "conformance"
PLANTED = json.loads((FOLDER / "planted.json").read_text(encoding="utf-8"))
sys.path.append(str(FOLDER))
FIELD = json.loads((FOLDER / "field.json").read_text(encoding="utf-8"))


def loaded(name):
    specification = importlib.util.spec_from_file_location(f"conformance_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


planted, field = loaded("planted"), loaded("field")

EVERY = 9
"""One fault in so many is planted again."""
FAULTS = [(name, fault, old, new) for name, (_, listed) in planted.PLACES.items() for fault, old, new in listed]


def test_every_fault_has_a_row_and_was_found_in_a_small_example():
    assert [(row["in"], row["fault"]) for row in PLANTED["faults"]] == [(name, fault) for name, fault, _, _ in FAULTS]
    assert len(FAULTS) == 100
    for row in PLANTED["faults"]:
        assert all((row["found"], row["small"], planted.is_small(row["says"]))), row["fault"]


def test_every_style_has_a_row_and_passed():
    assert [row["style"] for row in PLANTED["correct"]] == list(planted.correct.CORRECT)
    assert not any(row["found"] for row in PLANTED["correct"])


@pytest.mark.parametrize(("name", "fault", "old", "new"), FAULTS[::EVERY], ids=lambda x: str(x)[:20])
def test_a_fault_is_found_again(name, fault, old, new, standard_promotion):
    with planted.jax.numpy_rank_promotion("allow"):
        found = planted.judged(planted.planted(name, old, new), name)
    committed = next(row for row in PLANTED["faults"] if (row["in"], row["fault"]) == (name, fault))
    assert found["found"]
    assert planted.is_small(found["says"])
    assert planted.slot_of(found["says"]) == committed["slot"]


@pytest.mark.parametrize("style", [style for style, (_, arrays, _) in planted.correct.CORRECT.items() if arrays == "numpy"])
def test_a_correct_style_passes_again(style):
    name, arrays, source = planted.correct.CORRECT[style]
    assert not planted.judged(planted.compiled(source, name), name, arrays)["found"]


def test_a_size_is_read_from_a_report():
    loss = "differs from grpo in: clip.\n  {} prompts x 2 responses, lengths [[1, {}]]\n"
    assert planted.is_small(loss.format(2, 3))
    assert not planted.is_small(loss.format(3, 3))
    assert not planted.is_small(loss.format(2, 4))
    assert not planted.is_small("differs from grpo in: padding. The loss was 1 and is 2.")


def test_the_table_of_the_field_is_that_of_its_rows():
    assert (FOLDER / "field.md").read_text(encoding="utf-8") == field.page(FIELD)
    assert {row["library"] for row in FIELD} == set(field.LIBRARIES)
    assert all(field.judged(row)["verdict"] == row["verdict"] for row in FIELD)


def test_every_row_that_is_not_the_papers_is_explained():
    noted = set(field.NOTES)
    assert noted <= {(row["library"], row["algorithm"]) for row in FIELD}
    assert {(row["library"], row["algorithm"]) for row in FIELD if row["verdict"] != "paper"} <= noted


def test_the_versions_of_the_table_are_those_that_are_installed():
    for library, title in field.LIBRARIES.items():
        version = title.rpartition(" ")[2]
        assert any(part.endswith(f"=={version}") for call in field.PACKAGES[library] for part in call), title
