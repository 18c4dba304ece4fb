"""Rows of an experiment: every run adds a line, and a row that JSON cannot hold harms no earlier one."""

import json
import platform
from datetime import UTC, datetime

import jax
import pytest

from rljax.book.experiment_rows import made_on, rows_of, settings_hash, write_rows

ROWS = [{"seed": 0, "curve": [0.5, 1.0]}, {"seed": 1, "name": "é\n"}]


def test_a_further_run_is_a_further_line(tmp_path):
    file = tmp_path / "rows.json"
    write_rows(file, ROWS[:1])
    before = file.read_text(encoding="utf-8").splitlines()
    write_rows(file, ROWS)
    after = file.read_text(encoding="utf-8").splitlines()
    assert json.loads("\n".join(after)) == ROWS
    assert len(after) == len(before) + 1
    assert after[1] == before[1] + ","


def test_a_row_that_json_cannot_hold_leaves_the_file_as_it_was(tmp_path):
    file = tmp_path / "rows.json"
    write_rows(file, ROWS)
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_rows(file, [*ROWS, {"seed": object()}])
    assert json.loads(file.read_text(encoding="utf-8")) == ROWS


def test_rows_of_other_settings_are_not_read(tmp_path):
    file, present = tmp_path / "rows.json", settings_hash({"steps": 40}, (8, 4))
    assert rows_of(file, lambda row: present) == []
    rows = [{"arm": "a", "settings": present}, {"arm": "a", "settings": settings_hash({"steps": 41}, (8, 4))}]
    write_rows(file, rows)
    assert rows_of(file, lambda row: present if row["arm"] == "a" else "other") == rows[:1]
    assert rows_of(file, lambda row: "other") == []


def test_a_page_says_when_and_with_what_it_was_made():
    parts = made_on().split(", ")
    assert abs((datetime.now(UTC).date() - datetime.fromisoformat(parts[0]).date()).days) <= 1
    assert parts[1].endswith(" cores")
    assert parts[2:] == [platform.machine(), f"Python {platform.python_version()}", f"JAX {jax.__version__}"]
