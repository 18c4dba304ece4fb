"""Solutions with labeled steps: rows in TRL's stepwise format, and the errors for invalid rows."""

import json

import pytest

from rljax.data.bad_rows import BadRowError
from rljax.data.labeled_solutions import read_solution, read_solutions
from rljax.errors import InputError

ROW = {"prompt": "1+1+1=", "completions": ["1+1=2", "2+1=4"], "labels": [True, 0.25]}


def test_read_solution():
    solution = read_solution(ROW)
    assert (solution.prompt, solution.steps, solution.labels) == ("1+1+1=", ("1+1=2", "2+1=4"), (1.0, 0.25))
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1="}]
    chat = read_solution({**ROW, "prompt": messages, "tools": [{"type": "function"}]})
    assert chat.prompt == "Add.\n1+1="
    assert chat.messages == tuple(messages)
    assert chat.columns == {"tools": [{"type": "function"}]}
    assert read_solution({"q": "1=", **{name: ROW[name] for name in ("completions", "labels")}}, "q").prompt == "1="


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": [1]}, "2 steps have 1 labels"),
        ({"labels": [True, 2]}, "from 0 to 1, not"),
        ({"labels": [True, "no"]}, "from 0 to 1, not"),
        ({"labels": [True, float("nan")]}, "from 0 to 1, not"),
        ({"labels": True}, "one entry per step"),
        ({"completions": []}, "one or more texts"),
        ({"completions": ["1", 2]}, "one or more texts"),
        ({"completions": "1+1=2"}, "one entry per step"),
        ({"prompt": " "}, "prompt is empty"),
    ],
)
def test_read_solution_invalid_row(changes, message):
    with pytest.raises(BadRowError, match=message):
        read_solution({**ROW, **changes})


def test_read_solution_without_prompt():
    with pytest.raises(BadRowError, match="no column with the prompt"):
        read_solution({"completions": ["1"], "labels": [1]})


@pytest.mark.usefixtures("without_type_checks")
def test_read_solutions_on_error(tmp_path):
    file = tmp_path / "steps.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in (ROW, {**ROW, "labels": []}, ROW)))
    with pytest.raises(InputError, match=r"line 2, column 'labels': 2 steps have 0 labels"):
        read_solutions(file)
    with pytest.raises(InputError, match="on_error is 'oops'; choose one of fatal, drop"):
        read_solutions(file, on_error="oops")
    loaded = read_solutions(file, on_error="drop")
    assert len(loaded.solutions) == 2
    assert len(loaded.faults) == 1
