"""Loading problems from files: the usual formats, and the error messages for unusable rows."""

import json
import math
import sys
import types
from types import SimpleNamespace

import numpy as np
import pytest

from rljax.data.bad_rows import describe_faults
from rljax.data.preferences import read_preferences
from rljax.data.problem import Problem, reward_columns
from rljax.data.problem_datasets import load_problems, read_problems
from rljax.data.reading import open_rows
from rljax.errors import InputError

CHAT = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1?"}]


@pytest.fixture
def write(tmp_path):
    """Return a function that writes rows (or a string, unchanged) to a file and returns the file's path."""

    def _write(rows, name="data.jsonl"):
        path = tmp_path / name
        if not isinstance(rows, str):
            rows = json.dumps(rows) if name.endswith(".json") else "".join(json.dumps(row) + "\n" for row in rows)
        path.write_text(rows, encoding="utf-8")
        return path

    return _write


@pytest.mark.parametrize("prompt", ["prompt", "question", "problem", "text"])
@pytest.mark.parametrize("answer", ["answer", "solution", "ground_truth", "target"])
def test_default_columns(write, prompt, answer):
    (problem,) = load_problems(write([{prompt: "1+1?", answer: "2", "level": 3}]))
    assert (problem.prompt, problem.answer) == ("1+1?", "2")
    kept = {"level": 3} if answer == "answer" else {answer: "2", "level": 3}
    assert problem.columns == kept
    assert reward_columns([problem]) == {"answer": ["2"]} | {name: [value] for name, value in kept.items()}


def test_default_column_priority(write):
    row = {"text": "d", "problem": "c", "question": "b", "prompt": "a", "target": "4", "ground_truth": "3", "solution": "2"}
    (problem,) = load_problems(write([row]))
    assert (problem.prompt, problem.answer) == ("a", "2")
    (problem,) = load_problems(write([row | {"answer": "1"}]))
    assert problem.answer == "1"
    assert set(problem.columns) == {"text", "problem", "question", "target", "ground_truth", "solution"}


def test_named_columns(write):
    rows = [{"question": "no", "q": "1+1?", "answer": "no", "meta": {"gold": 2}, "steps": "so 2"}]
    (problem,) = load_problems(write(rows), prompt_column="q", answer_column="meta.gold", demonstration_column="steps")
    columns = {"question": "no", "meta": {"gold": 2}, "steps": "so 2"}
    assert problem == Problem("1+1?", "2", "so 2", columns)


def test_column_name_with_dot(write):
    (problem,) = load_problems(write([{"prompt": "1+1?", "a.b": "2", "a": {"b": "3"}}]), answer_column="a.b")
    assert problem.answer == "2"


def test_demonstrations(write):
    (problem,) = load_problems(write([{"prompt": "1+1=", "answer": "2", "demonstration": "1+1=2;#2"}]))
    assert problem.demonstration == "1+1=2;#2"
    (problem,) = load_problems(write([{"prompt": "1+1=", "answer": "so\n#### 2"}]), demonstration_column="answer")
    assert problem.demonstration == problem.answer == "so\n#### 2"
    rows = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "1+1=", "answer": "2", "demonstration": None}]
    rows += [{"prompt": "1+1=", "answer": "2", "demonstration": "#2"}]
    assert [problem.demonstration for problem in load_problems(write(rows))] == [None, None, "#2"]
    path = write([{"prompt": "1+1=", "answer": "2", "demonstration": 2}])
    with pytest.raises(InputError, match="line 1, column 'demonstration': the demonstration must be text, not 2"):
        load_problems(path)


def test_verl_rows(write):
    row = {
        "data_source": "sums",
        "prompt": CHAT,
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"index": 0},
    }
    (problem,) = load_problems(write([row]))
    assert (problem.prompt, problem.answer, problem.messages) == ("Add.\n1+1?", "2", tuple(CHAT))
    assert problem.columns == {name: row[name] for name in ("data_source", "reward_model", "extra_info")}


def test_trl_rows(write):
    plain, chat = load_problems(write([{"prompt": "1+1?", "solution": "2"}, {"prompt": CHAT[1:], "solution": "2"}]))
    assert (plain.prompt, plain.messages) == ("1+1?", None)
    assert (chat.prompt, chat.messages) == ("1+1?", (CHAT[1],))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (27.0, "27"),
        (27, "27"),
        (-3.0, "-3"),
        (0.5, "0.5"),
        (1e-7, "1e-07"),
        (True, "True"),
        ("27.0", "27.0"),
        (" a ", " a "),
    ],
)
def test_answer_as_text(write, value, text):
    assert load_problems(write([{"prompt": "?", "answer": value}]))[0].answer == text


def test_json_list_blank_lines_and_byte_order_mark(write):
    row = {"prompt": "a\u2028b", "answer": "1"}
    assert load_problems(write([row, row], "data.json")) == [Problem("a\u2028b", "1")] * 2
    text = json.dumps(row, ensure_ascii=False)
    assert load_problems(write(f"\ufeff{text}\r\n\r\n{text}")) == [Problem("a\u2028b", "1")] * 2


def test_folder_has_one_file_per_split(write, tmp_path):
    write([{"prompt": "a", "answer": "1"}], "train.jsonl")
    write([{"prompt": "b", "answer": "1"}], "test.json")
    assert load_problems(tmp_path)[0].prompt == "a"
    assert load_problems(str(tmp_path), split="test")[0].prompt == "b"
    with pytest.raises(
        InputError, match=r"contains none of dev\.jsonl, dev\.json, dev\.parquet; give the path of the file"
    ):
        load_problems(tmp_path, split="dev")
    write([{"prompt": "b", "answer": "1"}], "test.jsonl")
    with pytest.raises(InputError, match=r"contains 2 of test\.jsonl"):
        load_problems(tmp_path, split="test")


GOOD = '{"prompt": "a", "answer": "1"}\n'


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("{", "line 2: the line is not JSON"),
        ("[1]", "line 2: a row must be an object with named columns, not a list"),
        ("null", "line 2: a row must be .*, not null"),
        ('{"prompt": "a"}', r"line 2, column 'answer': the column is missing \(the columns are: prompt\)"),
        ("{}", r"line 2, column 'prompt': the column is missing \(there are no columns\)"),
        (
            '{"prompt": 3, "answer": "1"}',
            "line 2, column 'prompt': a prompt must be text or a list of chat messages, not 3",
        ),
        ('{"prompt": [], "answer": "1"}', "line 2, column 'prompt': a prompt must be text or .*, not a list"),
        ('{"prompt": " ", "answer": "1"}', "line 2, column 'prompt': the prompt is empty"),
        ('{"prompt": ["a"], "answer": "1"}', "line 2, column 'prompt': a chat message must be an object .*, not 'a'"),
        ('{"prompt": [{"role": "user"}], "answer": "1"}', "line 2, column 'prompt': .*not {'role': 'user'}"),
        (
            '{"prompt": [{"role": "user", "content": [1]}], "answer": "1"}',
            "line 2, column 'prompt': a part of a chat message",
        ),
        (
            '{"prompt": [{"role": "assistant", "content": "a"}], "answer": "1"}',
            "line 2, .*the chat ends with the assistant",
        ),
        ('{"prompt": "a", "answer": null}', "line 2, column 'answer': an answer must be text or a number, not null"),
        ('{"prompt": "a", "answer": ["1"]}', "line 2, column 'answer': an answer must be text or a number, not a list"),
        ('{"prompt": "a", "answer": NaN}', "line 2, column 'answer': an answer must be text or a number, not nan"),
        ('{"prompt": "a", "answer": ""}', "line 2, column 'answer': the answer is empty"),
    ],
)
def test_error_names_the_bad_line(write, second, message):
    path = write(GOOD + second + "\n" + GOOD)
    with pytest.raises(InputError, match=r"data\.jsonl, " + message):
        load_problems(path)


def test_error_counts_further_bad_rows(write):
    bad = {"prompt": "a", "answer": None}
    with pytest.raises(
        InputError, match=r"data\.json, entry 2, column 'answer'.* row\. 2 more rows cannot be used either\."
    ):
        load_problems(write([{"prompt": "a", "answer": "1"}, bad, bad, {"prompt": "a"}], "data.json"))


@pytest.mark.parametrize(
    ("row", "arguments", "message"),
    [
        (
            {"q": "a", "answer": "1"},
            {},
            "none of the columns prompt, .*, text for the prompt .*q, answer.* set prompt_column",
        ),
        (
            {"prompt": "a", "code": "1"},
            {},
            "none of the columns answer, .* for the answer .*prompt, code.* set answer_column",
        ),
        ({"prompt": "a", "answer": "1"}, {"answer_column": "code"}, "line 1: there is no column 'code' for the answer"),
        ({"prompt": "a", "answer": "1"}, {"prompt_column": "code"}, "line 1: there is no column 'code' for the prompt"),
        ({"prompt": "a", "answer": "1"}, {"demonstration_column": "code"}, "line 1, column 'code': the column is missing"),
    ],
)
def test_missing_columns(write, row, arguments, message):
    with pytest.raises(InputError, match=message):
        load_problems(write([row, row]), **arguments)


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("", "data.jsonl", r"data\.jsonl contains no problems"),
        ("[]", "data.json", r"data\.json contains no problems"),
        ("{}", "data.json", r"data\.json must contain one list of objects, not an object"),
        (GOOD + GOOD, "data.json", r"data\.json is not JSON .* rename it to \.jsonl"),
        (GOOD, "data.csv", r"data\.csv' is not a \.jsonl, \.json or \.parquet file; convert it"),
    ],
)
def test_unusable_files(write, text, name, message):
    with pytest.raises(InputError, match=message):
        load_problems(write(text, name))


def test_file_not_utf8(tmp_path):
    (tmp_path / "data.jsonl").write_bytes(GOOD.encode() + '{"prompt": "é", "answer": "1"}'.encode("latin-1"))
    with pytest.raises(InputError, match=r"data\.jsonl, line 2: the line is not in UTF-8"):
        load_problems(tmp_path / "data.jsonl")


@pytest.mark.parametrize("name", ["missing.jsonl", "./missing", "a/b/missing", "~/no-such-dataset"])
def test_missing_file(name):
    with pytest.raises(InputError, match=f"the dataset '{name}' does not exist"):
        load_problems(name)


def test_empty_dataset_name():
    with pytest.raises(InputError, match="the name of the dataset is empty"):
        load_problems("")


def test_missing_packages(monkeypatch, write):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="needs the package pyarrow; run `pip install pyarrow`"):
        load_problems(write("", "data.parquet"))
    with pytest.raises(
        InputError, match=r"'some/set' is not a local file.*needs the package datasets; .* `pip install datasets`"
    ):
        load_problems("some/set")


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [
        {"prompt": CHAT, "reward_model": {"ground_truth": "2"}},
        {"prompt": CHAT, "reward_model": {"ground_truth": None}},
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows[:1]), tmp_path / "data.parquet")
    (problem,) = load_problems(tmp_path / "data.parquet")
    assert (problem.answer, problem.messages) == ("2", tuple(CHAT))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "data.parquet")
    with pytest.raises(InputError, match=r"data\.parquet, row 2, column 'reward_model\.ground_truth': an answer must be"):
        load_problems(tmp_path / "data.parquet")
    (tmp_path / "data.parquet").write_text("no")
    with pytest.raises(InputError, match=r"data\.parquet is not a readable parquet file"):
        load_problems(tmp_path / "data.parquet")


def test_hub_dataset_uses_datasets_package(monkeypatch):
    calls = []

    def load_dataset(name, configuration, *, split):
        calls.append((name, configuration, split))
        if name == "no/set":
            raise ConnectionError("no\nnetwork")
        return [{"question": "1+1?", "answer": 2}, {"question": "1+1?", "answer": None}][: 1 + (name == "bad/set")]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    assert load_problems("good/set") == [Problem("1+1?", "2")]
    assert load_problems("good/set:main", split="test") == [Problem("1+1?", "2")]
    assert calls == [("good/set", None, "train"), ("good/set", "main", "test")]
    with pytest.raises(InputError, match=r"bad/set \(train\), row 2, column 'answer'"):
        load_problems("bad/set")
    with pytest.raises(InputError, match=r"'no/set' with the split 'train' cannot .* \(ConnectionError: no network\)"):
        load_problems("no/set")


def test_real_files(shared_data, write):
    gsm8k = load_problems(shared_data / "gsm8k_train.jsonl")
    assert (len(gsm8k), gsm8k[0].answer) == (7473, "72")
    assert all("#" not in problem.answer for problem in gsm8k)
    assert gsm8k[0].prompt.startswith("Natalia sold clips")
    assert gsm8k[0].demonstration.endswith("#### 72")

    amc = load_problems(shared_data / "amc23.jsonl")
    assert (len(amc), amc[0].answer) == (40, "27")
    assert all(math.isfinite(float(problem.answer)) and "." not in problem.answer for problem in amc)
    assert set(amc[0].columns) == {"id", "problem", "url"}

    mbpp = load_problems(shared_data / "mbpp.jsonl")
    assert len(mbpp) == 974
    assert mbpp[1].columns["tests"][0].startswith("assert similar_elements")
    assert mbpp[1].columns["tests"][0] in mbpp[1].prompt
    assert all(problem.answer == "" and "\r" not in problem.demonstration for problem in mbpp)
    assert sum(bool(problem.columns["setup"]) for problem in mbpp) == 2
    assert load_problems(shared_data / "mbpp.jsonl", answer_column="code")[1].columns["test_list"]


def test_math_train_bad_rows(shared_data):
    path = shared_data / "math_train.json"
    with pytest.raises(InputError, match=r"math_train\.json, entry 887, column 'answer': .*not null.* 3 more rows"):
        load_problems(path)
    dropped = read_problems(path, on_error="drop")
    assert (len(dropped.problems), dropped.rows) == (7470, 7474)
    assert [fault.place for fault in dropped.faults] == ["entry 887", "entry 1010", "entry 5329", "entry 5331"]
    kept = read_problems(path, on_error="keep")
    assert len(kept.problems) == 7474
    assert [kept.places[i] for i, problem in enumerate(kept.problems) if problem.answer == ""] == [
        fault.place for fault in dropped.faults
    ]
    assert "4 bad rows kept" in describe_faults(kept.faults)


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ('{"prompt": "a", "prompt": "b", "answer": "1"}\n', "data.jsonl", "the name 'prompt' occurs twice in an object"),
        ('[{"prompt": "a", "answer": "2", "answer": "1"}]', "data.json", "the name 'answer' occurs twice in an object"),
        (
            '{"prompt": "a", "answer": "1", "meta": {"x": 1, "x": 2}}\n',
            "data.jsonl",
            "the name 'x' occurs twice in an object",
        ),
    ],
)
def test_duplicate_json_key(write, text, name, message):
    with pytest.raises(InputError, match=message):
        load_problems(write(text, name))


def test_huge_integer_answer(write):
    huge = 10**400 + 1
    (problem,) = load_problems(write(f'{{"prompt": "a", "answer": {huge}}}\n'))
    assert problem.answer == str(huge)
    with pytest.raises(InputError, match="an answer must be text or a number, not"):
        read_problems([{"prompt": "a", "answer": math.inf}])
    with pytest.raises(InputError, match="a margin must be a finite number"):
        read_preferences(write(f'{{"prompt": "a", "chosen": "x", "rejected": "y", "margin": {huge}}}\n'))


@pytest.mark.parametrize("part", [{"type": "text"}, {"type": "text", "text": None}, {"type": "text", "content": "x"}, "x"])
def test_message_part_without_text(part):
    with pytest.raises(InputError, match="a part of a chat message must be"):
        read_problems([{"prompt": [{"role": "user", "content": [part]}], "answer": "1"}])


def test_parquet_keeps_columns_and_digits(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "data.parquet"
    parquet.write_table(pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 3, names=["prompt", "prompt", "answer"]), file)
    with pytest.raises(InputError, match=r"data\.parquet has the column 'prompt' more than once"):
        load_problems(file)
    answers = pyarrow.array([0.1, 0.25, 2.0], pyarrow.float32())
    parquet.write_table(pyarrow.table({"prompt": ["a", "b", "c"], "answer": answers}), file)
    assert [problem.answer for problem in load_problems(file)] == ["0.1", "0.25", "2"]
    numbers = [0.1, 1e-7, -2.5, None]
    nested = {
        "half": pyarrow.array(np.array([0.1, 0.0001, -2.5, 65504], np.float16)),
        "list": pyarrow.array([[number, 0.7] for number in numbers], pyarrow.list_(pyarrow.float32())),
        "large": pyarrow.array([[0.1], [], None, [0.3]], pyarrow.large_list(pyarrow.float32())),
        "fixed": pyarrow.array([[0.1, 0.2]] * 4, pyarrow.list_(pyarrow.float32(), 2)),
        "struct": pyarrow.array(
            [{"a": number, "b": [{"c": 0.1}], "d": "x"} for number in numbers],
            pyarrow.struct(
                [
                    ("a", pyarrow.float32()),
                    ("b", pyarrow.list_(pyarrow.struct([("c", pyarrow.float32())]))),
                    ("d", pyarrow.string()),
                ]
            ),
        ),
        "map": pyarrow.array([[("k", 0.1)]] * 4, pyarrow.map_(pyarrow.string(), pyarrow.float32())),
        "dictionary": pyarrow.array([0.1, 0.2, 0.1, None], pyarrow.float32()).dictionary_encode(),
        "double": pyarrow.array([0.1, 0.10000000149011612, 2.0, math.nan]),
    }
    table = pyarrow.table(nested)
    parquet.write_table(table, file)
    _, rows = open_rows(file, "train")
    first, second, third, fourth = (row for _, row in rows)
    assert first == {
        **{"half": 0.1, "list": [0.1, 0.7], "large": [0.1], "fixed": [0.1, 0.2], "double": 0.1, "dictionary": 0.1},
        **{"struct": {"a": 0.1, "b": [{"c": 0.1}], "d": "x"}, "map": [("k", 0.1)]},
    }
    assert (second["half"], second["list"][0], second["double"]) == (0.0001, 1e-7, 0.10000000149011612)
    assert (third["half"], third["large"], third["struct"]["a"]) == (-2.5, None, -2.5)
    assert (fourth["half"], fourth["list"], fourth["dictionary"]) == (65504.0, [None, 0.7], None)

    class Rows(list):
        """A stand-in for a dataset of the package `datasets`, which also widens float32 values."""

        features = SimpleNamespace(arrow_schema=table.schema)

    _, rows = open_rows(Rows(table.to_pylist()), "train")
    assert next(rows)[1] == first
    damaged = bytearray(file.read_bytes())
    damaged[8:20] = b"\xff" * 12
    file.write_bytes(damaged)
    with pytest.raises(InputError, match=r"data\.parquet is not a readable parquet file"):
        load_problems(file)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        *[(np.float64(0.5), "0.5"), (np.float32(0.1), "0.1"), (np.float16(0.1), "0.1"), (np.int64(3), "3")],
        *[(np.float32(2), "2"), (np.bool_(1), "True"), (np.str_("a"), "a")],
    ],
)
def test_numpy_scalar_answers(answer, text):
    (problem,) = read_problems([{"prompt": "a", "answer": answer}]).problems
    assert problem.answer == text
