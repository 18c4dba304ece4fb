"""Scripts of what newcomers type in their first hour: the quick ones run here, and their commands and flags are documented."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from first_hour.run import HERE, NEWCOMERS, ROOT, run_script

QUICK = ("researcher",)
PAGES = [ROOT / "README.md", *sorted((ROOT / "notebooks").glob("*.md"))]


def words_of(line):
    """Return the subcommand and the flags of a command line, without values."""
    words = shlex.split(line.partition(" | ")[0].partition(" > ")[0].partition(" 2> ")[0], comments=True)
    return {word for word in words[1:2] if not word.startswith("-")} | {word for word in words if word.startswith("--")}


def command_lines(text):
    """Return the command lines that call rljax, with continued lines joined."""
    joined = text.replace("\\\n", " ")
    return re.findall(r"(?:^|[\s`])(rljax [^\n`]*)", joined)


@pytest.mark.parametrize("person", QUICK)
def test_quick_script_runs(person, tmp_path):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    run_script(person, tmp_path, environment)


@pytest.mark.parametrize("person", NEWCOMERS)
def test_script_commands_are_documented(person):
    words = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]*|[a-z]+(?:-[a-z]+)*)")
    page_words = set().union(*(words.findall(page.read_text()) for page in PAGES))
    used_words = set().union(*map(words_of, command_lines((HERE / f"{person}.sh").read_text())))
    other_flags = {"--num-generations"}  # a flag of another library
    assert len(used_words) > 2
    assert not used_words - page_words - other_flags
