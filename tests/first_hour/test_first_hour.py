"""The newcomers' scripts: the quick ones run in this environment, and the words of every command are on a page."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from first_hour.run import HERE, PERSONS, ROOT, play

QUICK = ("researcher",)
PAGES = [ROOT / "README.md", *sorted((ROOT / "notebooks").glob("*.md"))]


def words_of(line):
    """Command and flags of a command line, without values."""
    words = shlex.split(line.partition(" | ")[0].partition(" > ")[0].partition(" 2> ")[0], comments=True)
    return {word for word in words[1:2] if not word.startswith("-")} | {word for word in words if word.startswith("--")}


def command_lines(text):
    """Lines that call rljax, continued lines joined."""
    joined = text.replace("\\\n", " ")
    return re.findall(r"(?:^|[\s`])(rljax [^\n`]*)", joined)


@pytest.mark.parametrize("person", QUICK)
def test_the_quick_scripts_work_in_this_environment(person, tmp_path):
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    play(person, tmp_path, environment)


@pytest.mark.parametrize("person", PERSONS)
def test_every_word_of_a_script_s_commands_is_on_a_page(person):
    words = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]*|[a-z]+(?:-[a-z]+)*)")
    page_words = set().union(*(words.findall(page.read_text()) for page in PAGES))
    typed = set().union(*map(words_of, command_lines((HERE / f"{person}.sh").read_text())))
    of_others = {"--num-generations"}  # of another library
    assert len(typed) > 2
    assert not typed - page_words - of_others
