"""The experiment on a pretrained model: its reward, its problems, and that its committed results match its settings."""

import json
import re
from pathlib import Path

from real.addition import ARMS, last_number, plot, report, settings_of, write_sums

FILE = Path(__file__).resolve().parents[2] / "experiments" / "real" / "addition.json"


def test_the_last_number_is_judged():
    answers = ["17 + 25 = 42", "42", "It is 42, since 17 + 25 is that", "about 42.", "forty-two", ""]
    assert last_number(answers, ["42"] * len(answers)) == [1, 1, 0, 1, 0, 0]


def test_no_held_out_sum_is_trained_on(tmp_path):
    train, heldout = ([json.loads(line) for line in file.read_text().splitlines()] for file in write_sums(tmp_path))
    rows = [*train, *heldout]
    sums = [re.findall(r"\d+", row["prompt"][0]["content"]) for row in rows]
    assert (len(train), len(heldout), len({*map(tuple, sums)})) == (90 * 90 - 256, 256, 90 * 90)
    assert all(int(a) + int(b) == int(row["answer"]) for (a, b), row in zip(sums, rows, strict=True))


def test_committed_rows_match_the_settings():
    rows = json.loads(FILE.read_text())
    assert rows
    assert [row["settings"] for row in rows] == [settings_of(row) for row in rows]
    assert {row["arm"] for row in rows} <= {*ARMS}


def test_page_and_picture_are_made_from_the_rows(tmp_path):
    rows = json.loads(FILE.read_text())
    assert report(rows) in FILE.with_suffix(".md").read_text()
    plot(rows, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    assert FILE.with_suffix(".png").is_file()


def test_every_run_learned():
    for row in json.loads(FILE.read_text()):
        first, *_, last = row["accuracy"].values()
        assert last > first + 0.3, (row["arm"], row["seed"])
