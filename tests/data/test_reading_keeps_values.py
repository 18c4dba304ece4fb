"""Reading 1,000 rows of each format loses only the values in `CHANGED`; missing entries are null, as `datasets` stores them."""

import json
from collections.abc import Mapping

import pyarrow
import pytest
from pyarrow import parquet

from rljax.data.cells import without_nulls
from rljax.data.feedback import read_new_lines
from rljax.data.preferences import read_preferences
from rljax.data.problem_datasets import read_problems

ROWS = 1_000
CALL = {"type": "function", "function": {"name": "add", "arguments": {"left": 2, "right": 3}}}
TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}


def question(n):
    return [{"role": "system", "content": f"s{n}"}, {"role": "user", "content": f"u{n}?"}]


def make_reply(n):
    """A reply; only every second one has a tool call, so the table contains nulls."""
    last = {"role": "assistant", "content": f"a{n}", "reasoning_content": f"r{n}"}
    if n % 2:
        return [last]
    return [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "name": "add", "content": f"t{n}"},
        last,
    ]


def choices(n):
    return {"label": ["A", "B"], "text": [f"yes{n}", f"no{n}"]}


FORMATS = {
    "plain": lambda n: {"prompt": f"p{n}", "answer": f"x{n}", "level": n, "tags": [f"g{n}"]},
    "verl": lambda n: {
        "prompt": question(n),
        "reward_model": {"style": "rule", "ground_truth": f"x{n}"},
        "data_source": "d",
        "extra_info": {"index": n, "split": None if n % 3 else "train"},
    },
    "HumanEval": lambda n: {
        "task_id": f"HumanEval/{n}",
        "prompt": f"def f{n}(x):\n",
        "canonical_solution": f"    return {n}\n",
        "test": f"def check(c):\n    assert c(0) == {n}\n",
        "entry_point": f"f{n}",
    },
    "MBPP": lambda n: {
        "task_id": n,
        "text": f"Write f{n}.",
        "code": f"def f{n}(): return {n}",
        "test_list": [f"assert f{n}() == {n}"],
        "test_setup_code": f"import m{n}",
        "challenge_test_list": [f"assert f{n}() < {n + 1}"],
    },
    "code with tests": lambda n: {"prompt": f"p{n}", "stdin": [f"{n}\n"], "stdout": [f"{n}{n}\n"], "time_limit": n / 2},
    "CodeContests": lambda n: {
        "name": f"c{n}",
        "description": f"Print {n}.",
        **{
            f"{kind}_tests": {"input": [f"{kind}{n}"], "output": [f"o{kind}{n}"]}
            for kind in ("public", "private", "generated")
        },
        "solutions": {"language": [2, 3], "solution": [f"cpp{n}", f"print({n})"]},
        "incorrect_solutions": {"language": [3], "solution": [f"wrong{n}"]},
        "cf_rating": n,
    },
    "AIME": lambda n: {"ID": f"2024-I-{n}", "Problem": f"q{n}", "Solution": f"w{n}", "Answer": n},
    "CommonsenseQA": lambda n: {
        "id": f"i{n}",
        "question": f"q{n}",
        "question_concept": f"k{n}",
        "choices": choices(n),
        "answerKey": "AB"[n % 2],
    },
    "FOLIO": lambda n: {
        "story_id": n,
        "premises": f"p{n}.\nq{n}.",
        "premises-FOL": f"P({n})",
        "conclusion": f"c{n}.",
        "label": ["True", "False", "Uncertain"][n % 3],
        "example_id": n,
    },
    "StrategyQA": lambda n: {
        "qid": f"i{n}",
        "question": f"q{n}",
        "answer": n % 2 == 0,
        "facts": [f"f{n}"],
        "term": f"t{n}",
    },
    "GSM8K": lambda n: {"question": f"q{n}", "answer": f"Thus {n}.\n#### {n}", "source": f"s{n}"},
    "MATH": lambda n: {
        "problem": f"q{n}",
        "solution": f"Thus $\\boxed{{{n}}}$.",
        "level": f"Level {n}",
        "type": f"t{n}",
    },
    "TRL messages": lambda n: {"messages": [*question(n), *make_reply(n)], "tools": [TOOL], "source": f"z{n}"},
    "TRL completion": lambda n: {"prompt": question(n), "completion": make_reply(n), "tools": [TOOL], "score": n / 4},
}
CHANGED = {
    "CodeContests": {"cpp", "wrong", "2"},
    "StrategyQA": {"True", "False"},
}
"""Format -> prefixes of the values that its reader drops (wrong solutions, other languages) or rewrites (labels)."""


def leaves(value):
    if isinstance(value, Mapping):
        return {leaf for entry in value.values() for leaf in leaves(entry)}
    if isinstance(value, list | tuple):
        return {leaf for entry in value for leaf in leaves(entry)}
    return set() if value is None else {str(value)}


def write_rows(rows, file):
    """Convert rows to a table, which fills missing entries with null, and write it as Parquet or JSON Lines."""
    table = pyarrow.Table.from_pylist(rows)
    if file.suffix == ".parquet":
        parquet.write_table(table, file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    return file


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@pytest.mark.parametrize("name", FORMATS)
def test_read_problems_keeps_every_value(tmp_path, name, suffix):
    rows = [FORMATS[name](n) for n in range(ROWS)]
    loaded = read_problems(write_rows(rows, tmp_path / f"rows{suffix}"))
    assert loaded.format == name
    assert len(loaded.problems) == ROWS
    assert not loaded.faults
    for row, problem in zip(rows, loaded.problems, strict=True):
        text = "\n".join([problem.prompt, problem.answer, problem.demonstration or ""])
        kept = leaves([problem.columns, problem.messages, problem.turns, problem.answer])
        lost = {leaf for leaf in leaves(row) if leaf not in kept and leaf not in text}
        assert {leaf for leaf in lost if not leaf.startswith(tuple(CHANGED.get(name, ("\0",))))} == set()
        assert bool(lost) <= (name in CHANGED)


@pytest.mark.parametrize("name", ["TRL messages", "TRL completion"])
def test_read_problems_removes_nulls_from_messages(tmp_path, name):
    rows = [FORMATS[name](n) for n in range(20)]
    for row, problem in zip(rows, read_problems(write_rows(rows, tmp_path / "rows.parquet")).problems, strict=True):
        chat = row["messages"] if "messages" in row else [*row["prompt"], *row["completion"]]
        theirs = [without_nulls(message) for message in chat]
        ours = [dict(message) for message in (*problem.messages, *problem.turns)]
        assert ours == [{"content": "", **message} for message in theirs]


PAIRS = {
    "texts": lambda n: {"prompt": f"p{n}", "chosen": f"c{n}", "rejected": f"x{n}", "margin": n / 2},
    "chats": lambda n: {
        "prompt": question(n),
        "chosen": [{"role": "assistant", "content": f"c{n}"}],
        "rejected": [{"role": "assistant", "content": f"x{n}"}],
        "tools": [TOOL],
    },
    "implicit": lambda n: {
        side: [*question(n), {"role": "assistant", "content": f"{side}{n}"}] for side in ("chosen", "rejected")
    },
}


@pytest.mark.parametrize("name", PAIRS)
def test_read_preferences_keeps_every_value(tmp_path, name):
    rows = [PAIRS[name](n) for n in range(ROWS)]
    pairs = read_preferences(write_rows(rows, tmp_path / "rows.parquet")).preferences
    for row, pair in zip(rows, pairs, strict=True):
        kept = leaves([pair.prompt, pair.chosen, pair.rejected, pair.messages, pair.margin, dict(pair.columns)])
        assert leaves(row) <= kept | {"user", "assistant", "system"}


FEEDBACK = {
    "text": lambda n: {"prompt": f"p{n}", "response": f"r{n}", "reward": n / 4, "id": f"i{n}"},
    "chat": lambda n: {"prompt": question(n), "response": f"r{n}", "reward": n / 4, "id": f"i{n}", "tools": [TOOL]},
    "tokens": lambda n: {"prompt": f"p{n}", "response": [n, n + 1], "reward": 0.5, "id": f"i{n}", "logp": [-0.5, -n / 8]},
}


@pytest.mark.parametrize("name", FEEDBACK)
def test_new_lines_keeps_every_value(tmp_path, name):
    rows = [FEEDBACK[name](n) for n in range(ROWS)]
    file = tmp_path / "queue.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = list(read_new_lines(file, {}))
    assert len(lines) == ROWS
    for row, line in zip(rows, lines, strict=True):
        feedback = line.content
        kept = leaves([feedback.prompt, feedback.messages, feedback.response, feedback.reward, feedback.id, feedback.logp])
        assert leaves(row) <= kept | leaves(dict(feedback.columns))
