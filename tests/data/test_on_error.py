"""Bad rows are named by file, line and column; they are fatal, left out or kept, and counted. The file is never changed."""

import json
import stat

import pytest

from rljax.data.bad_rows import describe
from rljax.data.cells import MAX_CHARACTERS
from rljax.data.dataset import load_problems, read_problems
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
    "half a character": '{"prompt": "a\\ud800", "answer": "1"}',
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
def test_fatal_is_the_default_and_names_the_line(write, name):
    with pytest.raises(InputError, match=r"data\.jsonl, line 2[,:]") as refused:
        load_problems(write(GOOD, BAD[name], GOOD))
    assert len(str(refused.value)) < 500
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", BAD)
def test_dropped_rows_are_left_out_and_counted(write, name):
    path = write(GOOD, BAD[name], GOOD)
    before = path.read_bytes()
    loaded = read_problems(path, on_error="drop")
    assert (len(loaded.problems), loaded.rows, loaded.places) == (2, 3, ["line 1", "line 3"])
    (fault,) = loaded.faults
    assert (fault.source, fault.place, fault.kept) == (str(path), "line 2", False)
    assert describe(loaded.faults).startswith("1 bad row left out. ")
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", BAD)
def test_kept_rows_have_an_empty_answer_and_rows_without_a_prompt_cannot_be_kept(write, name):
    loaded = read_problems(write(GOOD, BAD[name], GOOD), on_error="keep")
    assert [problem.answer for problem in loaded.problems] == (["1", "", "1"] if name in KEPT else ["1", "1"])
    (fault,) = loaded.faults
    assert fault.kept == (name in KEPT)


def test_the_limit_of_length(write):
    longest = json.dumps({"prompt": "a", "answer": "1" * MAX_CHARACTERS})
    assert len(load_problems(write(longest))[0].answer) == MAX_CHARACTERS


def test_the_limit_is_reported(write):
    with pytest.raises(
        InputError, match=r"line 1, column 'answer': the answer has 10,000,000 characters, more than 1,000,000"
    ):
        load_problems(write(BAD["huge answer"]))


def test_an_empty_file_is_an_error_for_every_on_error(write):
    for on_error in ("fatal", "drop", "keep"):
        path = write("")
        with pytest.raises(InputError, match=r"data\.jsonl contains no problems"):
            load_problems(path, on_error=on_error)
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)


def test_a_file_of_only_bad_rows_is_an_error(write):
    with pytest.raises(InputError, match=r"line 1: the line is not JSON .* 1 more rows cannot be used either"):
        load_problems(write(GOOD[:-1], GOOD[:-1]), on_error="drop")


def test_columns_are_determined_by_the_first_row_that_has_them(write):
    loaded = read_problems(write("{", '{"id": 1}', GOOD), on_error="drop")
    assert loaded.places == ["line 3"]
    assert [fault.place for fault in loaded.faults] == ["line 1", "line 2"]
    with pytest.raises(InputError, match="line 2: there is none of the columns prompt"):
        load_problems(write("{", '{"id": 1}', GOOD))


def test_only_the_demonstration_is_lost_if_nothing_else_is_bad(write):
    worked = '{"prompt": "a", "answer": "1", "demonstration": "so 1"}'
    broken = '{"prompt": "a", "answer": "1", "demonstration": 3}'
    loaded = read_problems(write(worked, broken), on_error="keep")
    assert [(problem.answer, problem.demonstration) for problem in loaded.problems] == [("1", "so 1"), ("1", None)]
    assert loaded.faults[0].column == "demonstration"


def test_many_faults_are_summed_up(write):
    loaded = read_problems(write(GOOD, *["{"] * 5, BAD["null answer"]), on_error="keep")
    summary = describe(loaded.faults)
    assert summary.startswith("5 bad rows left out, 1 bad row kept, with an empty answer")
    assert summary.endswith(" And 3 more.")
    assert summary.count("the line is not JSON") == 3
    assert describe([]) == ""


@pytest.mark.usefixtures("untyped")
def test_an_unknown_on_error_is_refused(write):
    with pytest.raises(InputError, match="on_error is 'skip'; choose one of fatal, drop, keep"):
        load_problems(write(GOOD), on_error="skip")
