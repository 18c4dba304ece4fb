"""The page of ideas: the commands listed for an idea parse, its tests exist and mention them, and linked files exist."""

import ast
import re
import shlex
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from book_site.ideas import DOCUMENTS, STATES, Idea, ideas_page, read_idea, read_ideas

from rljax.cli import COMMANDS, parse
from rljax.programs.base_settings import known_settings
from rljax.training.objective.algorithm import check_algorithm, make_algorithm

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
IDEAS = [idea for section in read_ideas().values() for idea in section]
WITH_COMMAND = [idea for idea in IDEAS if idea.commands]
INPUTS = ("model", "dataset", "task", "run", "run_folder", "device")
"""Flags for a path, a model, a task or a device, whose values differ between tests and ideas."""


@cache
def names_of_tests(file):
    """Names of the tests in a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@cache
def text_of(file):
    """A file's text in lowercase, with dashes replaced by underscores, so that flags match the names of settings."""
    return (ROOT / file).read_text(encoding="utf-8").lower().replace("-", "_")


def words_of(command):
    """Split a command into words, without `rljax`; a command that begins with a flag is for `rljax train`."""
    words = shlex.split(command)
    return words if words[0] == "python" else words[1:] if words[0] == "rljax" else ["train", *words]


def characteristic_words(command):
    """A command's flags and their values, or its name if it has none. A test of the command contains at least one of them."""
    name, *rest = words_of(command)
    if name == "python":
        return {Path(rest[0]).stem}
    flags = [word for word in rest if word.startswith("--")]
    words, flag = set(), ""
    for word in rest:
        if word.startswith("--"):
            flag = word[2:].replace("-", "_")
            words |= set() if flag in INPUTS else {flag}
        elif flag not in INPUTS and (flags or name == "explain"):
            words |= {
                part for part in re.findall(r"[a-z][\w]{3,}", word.replace("-", "_")) if part not in ("reward", "term")
            }
    return words - {"algorithm", "algorithm_options", "with", "reward", "samples"} or {name.replace("-", "_")}


def test_every_idea_has_a_unique_name_and_cites_a_known_document():
    assert len(IDEAS) >= 224
    assert [name for name, count in Counter(idea.name for idea in IDEAS).items() if count > 1] == []
    cited = {idea.name: {re.match(r"\w+", source)[0] for source in idea.where.split("; ")} for idea in IDEAS}
    assert {name: words - {*DOCUMENTS} for name, words in cited.items() if words - {*DOCUMENTS}} == {}


def test_every_idea_has_the_fields_that_its_state_needs():
    assert {idea.state for idea in IDEAS} == {*STATES}
    for idea in IDEAS:
        assert bool(idea.commands and idea.tests) or idea.state in ("missing", "outside"), idea
        assert bool(idea.reason) == (idea.state != "works"), idea
        assert not idea.commands or idea.state in ("works", "in part"), idea


@pytest.mark.parametrize(
    "row",
    [
        {"idea": "a", "where": "design 1"},
        {"idea": "a", "where": "design 1", "missing": "b", "outside": "c"},
        {"idea": "a", "where": "design 1", "lacks": "b"},
        {"idea": "a", "where": "design 1", "missing": "b", "state": "works"},
    ],
)
def test_a_row_without_exactly_one_state_is_refused(row):
    with pytest.raises(ValueError, match="An idea needs"):
        read_idea(row)


@pytest.mark.parametrize("idea", WITH_COMMAND, ids=lambda idea: idea.name)
def test_commands_of_an_idea_parse_and_their_algorithm_is_valid(idea):
    for command in idea.commands:
        words = words_of(command)
        if words[0] == "python":
            assert (ROOT / words[1]).is_file()
            continue
        parsed = parse(words)
        assert isinstance(parsed, COMMANDS[words[0]][0])
        if words[0] == "train":
            check_algorithm(make_algorithm(parsed.config), parsed.config)


def test_tests_of_every_idea_exist():
    names = [name.partition("::") for idea in IDEAS for name in idea.tests]
    assert ["::".join((file, name)) for file, _, name in names if name not in names_of_tests(file)] == []


def test_a_word_of_each_command_occurs_in_a_file_of_its_tests():
    untested = []
    for idea, command in [(each, command) for each in WITH_COMMAND for command in each.commands]:
        # tests that run every algorithm use `BY_NAME` instead of a name
        words = characteristic_words(command) | ({"by_name"} if "--algorithm " in command else set())
        texts = [text_of(name.partition("::")[0]) for name in idea.tests]
        if not any(word in text for word in words for text in texts):
            untested.append((idea.name, command, words))
    assert untested == []


def test_results_of_every_idea_exist():
    for idea in (idea for idea in IDEAS if idea.result):
        links = [NOTEBOOKS / link for link in re.findall(r"\]\(([^)#:]+)\)", idea.result)]
        spans = re.findall(r"`([^`]+)`", idea.result)
        assert all(span.startswith("rljax claims ") for span in spans), idea
        claims = [ROOT / "experiments" / "claims" / f"{span.split()[2]}.py" for span in spans]
        assert links or claims, idea
        assert [file for file in (*links, *claims) if not file.is_file()] == [], idea


def test_flags_and_links_in_reasons_exist():
    """Each flag in the explanation of a state is a setting or occurs in a command on the page, and each link leads to a page."""
    known = {"--resume", *(word for idea in WITH_COMMAND for command in idea.commands for word in command.split())}
    for idea in IDEAS:
        flags = {word for span in re.findall(r"`([^`]+)`", idea.reason) for word in span.split() if word.startswith("--")}
        assert {flag for flag in flags - known if flag[2:].replace("-", "_") not in known_settings()} == set(), idea
        links = re.findall(r"\]\((\w+\.md)\)", idea.reason)
        assert [link for link in links if not (NOTEBOOKS / link).is_file()] == [], idea


def test_the_page_has_every_idea_and_counts_them():
    page = ideas_page()
    rows = [line for line in page.splitlines() if line.startswith("| ") and "<small>" in line]
    assert len(rows) == len(IDEAS)
    for state in STATES:
        count = sum(f'data-state="{state}"' in row for row in rows)
        assert f'data-state="{state}">{state}</span> | {count} |' in page
        assert count == sum(idea.state == state for idea in IDEAS)
    assert all(row.count(" | ") == 3 for row in rows)


def test_the_page_is_readable_without_its_script():
    """The script only hides rows: it creates its own buttons, and no row is hidden at first."""
    page, script = ideas_page().split("<script>")
    assert "hidden" not in page
    assert "<button" not in page
    assert "http" not in script
    assert Idea._fields == ("name", "where", "state", "commands", "tests", "reason", "result")
