"""The page on one DAPO step: its listed files exist, have the stated lengths, and are not under options/."""

import re
from pathlib import Path

import rljax

PACKAGE = Path(rljax.__file__).parent
PAGE = (PACKAGE.parent / "notebooks" / "one_dapo_step.md").read_text(encoding="utf-8")
LISTED = [(name, int(lines)) for name, lines in re.findall(r"^\| \d+ \| `rljax/(\S+)` \| (\d+) \|", PAGE, re.MULTILINE)]


def count_lines(name):
    return len((PACKAGE / name).read_text(encoding="utf-8").splitlines())


def test_listed_files_have_the_stated_lengths():
    """Within 10% or 20 lines, whichever is more, so that a small change to a file does not require a change to the page."""
    wrong = {name: count_lines(name) for name, lines in LISTED if abs(count_lines(name) - lines) > max(20, lines / 10)}
    assert not wrong


def test_totals_match_the_table():
    count, lines = re.search(r"these (\d+) files in this order; .*\s+have about ([\d,]+) lines", PAGE).groups()
    assert int(count) == len(LISTED)
    assert int(lines.replace(",", "")) == round(sum(lines for _, lines in LISTED), -2)


def test_named_functions_are_in_their_files():
    for name, text in re.findall(r"^\| \d+ \| `rljax/(\S+)` \| \d+ \| (.*) \|$", PAGE, re.MULTILINE):
        source = (PACKAGE / name).read_text(encoding="utf-8")
        assert not [word for word in re.findall(r"`(\w+)`", text) if not re.search(rf"(?:def|class) {word}\b", source)], (
            name
        )


def test_no_listed_file_is_an_option():
    assert not [name for name, _ in LISTED if name.startswith("options/")]
