"""Formats of published datasets, recognized by their columns. Each test row is written in this file."""

import json

import pytest

from rljax.data.formats import recognize
from rljax.data.problem import Problem
from rljax.data.problem_datasets import load_problems, read_problems
from rljax.data.prompts import list_columns_left_out
from rljax.errors import InputError
from rljax.rewards.choice import multiple_choice
from rljax.rewards.code import code

USER = {"role": "user", "content": "1+1?"}
REPLY = {"role": "assistant", "content": "It is \\boxed{2}."}
GSM8K = {"question": "1+1?", "answer": "1+1 = <<1+1=2>>2\n#### 1,002"}
MATH = {"problem": "1+1?", "level": "Level 1", "type": "Algebra", "solution": r"So $\boxed{\frac{1}{2}}$."}
NUMINA = {**MATH, "answer": "2", "problem_type": "Algebra", "question_type": "math-word-problem"}
AIME = {"ID": "2024-I-4", "Problem": "1+1?", "Solution": r"\boxed{33}", "Answer": 33}
HUMAN_EVAL = {
    "task_id": "HumanEval/0",
    "prompt": "def f(x):\n",
    "canonical_solution": "    return x\n",
    "test": "def check(candidate):\n    assert candidate(1) == 1\n",
    "entry_point": "f",
}
MBPP = {
    "text": "Write f.",
    "code": "def f(x):\r\n  return x",
    "task_id": 1,
    "test_setup_code": "y = 1",
    "test_list": ["assert f(1) == y"],
    "challenge_test_list": [],
}
SANITIZED = {
    "prompt": "Write f.",
    "code": "def f(x): return x",
    "task_id": 2,
    "test_imports": ["import math"],
    "test_list": ["assert f(1) == 1", "assert f(2) == 2"],
}
STRATEGY = {"qid": "a", "term": "t", "question": "Is it?", "answer": True, "facts": ["It is."], "decomposition": ["Q?"]}
FOLIO = {
    "story_id": 3,
    "premises": ["All cats purr.", "Tom is a cat."],
    "premises-FOL": ["∀x (Cat(x) → Purr(x))", "Cat(tom)"],
    "conclusion": "Tom purrs.",
    "label": "True",
}
COMMONSENSE = {
    "id": "1afa02df02c908a558b4036e80242fac",
    "question": "Where does a revolving door serve as a security measure?",
    "question_concept": "revolving door",
    "choices": {"label": ["A", "B", "C", "D", "E"], "text": ["bank", "library", "mall", "zoo", "town"]},
    "answerKey": "A",
}
LEET_CODE = {
    "task_id": "two-sum",
    "prompt": "from typing import *\n\ninf = float('inf')\n",
    "problem_description": "Find the two indices.",
    "query": "### Question:\nFind the two indices.\n### Format:\nclass Solution:\n    def f(self, x: List[int]):\n",
    "starter_code": "class Solution:\n    def f(self, x: List[int]):\n        ",
    "completion": "class Solution:\n    def f(self, x: List[int]):\n        return min(x, default=inf)",
    "entry_point": "Solution().f",
    "test": "def check(candidate):\n    assert candidate([3, 2]) == 2\n    assert candidate([]) == inf\n",
}
CONTEST = {
    "name": "1549_A. Double",
    "description": "Double the number.\n",
    "public_tests": {"input": ["1\n"], "output": ["2\n"]},
    "private_tests": {"input": [], "output": []},
    "generated_tests": {"input": ["4\n", "0\n"], "output": ["8\n", "0\n"]},
    "source": 2,
    "difficulty": 7,
    "solutions": {"language": [2, 3, 3], "solution": ["int main() {}", "print(2 * int(input()))", "print(0)"]},
    "incorrect_solutions": {"language": [3], "solution": ["print(1)"]},
    "cf_rating": 800,
    "time_limit": {"seconds": 1, "nanos": 0},
    "input_file": "",
    "output_file": "",
}
DAPO = {
    "data_source": "math_dapo",
    "prompt": [USER],
    "ability": "MATH",
    "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
    "extra_info": {"index": "9a"},
}
DAPO_PROCESSED = {**DAPO, "prompt": "1+1?", "solution": "34", "source_prompt": [USER]}


def load(tmp_path, *rows, **options):
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_problems(path, **options)


@pytest.mark.parametrize(
    ("row", "name", "problem"),
    [
        (GSM8K, "GSM8K", Problem("1+1?", "1,002", GSM8K["answer"])),
        (
            MATH,
            "MATH",
            Problem("1+1?", r"\frac{1}{2}", MATH["solution"], {n: MATH[n] for n in ("level", "type", "solution")}),
        ),
        (
            {**MATH, "answer": "0.5"},
            "MATH",
            Problem("1+1?", "0.5", MATH["solution"], {n: MATH[n] for n in ("level", "type", "solution")}),
        ),
        (AIME, "AIME", Problem("1+1?", "33", r"\boxed{33}", {n: AIME[n] for n in ("ID", "Solution", "Answer")})),
        (
            {"id": 60, "problem": "1+1?", "answer": "025", "url": "https://x.org/2024_AIME_I_Problems"},
            "AIME",
            Problem("1+1?", "25", None, {"id": 60, "url": "https://x.org/2024_AIME_I_Problems"}),
        ),
        (
            {"ID": "1983-1", "Year": 1983, "Problem Number": 1, "Question": "1+1?", "Answer": "60"},
            "AIME",
            Problem("1+1?", "60", None, {"ID": "1983-1", "Year": 1983, "Problem Number": 1, "Answer": "60"}),
        ),
        (
            {"question": "Who won?", "answer": "They did", "year": 1983, "test": False},
            "plain",
            Problem("Who won?", "They did", None, {"year": 1983, "test": False}),
        ),
        ({"prompt": "Who?", "answer": "I", "test": "no"}, "plain", Problem("Who?", "I", None, {"test": "no"})),
        (
            HUMAN_EVAL,
            "HumanEval",
            Problem(
                "def f(x):\n",
                "",
                "    return x\n",
                {"header": "def f(x):\n", **{n: HUMAN_EVAL[n] for n in ("task_id", "test", "entry_point")}},
            ),
        ),
        (
            LEET_CODE,
            "LeetCodeDataset",
            Problem(
                LEET_CODE["query"],
                "",
                LEET_CODE["completion"],
                {"header": LEET_CODE["prompt"], **{n: v for n, v in LEET_CODE.items() if n not in ("prompt", "query")}},
            ),
        ),
        (
            MBPP,
            "MBPP",
            Problem(
                "Write f.\n\nThe code has to pass these tests:\n\nassert f(1) == y\n",
                "",
                "def f(x):\n  return x",
                {
                    "tests": ["assert f(1) == y"],
                    "setup": "y = 1",
                    "code": MBPP["code"],
                    "task_id": 1,
                    "challenge_test_list": [],
                },
            ),
        ),
        (
            SANITIZED,
            "MBPP",
            Problem(
                "Write f.\n\nThe code has to pass these tests:\n\nassert f(1) == 1\nassert f(2) == 2\n",
                "",
                SANITIZED["code"],
                {"tests": SANITIZED["test_list"], "setup": "import math", "code": SANITIZED["code"], "task_id": 2},
            ),
        ),
        (
            STRATEGY,
            "StrategyQA",
            Problem("Is it?", "yes", None, {n: STRATEGY[n] for n in ("qid", "term", "facts", "decomposition")}),
        ),
        (
            COMMONSENSE,
            "CommonsenseQA",
            Problem(
                f"{COMMONSENSE['question']}\nA. bank\nB. library\nC. mall\nD. zoo\nE. town",
                "A",
                None,
                {n: COMMONSENSE[n] for n in ("id", "question_concept", "choices", "answerKey")},
            ),
        ),
        (
            CONTEST,
            "CodeContests",
            Problem(
                "Double the number.\n\nWrite a Python 3 program that reads the input from standard input and prints the output.\n",
                "",
                "print(2 * int(input()))",
                {"stdin": ["1\n", "4\n", "0\n"], "stdout": ["2\n", "8\n", "0\n"]}
                | {
                    n: CONTEST[n]
                    for n in ("name", "source", "difficulty", "cf_rating", "time_limit", "input_file", "output_file")
                },
            ),
        ),
        (
            {"prompt": "Double it.", "stdin": ["1"], "stdout": ["2"]},
            "code with tests",
            Problem("Double it.", "", None, {"stdin": ["1"], "stdout": ["2"]}),
        ),
        (DAPO, "verl", Problem("1+1?", "34", None, {n: v for n, v in DAPO.items() if n != "prompt"}, (USER,))),
        (DAPO_PROCESSED, "verl", Problem("1+1?", "34", None, {n: v for n, v in DAPO_PROCESSED.items() if n != "prompt"})),
        ({"messages": [USER, REPLY]}, "TRL messages", Problem("1+1?", REPLY["content"], REPLY["content"], {}, (USER,))),
        (
            {"messages": [USER, REPLY], "answer": "2"},
            "TRL messages",
            Problem("1+1?", "2", REPLY["content"], {}, (USER,)),
        ),
        ({"prompt": "1+1?", "completion": "2"}, "TRL completion", Problem("1+1?", "2", "2")),
        (
            {"prompt": [USER], "completion": [REPLY], "solution": "2"},
            "TRL completion",
            Problem("1+1?", "2", REPLY["content"], {"solution": "2"}, (USER,)),
        ),
        (
            {"prompt": "Write f.", "tests": ["assert f"]},
            "code with tests",
            Problem("Write f.", "", None, {"tests": ["assert f"]}),
        ),
        (
            {"prompt": "Write f.", "test": "assert f", "answer": "f", "demonstration": "def f(): 1"},
            "code with tests",
            Problem("Write f.", "f", "def f(): 1", {"test": "assert f", "demonstration": "def f(): 1"}),
        ),
        ({"prompt": "1+1?", "answer": "2"}, "plain", Problem("1+1?", "2")),
        ({"problem": "1+1?", "answer": "2", "type": "Algebra"}, "plain", Problem("1+1?", "2", None, {"type": "Algebra"})),
    ],
)
def test_every_format(tmp_path, row, name, problem):
    loaded = load(tmp_path, row)
    assert (loaded.format, loaded.problems) == (name, [problem])


@pytest.mark.parametrize(
    ("good", "changes", "message"),
    [
        (GSM8K, {"answer": "72"}, "column 'answer': the solution has no answer after '####'"),
        (GSM8K, {"answer": "#### "}, "column 'answer': the solution has no answer after '####'"),
        (MATH, {"solution": "It is 2."}, r"column 'solution': the solution has no \\boxed"),
        (MATH, {"solution": r"\boxed{{2}"}, r"column 'solution': the braces of the last \\boxed{ do not balance"),
        (MATH, {"solution": r"\boxed{ }"}, r"column 'solution': the last \\boxed{} of the solution is empty"),
        (AIME, {"Answer": 1000}, "column 'Answer': an AIME answer is an integer from 0 to 999, not '1000'"),
        (AIME, {"Answer": 3.5}, "column 'Answer': an AIME answer"),
        (AIME, {"Answer": -1}, "column 'Answer': an AIME answer"),
        (STRATEGY, {"answer": "maybe"}, "column 'answer': a StrategyQA answer is true or false, not text"),
        (FOLIO, {"label": "Maybe"}, "column 'label': a label of FOLIO is True, False, Uncertain or Unknown, not 'Maybe'"),
        (FOLIO, {"label": ["True"]}, "column 'label': a label of FOLIO is True, False, Uncertain or Unknown, not "),
        (FOLIO, {"premises": []}, "column 'premises': premises must be a list of texts, not an empty list"),
        (COMMONSENSE, {"answerKey": "F"}, "column 'answerKey': the answer 'F' is not one of the labels"),
        (COMMONSENSE, {"choices": ["bank"]}, "column 'choices': choices must have as many labels as texts"),
        (
            COMMONSENSE,
            {"choices": {"label": ["A"], "text": ["bank", "zoo"]}},
            "column 'choices': choices must have as many labels as texts",
        ),
        (CONTEST, {"public_tests": None}, "column 'public_tests': public_tests must be an object, not null"),
        (
            CONTEST,
            {"public_tests": {"input": ["1"], "output": []}},
            "column 'stdout': there are 2 outputs for 3 inputs",
        ),
        (
            CONTEST,
            {"public_tests": {"input": [], "output": []}, "generated_tests": {"input": [], "output": []}},
            "column 'stdin': stdin must be a list of texts, not an empty list",
        ),
        (CONTEST, {"input_file": "in.txt"}, "column 'input_file': the program has to read or write a file"),
        (MBPP, {"test_list": []}, "column 'test_list': test_list must be a list of texts, not an empty list"),
        (MBPP, {"test_list": "assert 1"}, "column 'test_list': test_list must be a list of texts, not text"),
        (MBPP, {"test_list": [1]}, "column 'test_list': test_list must be a list of texts, not a list"),
        (MBPP, {"code": ""}, "column 'code': the code is empty"),
        (HUMAN_EVAL, {"entry_point": None}, "column 'entry_point': the entry_point must be text, not null"),
        (LEET_CODE, {"query": None}, "column 'query': the prompt must be text, not null"),
        (NUMINA, {"answer": "proof"}, "column 'answer': the row has no checkable answer; remove the row"),
        (NUMINA, {"answer": " NotFound", "solution": None}, "column 'answer': the row has no checkable answer"),
        ({**NUMINA, "solution": "Two."}, {"answer": "Proof"}, "column 'answer': the row has no checkable answer"),
        (DAPO, {"reward_model": {"style": "rule"}}, "column 'reward_model.ground_truth': the column is missing"),
        (
            DAPO,
            {"reward_model": {"ground_truth": ["3"]}},
            "column 'reward_model.ground_truth': an answer must be .*, not a list",
        ),
        (
            DAPO,
            {"reward_model": {"ground_truth": '["3", "4"]'}},
            "column 'reward_model.ground_truth': there are 2 answers; keep one of them",
        ),
        (
            {"messages": [USER, REPLY]},
            {"messages": [USER]},
            "column 'messages': the conversation must end with the assistant.*are the prompt, set prompt_column=messages",
        ),
        (
            {"messages": [USER, REPLY]},
            {"messages": [REPLY]},
            "column 'messages': the conversation must end with the assistant",
        ),
        ({"messages": [USER, REPLY]}, {"messages": "a"}, "column 'messages': a prompt must be .*, not text"),
    ],
)
def test_error_names_row_and_column(tmp_path, good, changes, message):
    with pytest.raises(InputError, match=rf"data\.jsonl, line 2, {message}"):
        load(tmp_path, good, good | changes)


def test_named_columns_override_format(tmp_path):
    loaded = load(tmp_path, GSM8K, answer_column="answer")
    assert (loaded.format, loaded.problems[0].answer, loaded.problems[0].demonstration) == ("plain", GSM8K["answer"], None)
    loaded = load(tmp_path, {**GSM8K, "steps": "two"}, demonstration_column="steps")
    assert (loaded.format, loaded.problems[0].answer, loaded.problems[0].demonstration) == ("GSM8K", "1,002", "two")


@pytest.mark.parametrize(
    "row", [GSM8K, MATH, AIME, HUMAN_EVAL, LEET_CODE, MBPP, STRATEGY, FOLIO, COMMONSENSE, CONTEST, DAPO]
)
def test_preprocessed_row_round_trip(tmp_path, row):
    (problem,) = load(tmp_path, row).problems
    prompt = problem.prompt if problem.messages is None else list(problem.messages)
    written = {**problem.columns, "prompt": prompt, "answer": problem.answer, "length_bin": 0}
    if problem.demonstration is not None:
        written["demonstration"] = problem.demonstration
    (again,) = load(tmp_path, written).problems
    assert (again.prompt, again.answer, again.messages) == (problem.prompt, problem.answer, problem.messages)
    assert again.demonstration == problem.demonstration


def test_multiple_choice_labels_become_letters(tmp_path):
    arc = {**COMMONSENSE, "choices": {"label": ["1", "2"], "text": ["bank", "zoo"]}, "answerKey": "2"}
    (problem, hidden) = load(tmp_path, arc, {**arc, "answerKey": ""}).problems
    assert problem.prompt.endswith("measure?\nA. bank\nB. zoo")
    assert (problem.answer, hidden.answer) == ("B", "")
    assert multiple_choice([problem.prompt], ["The answer is B."], [problem.answer]) == [1.0]


@pytest.mark.parametrize(("label", "letter"), [("True", "A"), ("False", "B"), ("Uncertain", "C"), ("Unknown", "C")])
def test_folio_labels_become_letters(tmp_path, label, letter):
    # In the original data, the premises are a list; on the Hugging Face Hub, they are lines of text.
    lines = {**FOLIO, "premises": "All cats purr.\nTom is a cat."}
    loaded = load(tmp_path, {**FOLIO, "label": label}, {**lines, "label": label})
    assert loaded.format == "FOLIO"
    first, second = loaded.problems
    assert first.prompt == second.prompt
    assert first.prompt.startswith(
        "All cats purr.\nTom is a cat.\n\nIs the following statement true?\nTom purrs.\n\nA. True\nB. False"
    )
    assert (first.answer, first.columns["premises-FOL"]) == (letter, FOLIO["premises-FOL"])
    assert multiple_choice([first.prompt], [f"Therefore the answer is {letter}."], [first.answer]) == [1.0]


def test_leet_code_programs_run_after_the_imports(tmp_path):
    described = {n: v for n, v in LEET_CODE.items() if n != "query"} | {"response": "```python\nclass Solution: ...\n```"}
    with_query, stated = load(tmp_path, LEET_CODE).problems + load(tmp_path, described).problems
    for problem in (with_query, stated):
        columns = {name: [value] * 2 for name, value in problem.columns.items()}
        programs = [LEET_CODE["completion"], LEET_CODE["completion"].replace("min", "max")]
        assert code([problem.prompt] * 2, programs, **columns) == [1.0, 0.0]
        assert list_columns_left_out([problem]) == []
    assert stated.prompt.startswith(
        "Find the two indices.\n\nThe program has to begin like this:\n\n```python\nclass Solution:"
    )
    assert stated.demonstration == described["response"]


def test_proof_is_an_answer_elsewhere(tmp_path):
    assert (
        load(tmp_path, {"question": "What is a wine's strength called?", "answer": "proof"}).problems[0].answer == "proof"
    )


@pytest.mark.parametrize("column", ["prompt", "question"])
def test_prompt_may_be_a_chat_in_text_form(tmp_path, column):
    chat = [{"role": "system", "content": "Add."}, USER]
    (problem,) = load(tmp_path, {column: f" {json.dumps(chat)}", "answer": "2"}).problems
    assert (problem.prompt, problem.messages) == ("Add.\n1+1?", tuple(chat))
    for text in ("[1, 2]", "[]", '[{"role": "user"', '[{"name": "a"}]', '{"role": "user", "content": "a"}', "[" * 100_000):
        (problem,) = load(tmp_path, {column: text, "answer": "2"}).problems
        assert (problem.prompt, problem.messages) == (text, None)
    with pytest.raises(InputError, match="the chat ends with the assistant's turn"):
        load(tmp_path, {column: json.dumps([USER, REPLY]), "answer": "2"})


def test_contest_without_python_solution(tmp_path):
    rows = [
        {**CONTEST, "solutions": {"language": [1, 2], "solution": ["a", "b"]}},
        {**CONTEST, "solutions": {"language": [3], "solution": [7]}},
        {n: v for n, v in CONTEST.items() if n != "solutions"},
    ]
    assert [problem.demonstration for problem in load(tmp_path, *rows).problems] == [None, None, None]


def test_math_solution_is_optional_with_answer(tmp_path):
    row = {**MATH, "answer": "1"}
    loaded = load(tmp_path, row, {**row, "solution": ""}, {**row, "solution": None})
    assert [problem.demonstration for problem in loaded.problems] == [MATH["solution"], None, None]


def test_answer_from_last_box(tmp_path):
    texts = [
        r"\boxed{1} then \boxed{\{2\}}",
        r"\fbox{3}",
        r"$\boxed 4$ is it",
        r"\boxed{5} or \fbox{6}",
        r"\boxed{\text{(7)}}",
        r"\boxed{8} in \fboxes, with \fboxsep=5pt",
    ]
    loaded = load(tmp_path, *({**MATH, "solution": text} for text in texts))
    assert [problem.answer for problem in loaded.problems] == [r"\{2\}", "3", "4", "6", r"\text{(7)}", "8"]


def test_recognize_plain_row():
    assert recognize({"prompt": "a", "answer": "1"}) is None
    assert recognize({}) is None


def test_trl_messages_keep_system_message(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "system", "content": "Add."}, USER, REPLY]}))
    assert load_problems(path)[0].messages == ({"role": "system", "content": "Add."}, USER)


def test_verl_program_inputs_and_outputs(tmp_path):
    truth = json.dumps({"inputs": ["2\n", "3\n"], "outputs": ["4\n", "6\n"]})
    row = {"prompt": [USER], "reward_model": {"style": "rule", "ground_truth": truth}, "data_source": "taco"}
    (problem,) = load(tmp_path, row).problems
    assert problem.columns["stdin"] == ["2\n", "3\n"]
    assert problem.columns["stdout"] == ["4\n", "6\n"]
    (other,) = load(tmp_path, {**row, "reward_model": {"ground_truth": '{"a": 1}'}}).problems
    assert "stdin" not in other.columns


@pytest.mark.parametrize(
    ("truth", "columns"),
    [
        ({"inputs": [["2", "3"], "4"], "outputs": ["5", ["6"]]}, {"stdin": ["2\n3", "4"], "stdout": ["5", "6"]}),
        ({"assert_case": ["assert f(2) == 3"], "fn_name": "f"}, {"tests": ["assert f(2) == 3"]}),
        ({"fn_name": "f", "inputs": ["2"], "outputs": ["3"]}, {}),
        ({"fn_name": "", "inputs": ["2"], "outputs": ["3"]}, {"stdin": ["2"], "stdout": ["3"]}),
        ({"inputs": [[2]], "outputs": ["3"]}, {}),
        ({"inputs": ["2", "3"], "outputs": ["3"]}, {}),
    ],
)
def test_verl_other_tests(tmp_path, truth, columns):
    row = {"prompt": [USER], "reward_model": {"ground_truth": json.dumps(truth)}}
    (problem,) = load(tmp_path, row).problems
    assert {name: problem.columns[name] for name in ("stdin", "stdout", "tests") if name in problem.columns} == columns


def test_ambiguous_columns(tmp_path):
    chat = load(tmp_path, {"prompt": USER["content"], "prompt_id": "7", "messages": [USER, REPLY]})
    assert (chat.format, chat.problems[0].messages, chat.problems[0].demonstration) == (
        "TRL messages",
        (USER,),
        REPLY["content"],
    )
    other = load(tmp_path, {"prompt": USER["content"], "messages": [USER, REPLY], "answer": "9"})
    assert (other.format, other.problems[0].answer) == ("plain", "9")
    named = load(tmp_path, {"problem": "1+1?", "solution": "Two.", "final_answer": "2"})
    assert named.problems[0].answer == "2"
    assert load(tmp_path, {"problem": "1+1?", "expected_answer": 2}).problems[0].answer == "2"
    for stored, answer in (('["25"]', "25"), ("[1,2]", "[1,2]"), ('["a', '["a')):
        assert load(tmp_path, DAPO | {"reward_model": {"ground_truth": stored}}).problems[0].answer == answer
