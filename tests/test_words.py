"""Docstrings, messages and pages use plain English: habits that made readers stop stay rare, and `Args:` name parameters."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PER = r"prompt|row|token|step|file|group|response|rollout|batch|seed|run|device|problem|call|line|turn|word|second|update"
HABITS = {
    rf"\b(?:nats|bytes|numbers?|tokens|responses|rows?|one|once|updates?|problems?|steps|entry|count) a (?:{PER})\b": "per",
    r"\bless (?:that|those) (?:of|with|without)\b": "minus",
    r"\bbeside\b": "alongside, next to, in addition to",
    r"\bdraws? (?:\w+ ){0,2}(?:tokens?|responses?|prompts?|samples?|problems?|answers?|continuations?|parameters)\b": "sample",
    r"\bdrawn\b(?! (?:as|next|to the|in (?:the|a) plot))": "sampled, generated, initialized",
    r"\b(?:go|goes|going|gone) on\b(?! at the same time)": "continue",
    r"\bwhole\b(?! numbers?)": "complete, full",
    r"(?:^|[.;] )Where (?:the|a|an|no|none|all|there|nothing|it|this|they|each|several)\b[^?]*,": "If, When",
    r"\b(?:no|an) opinions?\b": "abstains, returns no verdict",
    r"\bas (?:it is|they are|it was|they were)\b(?=[.,;:)]|$)": "unchanged",
    r"\blies\b|\bstands? (?:in|on|at|there|beside|below|above|behind|next)\b(?! for)": "is, is stored in",
    r"\b[Ff]loor \d": "layer",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\bwho (?:writes|knows|reads|calls|wants)\b": "callers that ...",
    r"\bthe other way round\b": "the reverse",
    r"\bnone of (?:its|their) own\b": "not its own",
    r"\bhand(?:s|ed)? back\b": "return",
    r"\bway out\b": "remedy",
    r"\b(?:that|those) of [^.,;:]{0,40}\b(?:that|those) of\b": "name the thing again",
    r"\b(?:normal|optim|initial|regular|general|minim|maxim|recogn|summar|standard|special|organ|penal)is(?:e|ed|es|ing|ation)\b": (
        "American spelling: -ize"
    ),
    r"\b(?:behaviours?|colours?|coloured|favours?|neighbour\w*|labelled|centred|learnt|judgement|per cent)\b": (
        "American spelling"
    ),
}
"""Regular expression for the words -> what to write instead."""
LIMITS: dict[str, float] = {
    "rljax": 1.0,
    "rljax/agents": 1.0,
    "rljax/algorithms": 0.5,
    "rljax/book": 1.0,
    "rljax/cli": 0.6,
    "rljax/data": 0.6,
    "rljax/engines": 1.0,
    "rljax/evaluation": 1.0,
    "rljax/models": 1.0,
    "rljax/ops": 0.5,
    "rljax/options": 1.0,
    "rljax/parallel": 1.0,
    "rljax/preference": 1.0,
    "rljax/programs": 1.0,
    "rljax/rewards": 0.2,
    "rljax/rollout": 1.1,
    "rljax/serving": 1.0,
    "rljax/settings": 2.2,
    "rljax/tasks": 1.0,
    "rljax/testing": 1.0,
    "rljax/tracking": 1.0,
    "rljax/training": 1.0,
    "experiments": 0.5,
    "notebooks": 1.0,
}
"""Package -> maximum of these words per 1,000 lines. A limit may only be lowered; none should be above 2."""


class Stop(NamedTuple):
    """Words at which a reader stops."""

    file: str
    line: int
    words: str
    better: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.words.strip(' .;')!r}: write {self.better!r}"


def prose_of_code(source: str) -> Iterator[tuple[int, str]]:
    """Yield comments, and strings of several words, line by line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and " " in token.string):
            for offset, line in enumerate(token.string.split("\n")):
                yield token.start[0] + offset, line.strip(" #\"'")


def prose_of_page(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page outside of code blocks."""
    is_code = False
    for number, line in enumerate(text.split("\n"), 1):
        is_code ^= line.lstrip().startswith("```")
        if not is_code and not line.startswith("    "):
            yield number, line


def stops_in(name: str, text: str) -> list[Stop]:
    """All stops in a file; words in backticks or braces are names, so they do not count."""
    lines = prose_of_page(text) if name.endswith(".md") else prose_of_code(text)
    plain = [(number, re.sub(r"`[^`]*`|\{[^{}]*\}", "`", line)) for number, line in lines]
    return [
        Stop(name, number, found.group(), better)
        for number, line in plain
        for words, better in HABITS.items()
        for found in re.finditer(words, line)
    ]


def files_of(package: str) -> list[Path]:
    """Markdown pages of notebooks, or Python files of another package; for rljax, only the files in its top folder."""
    folder = ROOT / package
    if package in ("rljax", "notebooks"):
        return sorted(folder.glob("*.md" if package == "notebooks" else "*.py"))
    return sorted(folder.rglob("*.py"))


def packages() -> list[str]:
    """Every package that needs its own limit."""
    inner = sorted(path.parent.name for path in (ROOT / "rljax").glob("*/__init__.py"))
    return ["rljax", *(f"rljax/{name}" for name in inner), "experiments", "notebooks"]


def test_every_package_has_a_limit():
    assert list(LIMITS) == packages()


@pytest.mark.parametrize("package", packages())
def test_words_that_make_a_reader_stop_are_rare(package):
    texts = {file: file.read_text(encoding="utf-8") for file in files_of(package)}
    stops = [stop for file, text in texts.items() for stop in stops_in(str(file.relative_to(ROOT)), text)]
    lines = sum(len(text.splitlines()) for text in texts.values())
    rate = 1000 * len(stops) / lines
    assert rate <= LIMITS[package], "\n".join(
        [f"{package} has {rate:.1f} of these words per 1,000 lines, at most {LIMITS[package]}:", *map(str, stops)]
    )


@pytest.mark.parametrize(
    ("text", "better"),
    [
        ('"""Entropy of a response, nats a token."""', "per"),
        ('"""Reward less that of the baseline."""', "minus"),
        ("x = 1  # the copy beside its parameter", "alongside, next to, in addition to"),
        ('raise ValueError("draw new responses, and go on")', "sample"),
        ('"""Where the group has one response, it is kept."""', "If, When"),
        ('"""A rule has no opinion here."""', "abstains, returns no verdict"),
        ('"""The rewards are normalised."""', "American spelling: -ize"),
    ],
)
def test_a_stop_is_found_with_its_line_and_the_better_word(text, better):
    found = stops_in("some.py", f"\n{text}\n")
    assert {stop.better for stop in found} >= {better}
    assert {(stop.file, stop.line) for stop in found} == {("some.py", 2)}


@pytest.mark.parametrize(
    "text",
    [
        '"""Where is the file? A whole number above 0, drawn as a bar, no less than 2."""',
        "whole = beside(drawn)",
        '"""The function `draw` and the field `whole`."""',
        '"""Behavior that a color labels; precise, raised, otherwise."""',
    ],
)
def test_plain_english_and_names_of_code_are_not_stops(text):
    assert not stops_in("some.py", f"{text}\n")


def test_code_blocks_of_pages_do_not_count():
    assert not stops_in("page.md", "Text.\n\n```text\nbeside\n```\n\n    beside\n")
    assert [stop.line for stop in stops_in("page.md", "Text.\nThis is beside that.\n")] == [2]


def unknown_args(source: str) -> list[str]:
    """Find the `Args:` entries of a file's docstrings that name no parameter of their function."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef) or "Args:\n" not in (text := ast.get_docstring(node) or ""):
            continue
        a = node.args
        parameters = {each.arg for each in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg) if each is not None}
        section = text.split("Args:\n", 1)[1].split("\n\n", 1)[0]
        names = [name.strip("* ") for entry in re.findall(r"^    ([\w*, ]+):", section, re.M) for name in entry.split(", ")]
        found += [f"{node.name}: {name}" for name in names if name.isidentifier() and name not in parameters]
    return found


def test_args_entries_name_parameters():
    assert unknown_args('def f(a, *, b):\n    """F.\n\n    Args:\n        a: one.\n        c: two.\n    """') == ["f: c"]
    files = [path for folder in ("rljax", "experiments") for path in (ROOT / folder).rglob("*.py")]
    unknown = {str(path.relative_to(ROOT)): unknown_args(path.read_text(encoding="utf-8")) for path in files}
    assert {path: names for path, names in unknown.items() if names} == {}
