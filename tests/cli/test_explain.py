"""`rljax explain`: the list of metrics, the entry of a metric, and JSON."""

import json
import os
import re
from itertools import pairwise

import pytest
from small_cli import printed, refused

from rljax.tracking.glossary import GLOSSARY


def test_explain_lists_every_metric_by_group(capsys):
    lines = printed(capsys, "explain").splitlines()
    names = {entry.name for entry in GLOSSARY}
    shown = [line for line, below in pairwise(lines) if line in names and not below.startswith("=")]
    assert shown == [entry.name for entry in GLOSSARY]
    titles = [lines[index - 1] for index, line in enumerate(lines) if line and set(line) == {"="}]
    assert titles == ["reward", "rollout", "update", "critic", "pairs", "time"]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("columns", [80, 120])
def test_entries_are_complete_and_fit_the_terminal(capsys, monkeypatch, columns):
    monkeypatch.setattr("shutil.get_terminal_size", lambda **options: os.terminal_size((columns, 24)))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    text = printed(capsys, "explain", *(entry.name for entry in GLOSSARY))
    assert columns - 20 < max(map(len, text.splitlines())) <= columns
    words = " ".join(text.split())
    for entry in GLOSSARY:
        for field in (entry.meaning, entry.formula, entry.source, entry.expect, entry.act):
            assert " ".join(field.split()) in words


def test_explain_accepts_displayed_labels(capsys):
    text = printed(capsys, "explain", "KL", "filtered groups")
    assert re.findall(r"^(\w+):", text, re.MULTILINE) == ["kl", "filtered_ratio"]
    assert "not the distance from" in " ".join(text.split())


def test_explain_json(capsys):
    rows = json.loads(printed(capsys, "explain", "--json"))
    assert [row["name"] for row in rows] == [entry.name for entry in GLOSSARY]
    (row,) = json.loads(printed(capsys, "explain", "clip_fraction", "--json"))
    assert row["label"] == "clip fraction"
    assert set(row) == {"name", "phases", "unit", "meaning", "formula", "source", "expect", "act", "label"}


def test_unknown_metric_is_refused(capsys):
    refused(capsys, "no metric 'filterd_ratio'; did you mean 'filtered_ratio'", "explain", "filterd_ratio")
