"""Result rows of an experiment: each new row adds one line, and a row that JSON cannot store leaves earlier rows unchanged."""

import json
import platform
from datetime import UTC, datetime

import jax
import numpy as np
import pytest

from lab.rows import (
    add_missing_rows,
    format_percent,
    format_points,
    made_on,
    rows_of,
    write_page,
    write_rows,
)
from rljax.files import settings_hash

ROWS = [{"seed": 0, "curve": [0.5, 1.0]}, {"seed": 1, "name": "é\n"}]


def test_a_new_row_adds_one_line(tmp_path):
    file = tmp_path / "rows.json"
    write_rows(file, ROWS[:1])
    before = file.read_text(encoding="utf-8").splitlines()
    write_rows(file, ROWS)
    after = file.read_text(encoding="utf-8").splitlines()
    assert json.loads("\n".join(after)) == ROWS
    assert len(after) == len(before) + 1
    assert after[1] == before[1] + ","


def test_an_unserializable_row_leaves_the_file_unchanged(tmp_path):
    file = tmp_path / "rows.json"
    write_rows(file, ROWS)
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_rows(file, [*ROWS, {"seed": object()}])
    assert json.loads(file.read_text(encoding="utf-8")) == ROWS


def test_rows_of_other_settings_are_not_read(tmp_path):
    file, current = tmp_path / "rows.json", settings_hash({"steps": 40}, (8, 4))
    assert rows_of(file, lambda row: current) == []
    rows = [{"arm": "a", "settings": current}, {"arm": "a", "settings": settings_hash({"steps": 41}, (8, 4))}]
    write_rows(file, rows)
    assert rows_of(file, lambda row: current if row["arm"] == "a" else "other") == rows[:1]
    assert rows_of(file, lambda row: "other") == []


def test_settings_hash_ignores_order_and_disabled_settings():
    settings = {"steps": 40, "delay": 0, "operands": (2, 3)}
    off = {"remedy": None, "chat": False, "stop": (), "options": {}}
    assert settings_hash(off | dict(reversed(settings.items()))) == settings_hash(settings)
    others = [settings | {"chat": True}, settings | {"delay": None}, settings | {"steps": 0}, settings | {"stop": ("a",)}]
    assert len({settings_hash(each) for each in (settings, *others)}) == 5


def test_page_states_date_and_machine(tmp_path):
    write_page(tmp_path / "rows.json", "python rows.py", "shares of ten.", "| a |\n")
    assert (tmp_path / "rows.md").read_text(
        encoding="utf-8"
    ) == f"`python rows.py` ({made_on()}): shares of ten.\n\n| a |\n"
    parts = made_on().split(", ")
    assert abs((datetime.now(UTC).date() - datetime.fromisoformat(parts[0]).date()).days) <= 1
    assert parts[1].endswith(" cores")
    assert parts[2:] == [platform.machine(), f"Python {platform.python_version()}", f"JAX {jax.__version__}"]


def test_add_missing_rows_writes_each_new_row_immediately(tmp_path):
    file, made = tmp_path / "rows.json", []

    def make(seed, arm):
        if (seed, arm) == (1, "b"):
            raise KeyboardInterrupt
        made.append((seed, arm))
        return {"curve": [seed, 1]}

    def settings(row):
        return settings_hash({"steps": 40}, row["arm"])

    wanted = [{"seed": seed, "arm": arm} for seed in (0, 1) for arm in "ab"]
    with pytest.raises(KeyboardInterrupt):
        add_missing_rows(file, wanted, make, settings=settings)
    assert json.loads(file.read_text(encoding="utf-8")) == [
        {"seed": seed, "arm": arm, "settings": settings({"arm": arm}), "curve": [seed, 1]}
        for seed, arm in ((0, "a"), (0, "b"), (1, "a"))
    ]
    rows = add_missing_rows(file, wanted, lambda seed, arm: {"curve": []}, settings=settings)
    assert made == [(0, "a"), (0, "b"), (1, "a")]
    assert rows == json.loads(file.read_text(encoding="utf-8"))
    assert rows[3] == {"seed": 1, "arm": "b", "settings": settings({"arm": "b"}), "curve": []}


def test_rows_of_other_settings_are_replaced(tmp_path):
    file = tmp_path / "rows.json"
    add_missing_rows(file, [{"seed": 0}, {"seed": 1}], lambda seed: {"curve": [0.5]}, settings=lambda row: "40 steps")
    rows = add_missing_rows(file, [{"seed": 0}], lambda seed: {"curve": [1.0]}, settings=lambda row: "41 steps")
    assert rows == json.loads(file.read_text(encoding="utf-8")) == [{"seed": 0, "settings": "41 steps", "curve": [1.0]}]


def test_formatted_means_have_an_interval_from_five_seeds():
    shares = [0.11, 0.52, 0.33, 0.74, 0.25]
    error = 2.776445 * np.std(shares, ddof=1) / np.sqrt(5)
    low, high = (100 * (np.mean(shares) + sign * error) for sign in (-1, 1))
    assert format_percent(dict(enumerate(shares))) == f"39.0 % ({low:.1f} to {high:.1f})"
    assert format_percent(dict(enumerate(shares[:4]))) == "42.5 %"
    assert format_percent({}) == "-"
    moved = {seed: share - 0.1 * (seed % 2) for seed, share in enumerate(shares)}
    assert format_points(moved, {**dict(enumerate(shares)), 9: 1.0}) == "-4.0 (-10.8 to +2.8)"
    assert format_points({0: 0.5}, {1: 0.5}) == "-"
