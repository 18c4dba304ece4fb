"""The page of ideas: every command of it can be typed, every test and every file of it exists."""

import ast
import re
import shlex
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from rljax.cli import COMMANDS, parse
from rljax.programs.start import known_settings
from rljax.training.objective.algorithm import check_algorithm, make_algorithm

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "notebooks" / "ideas.md"


class Row(NamedTuple):
    """A line of a table."""

    idea: str
    commands: list[str]
    tests: list[str]
    result: str


def rows():
    """The lines of all tables of the page."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith(("| idea ", "| ---"))
    ]
    return [
        Row(idea, re.findall(r"`([^`]+)`", commands), re.findall(r"`([^`]+)`", tests), result)
        for idea, commands, tests, result in cells
    ]


ROWS = rows()


@cache
def functions_of(file):
    """Names of the tests of a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_idea_is_named_once_with_a_command_a_test_and_a_result():
    assert len(ROWS) >= 60
    assert len({row.idea for row in ROWS}) == len(ROWS)
    assert [row.idea for row in ROWS if not (row.commands and row.tests and row.result)] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.idea)
def test_its_commands_can_be_typed_and_its_parts_fit(row):
    for command in row.commands:
        words = shlex.split(command)
        if words[0] == "python":
            assert (ROOT / words[1]).is_file()
            continue
        words = words[1:] if words[0] == "rljax" else ["train", *words]
        parsed = parse(words)
        assert isinstance(parsed, COMMANDS[words[0]][0])
        if words[0] == "train":
            check_algorithm(make_algorithm(parsed.config), parsed.config)


def test_ideas_without_a_command_are_listed_and_have_none():
    missing = PAGE.read_text(encoding="utf-8").partition("## Ideas without a command")[2]
    ideas = [line[2:].partition("; nearest")[0] for line in missing.splitlines() if line.startswith("- ")]
    assert len(ideas) >= 20
    assert not {*ideas} & {row.idea for row in ROWS}
    flags = {word for command in re.findall(r"`([^`]+)`", missing) for word in command.split() if word.startswith("--")}
    known = {"--resume", *(word for row in ROWS for command in row.commands for word in command.split())}
    assert {flag for flag in flags - known if flag[2:].replace("-", "_") not in known_settings()} == set()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.idea)
def test_its_tests_exist(row):
    for name in row.tests:
        file, _, function = name.partition("::")
        assert function in functions_of(file), name


@pytest.mark.parametrize("row", [row for row in ROWS if row.result != "-"], ids=lambda row: row.idea)
def test_its_results_exist(row):
    links = [PAGE.parent / link for link in re.findall(r"\]\(([^)#:]+)\)", row.result)]
    spans = re.findall(r"`([^`]+)`", row.result)
    claims = [
        ROOT / "experiments" / "claims" / f"{span.split()[2]}.py" for span in spans if span.startswith("rljax claims ")
    ]
    files = [ROOT / span for span in spans if not span.startswith("rljax ")]
    assert len(links) + len(claims) + len(files) == len(links) + len(spans) > 0
    assert [file for file in (*links, *claims, *files) if not file.is_file()] == []
