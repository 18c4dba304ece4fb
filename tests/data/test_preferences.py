"""Preference pairs: TRL's formats, the error messages for unusable rows, and the split by prompt."""

import json

import pytest

from rljax.data.bad_rows import BadRowError
from rljax.data.preferences import (
    Preference,
    PreferenceColumns,
    read_preference,
    read_preferences,
    split_pairs,
)
from rljax.errors import InputError

USER, SYSTEM = {"role": "user", "content": "1+1?"}, {"role": "system", "content": "Add."}
RIGHT, WRONG = {"role": "assistant", "content": "2"}, {"role": "assistant", "content": "3"}
PAIR = {"prompt": "1+1=", "chosen": "2", "rejected": "3"}


@pytest.fixture
def write(tmp_path):
    """Return a function that writes rows (or a string, unchanged) to a file and returns the file's path."""

    def _write(rows, name="pairs.jsonl"):
        path = tmp_path / name
        if not isinstance(rows, str):
            rows = json.dumps(rows) if name.endswith(".json") else "".join(json.dumps(row) + "\n" for row in rows)
        path.write_text(rows, encoding="utf-8")
        return path

    return _write


@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.json"])
def test_explicit_text(write, name):
    assert read_preferences(write([PAIR], name)).preferences == [Preference("1+1=", "2", "3")]


def test_explicit_chat(write):
    row = {"prompt": [SYSTEM, USER], "chosen": [RIGHT], "rejected": [WRONG]}
    expected = Preference("Add.\n1+1?", "2", "3", (SYSTEM, USER))
    assert read_preferences(write([row])).preferences == [expected]
    whole = row | {"chosen": [SYSTEM, USER, RIGHT], "rejected": [SYSTEM, USER, WRONG]}
    assert read_preferences(write([whole])).preferences == [expected]
    as_text = {"prompt": "1+1?", "chosen": [USER, RIGHT], "rejected": [USER, WRONG]}
    assert read_preferences(write([as_text])).preferences == [Preference("1+1?", "2", "3")]


def test_implicit_chat_prompt_is_common_prefix(write):
    turns = [USER, RIGHT, {"role": "user", "content": "sure?"}]
    rows = [{"chosen": [*turns, RIGHT], "rejected": [*turns, WRONG]}]
    assert read_preferences(write(rows)).preferences == [Preference("1+1?\n2\nsure?", "2", "3", tuple(turns))]


@pytest.mark.parametrize(
    ("chosen", "rejected", "parts"),
    [
        ("The sky is blue.", "The sky is green.", ("The sky is", " blue.", " green.")),
        ("It is 12", "It is 13", ("It is", " 12", " 13")),
        ("It is 12", "It is 12 or so", ("It is", " 12", " 12 or so")),
        ("Q:\n\nyes", "Q:\n\nno", ("Q:\n", "\nyes", "\nno")),
        ("12", "13", ("", "12", "13")),
        ("a  b", "a  c", ("a ", " b", " c")),
    ],
)
def test_implicit_text_splits_before_first_difference(write, chosen, rejected, parts):
    assert read_preferences(write([{"chosen": chosen, "rejected": rejected}])).preferences == [Preference(*parts)]


def test_named_columns_and_margin(write):
    row = {"q": "1+1=", "pair": {"good": "2", "bad": "3"}, "margin": 1}
    found = read_preferences(
        write([row]), prompt_column="q", chosen_column="pair.good", rejected_column="pair.bad"
    ).preferences
    assert found == [Preference("1+1=", "2", "3", margin=1.0)]
    assert read_preferences(write([PAIR | {"margin": None}])).preferences == [Preference("1+1=", "2", "3")]
    (found,) = read_preferences(write([{"question": "1+1=", "chosen": "2", "rejected": "3", "margin": 0.5}])).preferences
    assert (found.prompt, found.margin) == ("1+1=", 0.5)


def test_folder_with_parquet_file(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="reading parquet needs pyarrow")
    from pyarrow import Table

    parquet.write_table(
        Table.from_pylist([{"prompt": [USER], "chosen": [RIGHT], "rejected": [WRONG]}]), tmp_path / "train.parquet"
    )
    assert read_preferences(tmp_path).preferences == [Preference("1+1?", "2", "3", (USER,))]


BAD = {
    "not json": "the line is not JSON",
    "[1]": "a row must be an object with named columns, not a list",
    json.dumps({"prompt": "1+1=", "chosen": "2"}): "column 'rejected': the column is missing",
    json.dumps(PAIR | {"chosen": 2}): "column 'chosen': a response must be text or a list of chat messages, not 2",
    json.dumps(PAIR | {"chosen": []}): "column 'chosen': a response must be text or a list of chat messages, not a list",
    json.dumps(PAIR | {"rejected": " "}): "column 'rejected': the response is empty",
    json.dumps(PAIR | {"rejected": "2"}): "column 'rejected': both responses are the same",
    json.dumps(PAIR | {"rejected": [WRONG]}): "column 'rejected': one response is text and the other a chat",
    json.dumps(PAIR | {"prompt": ""}): "column 'prompt': the prompt is empty",
    json.dumps({"chosen": "2", "rejected": "3"}): "column 'prompt': the column is missing",
    json.dumps(PAIR | {"margin": -1}): "column 'margin': a margin must be a finite number of at least 0, not -1",
    json.dumps(PAIR | {"margin": True}): "a margin must be a finite number of at least 0, not a boolean",
    json.dumps(PAIR | {"margin": "1"}): "a margin must be a finite number of at least 0, not text",
    json.dumps(
        PAIR | {"chosen": [USER], "rejected": [WRONG]}
    ): "must begin and end with an assistant message, .* but their roles are: user",
    json.dumps(
        PAIR | {"chosen": [RIGHT, WRONG], "rejected": [WRONG]}
    ): "must not have two assistant messages in a row, but their roles are: assistant, assistant",
    json.dumps(PAIR | {"chosen": [RIGHT | {"content": ""}], "rejected": [WRONG]}): "must not all be empty",
    json.dumps(PAIR | {"chosen": [RIGHT, USER], "rejected": [WRONG]}): "but their roles are: assistant, user",
}


@pytest.mark.parametrize("line", BAD, ids=list(BAD.values()))
def test_bad_row_is_reported_or_dropped(write, line):
    path = write(f"{json.dumps(PAIR)}\n\n{line}\n")
    with pytest.raises(InputError, match=rf"pairs\.jsonl, line 3.*{BAD[line]}"):
        read_preferences(path)
    loaded = read_preferences(path, on_error="drop")
    assert (loaded.preferences, loaded.places, loaded.rows) == ([Preference("1+1=", "2", "3")], ["line 1"], 2)
    assert [(fault.place, fault.kept) for fault in loaded.faults] == [("line 3", False)]
    assert path.read_text().endswith(f"{line}\n")


def test_responses_with_turns_and_tool_calls(write):
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]}
    returned, tools = {"role": "tool", "content": "2"}, [{"type": "function", "function": {"name": "add"}}]
    row = {"prompt": [USER], "chosen": [call, returned, RIGHT], "rejected": [WRONG], "tools": tools}
    (found,) = read_preferences(write([row])).preferences
    assert found.turns == ((call, returned, RIGHT), None)
    assert found.rejected == "3"
    assert found.columns == {"tools": tools}
    (found,) = read_preferences(write([{"chosen": [USER, RIGHT, USER, RIGHT], "rejected": [USER, WRONG]}])).preferences
    assert (found.messages, found.turns) == ((USER,), ((RIGHT, USER, RIGHT), None))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"chosen": [USER, RIGHT], "rejected": [SYSTEM, WRONG]}, "do not begin with the same message"),
        ({"chosen": [USER, RIGHT], "rejected": [USER, RIGHT]}, "both responses are the same"),
        ({"chosen": [USER, RIGHT, RIGHT], "rejected": [USER, RIGHT, WRONG]}, "ends with the assistant's turn"),
        ({"chosen": "a b", "rejected": "a b"}, "both responses are the same"),
        (
            {"better": "a", "rejected": "b"},
            r"no column 'chosen' .*\(the columns are: better, rejected\); set chosen_column and rejected_column",
        ),
        ({}, r"no column 'chosen' .*\(there are no columns\)"),
    ],
)
def test_unusable_implicit_rows(write, row, message):
    with pytest.raises(InputError, match=message):
        read_preferences(write([row]))


def test_prompt_missing_in_first_row(write):
    with pytest.raises(InputError, match="line 2, column 'prompt': this row has a prompt, but the first row"):
        read_preferences(write([{"chosen": "a b", "rejected": "a c"}, PAIR]))


@pytest.mark.usefixtures("without_type_checks")
def test_no_usable_row(write):
    with pytest.raises(InputError, match="contains no pairs"):
        read_preferences(write(""))
    with pytest.raises(InputError, match=r"line 1.* 1 more row cannot be used either"):
        read_preferences(write("{\n{\n"), on_error="drop")
    with pytest.raises(InputError, match="on_error is 'keep'; choose one of fatal, drop"):
        read_preferences(write([PAIR]), on_error="keep")
    with pytest.raises(InputError, match="column 'q': the column is missing"):
        read_preferences(write([PAIR]), prompt_column="q")


def test_read_preference_does_not_change_row():
    row = {"prompt": [USER], "chosen": [RIGHT], "rejected": [WRONG]}
    before = json.dumps(row)
    read_preference(row, PreferenceColumns("prompt", "chosen", "rejected"))
    assert json.dumps(row) == before


def test_split_pairs_by_prompt():
    pairs = [Preference(f"q{n % 40}", f"a{n}", "b") for n in range(120)]
    train, heldout = split_pairs(pairs, 9, seed=0)
    assert len(heldout) == 9  # the prompts have 3 pairs each, so 3 prompts are held out
    assert not {pair.prompt for pair in train} & {pair.prompt for pair in heldout}
    assert len(train) == 108
    assert split_pairs(pairs, 9, seed=0) == (train, heldout)
    assert split_pairs(pairs, 9, seed=1) != (train, heldout)
    bare = [Preference("", f"a{n}", "b") for n in range(20)]
    assert [len(part) for part in split_pairs(bare, 100, seed=0)] == [18, 2]


def test_split_pairs_impossible_split():
    with pytest.raises(InputError, match="a single prompt"):
        split_pairs([Preference("q", "a", "b"), Preference("q", "c", "b")], 1, seed=0)
    with pytest.raises(InputError, match="Cannot hold out 0 pairs"):
        split_pairs([Preference("q", "a", "b"), Preference("r", "c", "b")], 0, seed=0)


def test_read_preference_gold_response():
    columns = PreferenceColumns("prompt", "chosen", "rejected", "reference")
    row = {"prompt": "1+1=", "chosen": "2", "rejected": "3", "reference": "It is 2."}
    assert read_preference(row, columns).gold == "It is 2."
    assert read_preference(row, columns._replace(gold=None)).gold is None
    prompt, answers = [{"role": "user", "content": "1+1="}], ("2", "3", "It is 2.")
    replies = [[{"role": "assistant", "content": text}] for text in answers]
    names = ("chosen", "rejected", "reference")
    for repeated in ([], prompt):
        chat = {"prompt": prompt, **{name: repeated + reply for name, reply in zip(names, replies, strict=True)}}
        assert read_preference(chat, columns).gold == "It is 2."
    with pytest.raises(BadRowError, match="the column is missing"):
        read_preference({name: row[name] for name in ("prompt", "chosen", "rejected")}, columns)
    with pytest.raises(BadRowError, match="needs a column with the prompt"):
        read_preference({"chosen": "a b", "rejected": "a c", "reference": "a d"}, columns._replace(prompt=None))
