"""Preprocessing: every reason for dropping a row, the columns of written rows, and byte-identical output."""

import hashlib
import json
from pathlib import Path

import pytest

from rljax.cli import main
from rljax.data.prepared_folder import preprocess, report_table
from rljax.data.preprocess import ADDED_COLUMNS, REASONS, prepare_rows
from rljax.data.preprocess_options import Preprocess
from rljax.data.problem import Problem, reward_columns
from rljax.data.problem_datasets import load_problems, read_problems
from rljax.data.tokenizer import ByteTokenizer, CharacterTokenizer
from rljax.errors import InputError
from rljax.rewards.exact import exact
from rljax.rewards.reward_scores import score


def verify_exactly(problems, completions):
    return score(exact, [problem.prompt for problem in problems], completions, reward_columns(problems))


LONG = "Tom has {} red pens and some blue pens in a box that Ann gave him on a day in May , how many pens are there ?"


@pytest.fixture
def prepare(tmp_path):
    """Return a function that writes rows to a file, reads the file and prepares the rows."""

    def _prepare(*rows, heldout=(), verify=verify_exactly, tokenizer=None, **options):
        path = tmp_path / "raw.jsonl"
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        recipe = Preprocess(str(path), tmp_path / "out", **options)
        loaded = read_problems(path, on_error=recipe.on_error)
        tokenizer = ByteTokenizer() if tokenizer is None else tokenizer
        prepared = prepare_rows(loaded, recipe, tokenizer, verify, heldout)
        if not recipe.wordings:
            assert len(prepared.rows) + len(prepared.dropped) == len(rows), "every row is either written or dropped"
        return prepared

    return _prepare


def row(prompt, answer, **more):
    return {"prompt": prompt, "answer": answer, **more}


def reasons(prepared):
    return [(drop.place, drop.reason) for drop in prepared.dropped]


def test_written_row(prepare):
    prepared = prepare(row("1+1=", 2, demonstration="so\n#### 2", level=3))
    (written,) = prepared.rows
    assert written == {
        "prompt": "1+1=",
        "answer": "2",
        "demonstration": "so\n#### 2",
        "level": 3,
        "prompt_tokens": 5,
        "response_tokens": 10,
        "length_bin": 0,
        "complexity": 0.5,
        "source_row": "line 1",
        "wording": 0,
    }
    assert tuple(written)[-6:] == ADDED_COLUMNS
    assert prepared.report["prompt_tokens"] == {"least": 5, "median": 5.0, "p95": 5.0, "most": 5}
    assert prepared.report["answers_checked"] == 1


def test_bad_rows_and_identical_rows(prepare):
    prepared = prepare(row("a", "1"), "{", row("a", None), row(" a ", "1"), row("b", "1"))
    assert reasons(prepared) == [("line 2", "bad row"), ("line 3", "bad row"), ("line 4", "identical")]
    assert prepared.dropped[2].detail == "same as line 1"
    assert [written["source_row"] for written in prepared.rows] == ["line 1", "line 5"]


def test_kept_faulty_rows_are_not_checked(prepare):
    prepared = prepare(row("a", "1"), row("b", None), on_error="keep")
    assert [written["answer"] for written in prepared.rows] == ["1", ""]
    assert (prepared.report["kept_with_faults"], prepared.report["answers_checked"]) == (1, 1)
    prepared = prepare(row("a", "1"), row("b", None), on_error="keep", reward="exact")
    assert len(prepared.rows) == 2


def test_wrong_demonstrations_and_unreadable_answers(prepare):
    rows = [
        row("a", "1", demonstration="#### 1"),
        row("b", "1", demonstration="#### 11"),
        row("c", "1", demonstration="nothing"),
    ]
    prepared = prepare(*rows)
    assert reasons(prepared) == [("line 2", "wrong answer"), ("line 3", "wrong answer")]
    assert "judged wrong against the answer '1'" in prepared.dropped[0].detail
    prepared = prepare(row("a", "{2}"), row("b", "}2"))
    assert reasons(prepared) == [("line 2", "wrong answer")]
    assert "not recognized" in prepared.dropped[0].detail


def test_row_is_kept_if_reward_abstains(prepare):
    def undecided(problems, completions):
        return [0.0] * len(problems), [problem.prompt != "b" for problem in problems]

    prepared = prepare(row("b", "1"), row("c", "1"), verify=undecided)
    assert reasons(prepared) == [("line 2", "wrong answer")]
    assert prepared.report["answers_checked"] == 1


def test_rows_with_tests_are_checked_only_by_named_reward(prepare):
    calls = []

    def runs_tests(problems, completions):
        calls.extend(zip(completions, (problem.columns["tests"] for problem in problems), strict=True))
        return [float("good" in completion) for completion in completions], [True] * len(problems)

    rows = [
        {"prompt": "f", "tests": ["assert f"], "demonstration": "good"},
        {"prompt": "g", "tests": ["assert g"], "demonstration": "bad"},
    ]
    assert len(prepare(*rows, verify=runs_tests).rows) == 2
    assert calls == []
    assert reasons(prepare(*rows, verify=runs_tests, reward="code")) == [("line 2", "wrong answer")]
    assert calls == [("good", ["assert f"]), ("bad", ["assert g"])]


def test_verifier_error_drops_one_row_unless_fatal(prepare):
    def raises(problems, completions):
        if "b" in {problem.prompt for problem in problems}:
            raise InputError("the reward raised")
        return [1.0] * len(problems), [True] * len(problems)

    prepared = prepare(row("a", "1"), row("b", "1"), row("c", "1"), verify=raises)
    assert reasons(prepared) == [("line 2", "not judged")]
    assert (prepared.dropped[0].detail, prepared.report["answers_checked"]) == ("the reward raised", 2)
    with pytest.raises(InputError, match="the reward raised"):
        prepare(row("a", "1"), row("b", "1"), verify=raises, on_error="fatal")


def test_failing_batch_is_bisected(prepare):
    sizes = []

    def raises(problems, completions):
        sizes.append(len(problems))
        if {"p70", "p600"} & {problem.prompt for problem in problems}:
            raise InputError("the reward raised")
        return [1.0] * len(problems), [True] * len(problems)

    prepared = prepare(*(row(f"p{i}", "1") for i in range(700)), verify=raises, near_duplicates=None)
    assert reasons(prepared) == [("line 71", "not judged"), ("line 601", "not judged")]
    assert prepared.report["answers_checked"] == 698
    assert max(sizes) == 512
    assert len(sizes) < 50


def test_reward_function_error_drops_one_row(raw, tmp_path):
    reward = tmp_path / "mine.py"
    reward.write_text("def f(prompts, completions, answer):\n    return [1.0 / (a != '4') for a in answer]\n")
    assert main(["preprocess", str(raw), str(tmp_path / "out"), "--reward", f"{reward}:f"]) == 0
    dropped = [json.loads(line) for line in (tmp_path / "out" / "dropped.jsonl").read_text().splitlines()]
    assert [(item["place"], item["reason"]) for item in dropped][-1] == ("line 3", "not judged")
    assert "ZeroDivisionError" in dropped[-1]["detail"]


def test_repeated_prompts(prepare):
    rows = [row("a", "1", demonstration="#1"), row("a", "1"), row("b", "1"), row("b", "2"), row("c", "1")]
    prepared = prepare(*rows)
    assert reasons(prepared) == [("line 2", "duplicate"), ("line 3", "ambiguous"), ("line 4", "ambiguous")]
    assert prepared.dropped[0].detail == "same as line 1"
    assert prepared.dropped[1].detail == "different answers in line 3, line 4"


def test_wrong_row_does_not_make_a_duplicate(prepare):
    prepared = prepare(row("a", "1", demonstration="#2"), row("a", "1", demonstration="#1"))
    assert reasons(prepared) == [("line 1", "wrong answer")]


def test_prompts_with_different_roles_differ(prepare):
    chats = [[{"role": role, "content": "a"}, {"role": "user", "content": "b"}] for role in ("system", "user")]
    assert len(prepare(*(row(chat, "1") for chat in chats), near_duplicates=None).rows) == 2
    assert prepare(row(chats[0], "1")).rows[0]["prompt"] == chats[0]


def test_near_duplicates(prepare):
    rows = [row(LONG.format("three"), "5"), row(LONG.format("three") + " !", "5"), row(LONG.format("four"), "6")]
    prepared = prepare(*rows)
    assert reasons(prepared) == [("line 2", "near-duplicate")]
    assert prepared.dropped[0].detail == "like line 1"
    assert len(prepare(*rows, near_duplicates=None).rows) == 3
    assert len(prepare(*rows, near_duplicates=1.0).rows) == 3


def test_heldout_leak_is_dropped(prepare):
    heldout = [Problem(LONG.format("three"), "")]
    rows = [row("Think . " + LONG.format("three") + " Be brief .", "5"), row("b", "6")]
    prepared = prepare(*rows, heldout=heldout)
    assert reasons(prepared) == [("line 1", "leak")]
    assert "held out: 'Tom has three" in prepared.dropped[0].detail


def test_limits_of_length(prepare):
    rows = [row("1234", "1"), row("12345", "1"), row("1", "1", demonstration="#1"), row("2", "1", demonstration="is#1")]
    prepared = prepare(*rows, max_prompt_tokens=5, max_response_tokens=3)
    assert [(d.place, d.reason, d.detail) for d in prepared.dropped] == [
        ("line 2", "long prompt", "6 tokens"),
        ("line 4", "long response", "5 tokens"),
    ]


def test_untokenizable_rows(prepare):
    prepared = prepare(row("1+1=", "2"), row("é", "2"), tokenizer=CharacterTokenizer())
    assert reasons(prepared) == [("line 2", "not tokenizable")]
    with pytest.raises(InputError, match=r"nothing is left of the 1 rows .*cannot encode it .*chat template"):
        prepare(row("1+1=", "2"), chat=True)


def test_wordings(prepare):
    prepared = prepare(row("1+1=", "2"), row("1+22=", "23"), wordings=("{prompt}", "Add: {prompt}"), max_prompt_tokens=10)
    assert [(r["prompt"], r["wording"], r["source_row"]) for r in prepared.rows] == [
        ("1+1=", 0, "line 1"),
        ("Add: 1+1=", 1, "line 1"),
        ("1+22=", 0, "line 2"),
    ]
    assert reasons(prepared) == [("line 2", "long prompt")]


def test_empty_result_error_gives_reason(prepare):
    with pytest.raises(InputError, match=r"nothing is left of the 2 rows .*line 1: the prompt is too long \(3 tokens\)"):
        prepare(row("ab", "1"), row("cd", "1"), max_prompt_tokens=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_prompt_tokens": 0}, "--max-prompt-tokens is 0"),
        ({"max_response_tokens": -1}, "--max-response-tokens is -1"),
        ({"near_duplicates": 1.5}, "--near-duplicates is 1.5"),
        ({"leak": 0.0}, "--leak is 0.0"),
        ({"wordings": ("Think.",)}, r"wording 'Think\.' does not contain {prompt}"),
        ({"wordings": ("{prompt}", "{prompt}")}, "contains a wording twice"),
    ],
)
def test_invalid_options(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        Preprocess("in", tmp_path, **options)


def read_files(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
def raw(tmp_path):
    path = tmp_path / "raw.jsonl"
    rows = [row("1+1=", "2", note="é"), row("1+1=", "2"), row("2+2=", "4", note="\ud800"), row("3+3=", None)]
    path.write_text("".join(json.dumps(item) + "\n" for item in rows))
    return path


def test_preprocess_is_reproducible(raw, tmp_path, capsys):
    before = raw.read_bytes()
    out = tmp_path / "out"
    assert main(["preprocess", str(raw), str(out)]) == 0
    first = read_files(out)
    output = capsys.readouterr().out
    assert "bad row" in output
    assert "identical" in output
    assert main(["preprocess", str(raw), str(out)]) == 0
    assert read_files(out) == first
    assert main(["preprocess", str(raw), str(tmp_path / "other")]) == 0
    assert read_files(tmp_path / "other") == first
    assert raw.read_bytes() == before
    assert set(first) == {"train.jsonl", "dropped.jsonl", "report.json", "manifest.json"}
    manifest = json.loads(first["manifest.json"])
    assert manifest["input"]["sha256"] == hashlib.sha256(before).hexdigest()
    for name, described in manifest["outputs"].items():
        assert described == {"bytes": len(first[name]), "sha256": hashlib.sha256(first[name]).hexdigest()}
    assert manifest["counts"] == {"rows_in": 4, "rows_out": 2, "dropped": {"bad row": 1, "identical": 1}}
    assert [json.loads(line)["reason"] for line in first["dropped.jsonl"].splitlines()] == ["bad row", "identical"]


def test_output_folder_is_a_dataset(raw, tmp_path):
    preprocess(Preprocess(str(raw), tmp_path / "out"), verify_exactly)
    problems = load_problems(tmp_path / "out")
    assert [(problem.prompt, problem.answer) for problem in problems] == [("1+1=", "2"), ("2+2=", "4")]
    assert problems[0].columns["note"] == "é"
    assert set(ADDED_COLUMNS) <= set(problems[0].columns)


def test_heldout_files_are_in_manifest(raw, tmp_path):
    heldout_file = tmp_path / "heldout_file.jsonl"
    heldout_file.write_text(json.dumps(row("2+2=", None)) + "\n" + json.dumps(row("9+9=", "18")))
    recipe = Preprocess(str(raw), tmp_path / "out", heldout=(str(heldout_file),))
    prepared = preprocess(recipe, verify_exactly)
    assert reasons(prepared)[-1] == ("line 3", "leak")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["heldout"][0]["sha256"] == hashlib.sha256(heldout_file.read_bytes()).hexdigest()


def test_existing_output_folders(raw, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["preprocess", str(raw), str(out)]) == 0
    before = read_files(out)

    def error_of(*arguments):
        capsys.readouterr()
        assert main(["preprocess", *arguments]) == 2
        return capsys.readouterr().err

    assert "result of other options" in error_of(str(raw), str(out), "--on-error", "keep")
    assert "line 4, column 'answer'" in error_of(str(raw), str(tmp_path / "no"), "--on-error", "fatal")
    assert "contains 'out', which this command did not write" in error_of(str(raw), str(tmp_path))
    assert "is a file; choose a folder" in error_of(str(raw), str(raw))
    assert read_files(out) == before
    raw.write_text(raw.read_text() + json.dumps(row("4+4=", "8")) + "\n")
    assert "of another input" in error_of(str(raw), str(out))
    (out / "manifest.json").write_text("{}")
    assert "result of other options" in error_of(str(raw), str(out))
    (out / "manifest.json").unlink()
    assert "files without a manifest" in error_of(str(raw), str(out))
    assert not (tmp_path / "no").exists()


def test_preprocess_help_lists_every_option(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["preprocess", "--help"])
    assert stopped.value.code == 0
    output = capsys.readouterr().out
    assert all(
        f"--{name.replace('_', '-')}" in output for name in Preprocess("in", Path("out")).to_json() if name != "input"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--reward", "no"), "there is no reward 'no'"),
        (("--tokenizer", "./no"), "tokenizer folder './no' does not exist"),
        (("--heldout", "no.jsonl"), "dataset 'no.jsonl' does not exist"),
        (("--prompt-column", "no"), "no column 'no' for the prompt"),
        (("--max-prompt-tokens", "1"), "nothing is left of the 4 rows"),
    ],
)
def test_failed_command_writes_nothing(raw, tmp_path, capsys, arguments, message):
    assert main(["preprocess", str(raw), str(tmp_path / "out"), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("rljax: ")
    assert message in error
    assert not (tmp_path / "out").exists()


def test_report_table_explains_reasons(prepare):
    prepared = prepare(row("a", "1"), "{", row("b", "1"), row("b", "1"))
    table = report_table(prepared.report)
    cells = [str(cell) for column in table.columns for cell in column.cells]
    assert f"bad row: {REASONS['bad row']}" in cells
    assert "-1" in cells
    assert "25.0%" in cells
    assert any("the line is not JSON" in cell for cell in cells)


def test_wrong_answer_detail_names_reward(prepare):
    prepared = prepare(row("a", "1", demonstration="so it is 1"), row("b", "2"))
    (dropped,) = prepared.dropped
    assert dropped.detail.startswith(
        "the demonstration, which ends in 'so it is 1', is judged wrong against the answer '1' by the"
    )
    assert "by default exact, which reads the answer after the last '#' or in a box" in dropped.detail


def test_unread_answers_are_not_wrong_answers(tmp_path, capsys):
    rows = [row(f"{n}+1=", str(n + 1), demonstration=f"The sum is {n + 1}.") for n in range(32)]
    rows += [row(f"{n}+2=", str(n + 2), demonstration=f"#{n + 2}") for n in range(2)]
    rows += [row(f"{n}+3=", str(n + 3), demonstration=f"#{n + 2}") for n in range(3)]
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in rows))
    assert main(["preprocess", str(tmp_path / "raw.jsonl"), str(tmp_path / "out")]) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {reason: counted["rows"] for reason, counted in report["dropped"].items()} == {
        "unread answer": 32,
        "wrong answer": 3,
    }
    assert "math_or_last_number also accepts the last number" in report["dropped"]["unread answer"]["detail"]
    assert "is judged wrong against the answer '3'" in report["dropped"]["wrong answer"]["detail"]
    printed = capsys.readouterr().out
    assert "unread answer" in printed
    assert "-32" in printed
    dropped = [json.loads(line) for line in (tmp_path / "out" / "dropped.jsonl").read_text().splitlines()]
    assert [item["reason"] for item in dropped] == ["unread answer"] * 32 + ["wrong answer"] * 3
    arguments = ["preprocess", str(tmp_path / "raw.jsonl"), str(tmp_path / "lenient"), "--reward", "math_or_last_number"]
    assert main(arguments) == 0
    assert len((tmp_path / "lenient" / "train.jsonl").read_text().splitlines()) == 34


def test_own_reward_reads_conversations_as_in_training(tmp_path):
    (tmp_path / "own.py").write_text(
        "def of_messages(completions, answer):\n"
        "    return [float(c[0]['content'] == a) for c, a in zip(completions, answer)]\n"
        "def of_text(completions, answer):\n"
        "    return [float(c == a) for c, a in zip(completions, answer)]\n"
    )
    chats = [[{"role": "user", "content": text}] for text in ("1+1", "2+2")]
    rows = [
        {"prompt": chats[0], "answer": "2", "demonstration": "2"},
        {"prompt": chats[1], "answer": "4", "demonstration": "5"},
    ]
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, more in (("of_messages", []), ("of_text", ["--no-reward-messages"])):
        reward = ["--reward", f"{tmp_path / 'own.py'}:{name}", *more]
        assert main(["preprocess", str(tmp_path / "raw.jsonl"), str(tmp_path / name), *reward]) == 0
        assert len((tmp_path / name / "train.jsonl").read_text().splitlines()) == 1


def test_verdict_of_a_verifier_decides_what_is_right(tmp_path):
    """The reward of a right answer without a stated confidence is 0 with `brier:`."""
    rows = [row("1+1=", "2", demonstration="#2"), row("1+2=", "3", demonstration="#4")]
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    assert main(["preprocess", str(tmp_path / "raw.jsonl"), str(tmp_path / "out"), "--reward", "brier:exact"]) == 0
    assert [problem.prompt for problem in load_problems(tmp_path / "out")] == ["1+1="]


def test_multi_turn_demonstration_round_trip(prepare, tmp_path):
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
    turns = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "#4"},
    ]
    prepared = prepare(json.dumps({"prompt": [{"role": "user", "content": "2+2?"}], "completion": turns, "answer": "4"}))
    (tmp_path / "again.jsonl").write_text(json.dumps(prepared.rows[0]))
    (problem,) = load_problems(tmp_path / "again.jsonl")
    assert list(problem.turns) == turns
    assert problem.messages == ({"role": "user", "content": "2+2?"},)


def test_real_files(shared_data, tmp_path):
    amc = str(shared_data / "amc23.jsonl")
    math = preprocess(
        Preprocess(str(shared_data / "math_train.json"), tmp_path / "math", heldout=(amc,), near_duplicates=None),
        verify_exactly,
    )
    assert math.report["dropped"]["bad row"]["rows"] == 4
    assert len(math.rows) + len(math.dropped) == 7474
    assert len(math.rows) > 7400
    mbpp = preprocess(Preprocess(str(shared_data / "mbpp.jsonl"), tmp_path / "mbpp"), verify_exactly)
    assert len(mbpp.rows) > 950
    again = load_problems(tmp_path / "mbpp")
    assert [(p.prompt, p.demonstration, p.columns["tests"]) for p in again[:20]] == [
        (r["prompt"], r["demonstration"], r["tests"]) for r in mbpp.rows[:20]
    ]
