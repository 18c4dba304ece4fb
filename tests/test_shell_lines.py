"""Shell lines in the README and on the pages: bash and zsh, with their usual settings, read each line as printed.

The README's fast commands are also run.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_pages import PAGES, ROOT

SHELLS = ("bash", "zsh")
PROGRAMS = r"(?:\.venv/bin/)?(?:rljax|python3?|pip|pytest|source|hf|curl|git|tensorboard)(?=\s|$)"
FAST_COMMANDS = ("equations", "algorithms dapo", "train --help-all", "--version")
PLACEHOLDER = "..."
"""Stands for flags that the reader fills in; a line with it is not meant to be pasted."""


def shell_lines(page: Path) -> list[str]:
    """Lines on a page that a reader pastes into a shell, with continuation lines joined."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"(?:^ {4}\S.*\n(?: {4}.*\n)*)", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    joined = "".join(blocks).replace("\\\n", " ")
    lines = [line.strip() for line in joined.splitlines() if re.match(rf"\s*(?:\w+=\S+ )*{PROGRAMS}", line)]
    return lines + [line for line in re.findall(r"^\| `(\S+ [^`]+)` \|", text, re.MULTILINE) if re.match(PROGRAMS, line)]


LINES = sorted({(page.name, line) for page in PAGES for line in shell_lines(page) if PLACEHOLDER not in line})


def words_of(shell: str, line: str) -> list[list[str]]:
    """Words that a shell passes to each command in a line, found by running a program that prints its arguments."""
    show = f"{sys.executable} -c 'import json, sys; print(json.dumps(sys.argv[1:]))'"
    parts = re.split(r"\s(?:&&|\|)\s", re.sub(r"\s(?:2?>|<)\s*\S+", "", line))
    script = "\n".join(f"{show} {part}" for part in parts)
    options = {"bash": ["--norc"], "zsh": ["-f", "-o", "NO_INTERACTIVE_COMMENTS", "-o", "NOMATCH"]}[shell]
    done = subprocess.run(
        [shutil.which(shell) or shell, *options, "-c", script], capture_output=True, text=True, check=True, cwd="/"
    )
    assert not done.stderr, done.stderr
    return [json.loads(row) for row in done.stdout.splitlines()]


def find_misreading(line: str) -> str | None:
    """Return why an interactive shell would misread a line, or None if it would not."""
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", line)
    if re.search(r"(?:^|\s)#", bare):
        return "zsh passes the words after a # as arguments"
    if re.search(r"[?*\[\]]|(?:^|\s)[~=]\w", bare):
        return "zsh expands it as a pattern of file names"
    return "a ! recalls an earlier command" if "!" in re.sub(r"'[^']*'", "", line) else None


@pytest.mark.parametrize(("page", "line"), LINES, ids=[f"{page}-{line[:40]}" for page, line in LINES])
def test_a_line_means_the_same_in_every_shell(page, line):
    assert find_misreading(line) is None


@pytest.mark.parametrize(
    "line",
    ["rljax equations what bounds the ratio?", "rljax eval runs/a  # accuracy", "pip install -e .[test]", 'echo "what!"'],
)
def test_unsafe_lines_are_detected(line):
    assert find_misreading(line) is not None


def test_shell_lines_are_found_on_the_pages():
    names = {page for page, _ in LINES}
    assert {"README.md", "install.md", "first_run.md", "coming_from.md", "resuming.md"} <= names
    assert len(LINES) > 60


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_pass_the_same_words(shell):
    """One shell process reads all lines, to save time."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    lines = [line for _, line in LINES]
    joined = " && ".join(line for line in lines)
    words = words_of(shell, joined)
    assert len(words) >= len(lines)
    assert words == words_of("bash", joined)


@pytest.mark.parametrize("shell", SHELLS)
def test_fast_commands_of_the_readme_run(shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    commands = tmp_path / ".venv" / "bin"
    commands.mkdir(parents=True)
    (commands / "rljax").write_text(f'#!/bin/sh\nexec {sys.executable} -m rljax "$@"\n')
    (commands / "rljax").chmod(0o755)
    lines = [line for line in shell_lines(ROOT / "README.md") if any(f"rljax {start}" in line for start in FAST_COMMANDS)]
    assert len(lines) >= 2
    done = subprocess.run(
        [shutil.which(shell) or shell, "-c", " && ".join(lines)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "bounded" in done.stdout
    assert "keep_group" in done.stdout
