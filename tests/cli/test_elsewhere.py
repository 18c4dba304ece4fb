"""Names of other libraries: every one of ours in the table exists, and the page and the table are equal."""

from pathlib import Path

import pytest

from rljax.algorithms import BY_NAME
from rljax.cli import COMMANDS
from rljax.cli.elsewhere import SHORT, TABLE, as_markdown, foreign_names, ours_for
from rljax.cli.flags import known_flags
from rljax.training.algorithm import option_names
from rljax.training.config import TrainConfig

PAGE = Path(__file__).resolve().parents[2] / "notebooks" / "coming_from.md"
FLAGS = known_flags(COMMANDS["train"][0], TrainConfig())


@pytest.mark.parametrize("ours", [*(row.ours for row in TABLE), *SHORT.values()])
def test_what_the_table_answers_can_be_typed(ours):
    flag, *rest = ours.split()
    assert flag in FLAGS
    for word in rest if flag == "--algorithm-options" else ():
        assert any(word.split("=")[0] in option_names(algorithm) for algorithm in BY_NAME)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.ours)
def test_every_name_of_another_library_is_answered(row):
    for _, name in foreign_names(row):
        assert ours_for(name).startswith(row.ours)
        assert ours_for(name.replace("_", "-")).startswith(row.ours)


def test_page_and_table_are_equal():
    assert as_markdown() in PAGE.read_text(encoding="utf-8")
