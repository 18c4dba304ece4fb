"""The `on_error` choices for bad rows: fatal, drop or keep. Faults name file, line and column; files are not changed."""

import json
import stat

import pytest

from rljax.data.bad_rows import describe_faults
from rljax.data.cells import MAX_CHARACTERS
from rljax.data.problem_datasets import load_problems, read_problems
from rljax.errors import InputError

GOOD = '{"prompt": "a", "answer": "1"}'
BAD = {
    "malformed": '{"prompt": "a", "answer": ',
    "not an object": "[1]",
    "deeply nested": "[" * 100_000,
    "missing prompt": '{"answer": "1"}',
    "missing answer": '{"prompt": "a"}',
    "null answer": '{"prompt": "a", "answer": null}',
    "mixed types": '{"prompt": "a", "answer": {"value": 1}}',
    "number as prompt": '{"prompt": 7, "answer": "1"}',
    "huge answer": json.dumps({"prompt": "a", "answer": "1" * 10_000_000}),
    "lone surrogate": '{"prompt": "a\\ud800", "answer": "1"}',
}
KEPT = {"missing answer", "null answer", "mixed types", "huge answer"}


@pytest.fixture
def write(tmp_path):
    def _write(*lines):
        path = tmp_path / "data.jsonl"
        path.write_text("\n".join(lines) + "\n")
        path.chmod(stat.S_IRUSR)
        return path

    return _write


@pytest.mark.parametrize("name", BAD)
def test_on_error_default_is_fatal(write, name):
    with pytest.raises(InputError, match=r"data\.jsonl, line 2[,:]") as refused:
        load_problems(write(GOOD, BAD[name], GOOD))
    assert len(str(refused.value)) < 500
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", BAD)
def test_on_error_drop(write, name):
    path = write(GOOD, BAD[name], GOOD)
    before = path.read_bytes()
    loaded = read_problems(path, on_error="drop")
    assert (len(loaded.problems), loaded.rows, loaded.places) == (2, 3, ["line 1", "line 3"])
    (fault,) = loaded.faults
    assert (fault.source, fault.place, fault.kept) == (str(path), "line 2", False)
    assert describe_faults(loaded.faults).startswith("1 bad row left out. ")
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", BAD)
def test_on_error_keep(write, name):
    loaded = read_problems(write(GOOD, BAD[name], GOOD), on_error="keep")
    assert [problem.answer for problem in loaded.problems] == (["1", "", "1"] if name in KEPT else ["1", "1"])
    (fault,) = loaded.faults
    assert fault.kept == (name in KEPT)


def test_answer_of_maximum_length(write):
    longest = json.dumps({"prompt": "a", "answer": "1" * MAX_CHARACTERS})
    assert len(load_problems(write(longest))[0].answer) == MAX_CHARACTERS


def test_answer_too_long(write):
    with pytest.raises(
        InputError, match=r"line 1, column 'answer': the answer has 10,000,000 characters, more than 1,000,000"
    ):
        load_problems(write(BAD["huge answer"]))


def test_empty_file_is_always_an_error(write):
    for on_error in ("fatal", "drop", "keep"):
        path = write("")
        with pytest.raises(InputError, match=r"data\.jsonl contains no problems"):
            load_problems(path, on_error=on_error)
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)


def test_only_bad_rows_is_an_error(write):
    with pytest.raises(InputError, match=r"line 1: the line is not JSON .* 1 more row cannot be used either"):
        load_problems(write(GOOD[:-1], GOOD[:-1]), on_error="drop")


def test_first_usable_row_determines_columns(write):
    loaded = read_problems(write("{", '{"id": 1}', GOOD), on_error="drop")
    assert loaded.places == ["line 3"]
    assert [fault.place for fault in loaded.faults] == ["line 1", "line 2"]
    with pytest.raises(InputError, match="line 2: the row has none of the columns prompt, "):
        load_problems(write("{", '{"id": 1}', GOOD))


def test_on_error_keep_drops_only_bad_demonstration(write):
    worked = '{"prompt": "a", "answer": "1", "demonstration": "so 1"}'
    broken = '{"prompt": "a", "answer": "1", "demonstration": 3}'
    loaded = read_problems(write(worked, broken), on_error="keep")
    assert [(problem.answer, problem.demonstration) for problem in loaded.problems] == [("1", "so 1"), ("1", None)]
    assert loaded.faults[0].column == "demonstration"


def test_describe_summarizes_faults(write):
    loaded = read_problems(write(GOOD, *["{"] * 5, BAD["null answer"]), on_error="keep")
    summary = describe_faults(loaded.faults)
    assert summary.startswith("5 bad rows left out, 1 bad row kept, with an empty answer")
    assert summary.endswith(" And 3 more.")
    assert summary.count("the line is not JSON") == 3
    assert describe_faults([]) == ""


@pytest.mark.usefixtures("without_type_checks")
def test_unknown_on_error(write):
    with pytest.raises(InputError, match="on_error is 'skip'; choose one of fatal, drop, keep"):
        load_problems(write(GOOD), on_error="skip")
