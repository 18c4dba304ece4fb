"""The threat model: every threat has a test, the page prints the tables, and a run logs the threats that are not held back."""

import ast
from pathlib import Path

import pytest
from rewards.sandbox import test_hostile

from rljax.rewards.sandbox import LEVELS, seccomp
from rljax.rewards.sandbox.syscall_commands import COMMANDS
from rljax.rewards.sandbox.threats import (
    ALWAYS,
    LANDLOCK,
    LANDLOCK_SIGNALS,
    OWN_USER,
    THREATS,
    Machine,
    describe_exposure,
    is_prevented,
)

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "notebooks" / "sandbox.md"
PROGRAMS = {
    *test_hostile.ENDLESS_PROGRAMS,
    *test_hostile.REACHING_PROGRAMS,
    *test_hostile.FORGING_PROGRAMS,
    *test_hostile.SEARCHING_PROGRAMS,
}
TESTS = {
    node.name
    for file in HERE.glob("test_*.py")
    for node in ast.parse(file.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef)
}


@pytest.mark.parametrize("threat", THREATS, ids=lambda threat: threat.attempt)
def test_every_threat_names_existing_tests(threat):
    assert threat.tests
    assert not set(threat.tests) - PROGRAMS - TESTS
    for level in LEVELS:
        assert {*getattr(threat, level)} <= {ALWAYS, OWN_USER, LANDLOCK, LANDLOCK_SIGNALS}


def test_every_reaching_program_belongs_to_a_threat():
    named = {name for threat in THREATS for name in threat.tests}
    variants = {"kill everything", "kill the group"}  # variants of "kill the parent"
    assert not set(test_hostile.REACHING_PROGRAMS) - named - variants


def test_strongest_level_holds_back_every_threat():
    for threat in THREATS:
        assert is_prevented(threat, "namespaces", Machine(False, 0))
    assert describe_exposure("namespaces", Machine(False, 0)) == ""


def test_weaker_level_never_holds_back_more():
    for machine in (Machine(user, landlock) for user in (False, True) for landlock in (0, 1, 5, 6, 7)):
        for threat in THREATS:
            held = [is_prevented(threat, level, machine) for level in LEVELS]
            assert held == sorted(held, reverse=True), threat.attempt


def test_exposure_lists_the_threats_that_are_not_held_back():
    text = describe_exposure("rlimits", Machine(False, 0))
    for threat in THREATS:
        assert (threat.attempt in text) == (not is_prevented(threat, "rlimits", Machine(False, 0)))


def threat_table():
    """Format the threats as a table in Markdown."""
    rows = [
        f"| prevented: a program that tries to ... | {' | '.join(f'`{level}`' for level in LEVELS)} |",
        "|---|---|---|---|",
    ]
    for threat in THREATS:
        cells = [" or ".join(getattr(threat, level)) if getattr(threat, level) else "no" for level in LEVELS]
        rows.append(f"| {threat.attempt} | {' | '.join(cells)} |")
    return "\n".join(rows)


def command_table():
    """Format the commands of `fcntl`, `ioctl` and `prctl` as a table in Markdown."""
    rows = ["| call | command | allowed | because |", "|---|---|---|---|"]
    rows += [f"| `{row.call}` | {row.name} | {row.allowed} | {row.why} |" for row in COMMANDS]
    return "\n".join(rows)


def test_page_prints_the_tables():
    page = PAGE.read_text(encoding="utf-8")
    assert threat_table() in page
    assert command_table() in page
    counts = [
        sum(len(seccomp._numbers(table, machine)) for table in (seccomp._ALWAYS, seccomp._WRITING, seccomp._CONDITIONAL))
        for machine in ("x86_64", "aarch64")
    ]
    assert f"allows {counts[0]} system calls on x86_64 and {counts[1]} on aarch64" in " ".join(page.split())


def test_each_command_has_one_row():
    numbers = [(row.call, number) for row in COMMANDS for number in row.numbers]
    assert len(numbers) == len(set(numbers))
