"""Published dataset formats, which are recognized by their columns, and the conversion of their rows to problems.

A `Format` is a record of functions that read a row. The first row of a dataset decides the dataset's format.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from string import ascii_uppercase
from typing import NamedTuple

from rljax.data.bad_rows import BadRowError, describe_value, short_repr
from rljax.data.cells import (
    MISSING,
    Messages,
    answer_after_hash_marks,
    answer_of,
    chat_of,
    join_contents,
    last_boxed,
    lookup,
    prompt_of,
    require,
    text_of,
)
from rljax.data.problem import TokenizedRow

PROMPT_COLUMNS = ("prompt", "question", "problem", "text")
ANSWER_COLUMNS = (
    *("answer", "final_answer", "expected_answer", "solution", "ground_truth", "target"),
    "reward_model.ground_truth",
)
DEMONSTRATION_COLUMN = "demonstration"
PREPROCESS_COLUMN = "length_bin"
"""A column that `rljax preprocess` writes. In rows with this column, the prompt and answer are in `prompt` and `answer`."""

Row = Mapping[str, object]

_TASK_AND_TESTS = "{task}\n\nThe code has to pass these tests:\n\n{tests}\n"
_TASK_WITH_START = "{task}\n\nThe program has to begin like this:\n\n```python\n{start}\n```\n"
_TASK_WITH_INPUT = "{task}\n\nWrite a Python 3 program that reads the input from standard input and prints the output.\n"
_CONTEST_TESTS = ("public_tests", "private_tests", "generated_tests")
_PYTHON_3 = 3
"""CodeContests' number for the language Python 3."""
_AIME_ID = re.compile(r"(?:19|20)\d\d-(?:I{1,2}-)?\d+")


def no_value(row: Row) -> None:
    """Return None for any row, because the format has no such field."""
    del row


class Format(NamedTuple):
    """The functions that read the rows of one format. Each raises `BadRowError` for a row that it cannot read."""

    name: str
    """The name of the format, for reports."""
    prompt: Callable[[Row], tuple[str, Messages | None]]
    """Reads the prompt as text, and its messages if it is a chat."""
    answer: Callable[[Row], str]
    """Reads the reference answer; empty if tests judge the responses."""
    demonstration: Callable[[Row], str | None]
    """Reads the worked response; None if the row has none."""
    columns: Callable[[Row], dict[str, object]]
    """Reads all other data of the row, which rewards receive by name."""
    turns: Callable[[Row], Messages | None] = lambda row: _turns_in(row, DEMONSTRATION_COLUMN)
    """Reads the worked response as messages; None if plain text can represent it."""
    tokens: Callable[[Row], TokenizedRow | None] = no_value
    """Reads the prompt and worked response as token ids; None if the row contains text."""


def recognize(row: Row) -> Format | None:
    """Recognize the published format of a row.

    Args:
        row: the first row of a dataset.

    Returns:
        The format; None if the row has no published format.

    Example:
        >>> recognize({"question": "1+1?", "answer": "1+1 = 2\\n#### 2"}).name
        'GSM8K'
        >>> recognize({"question": "1+1?", "answer": "2"}) is None
        True
    """
    candidates = (_tests,) if PREPROCESS_COLUMN in row and "prompt" in row else _ALL
    return next((form for candidate in candidates if (form := candidate(row)) is not None), None)


def columns_except(*names: str) -> Callable[[Row], dict[str, object]]:
    """Return a function that keeps all columns except the named ones and `answer`, which rewards receive separately."""
    return lambda row: {name: value for name, value in row.items() if name not in (*names, "answer")}


def optional_demonstration(column: str = DEMONSTRATION_COLUMN) -> Callable[[Row], str | None]:
    """Return a function that reads a row's demonstration, from text or from messages; None if there is none."""

    def read(row: Row) -> str | None:
        value = row.get(column)
        if isinstance(value, (list, tuple)) and value:
            return text_of({column: join_contents(chat_of(value, column))}, column, "demonstration")
        return None if value in (None, "") else text_of(row, column, "demonstration")

    return read


def _turns_in(row: Row, column: str) -> Messages | None:
    value = row.get(column)
    return rich_turns(chat_of(value, column)) if isinstance(value, (list, tuple)) and value else None


def _verl(first: Row) -> Format | None:
    """Recognize verl's rows, including those of DAPO-Math-17k."""
    if "prompt" not in first or lookup(first, "reward_model.ground_truth") is MISSING:
        return None
    return Format(
        "verl",
        lambda row: prompt_of(row, "prompt"),
        _answer_of_verl,
        optional_demonstration(),
        lambda row: columns_except("prompt")(row) | _inputs_of_verl(row),
    )


def _answer_of_verl(row: Row) -> str:
    """Read the answer of a verl row; in some rows it is the JSON text of a list with one text, `["25"]`."""
    column = "reward_model.ground_truth"
    answer = answer_of(row, column)
    try:
        answers = json.loads(answer) if answer.lstrip().startswith('["') else None
    except (ValueError, RecursionError):
        return answer
    if not isinstance(answers, list) or not all(isinstance(each, str) for each in answers):
        return answer
    if len(answers) > 1:
        raise BadRowError(f"there are {len(answers)} answers", "keep one of them, or make a row of each", column=column)
    return answer_of({column: answers[0]}, column)


def _inputs_of_verl(row: Row) -> dict[str, object]:
    """Return the tests of a programming task, which verl stores as JSON; an empty dict for any other row.

    The dict is also empty for tests that call a function (`fn_name`), because their inputs are arguments; a run reports that it
    cannot judge such a task.
    """
    truth = lookup(row, "reward_model.ground_truth")
    try:
        tests = json.loads(truth) if isinstance(truth, str) and truth.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return {}
    match tests:
        case {"assert_case": [str(), *_] as assertions}:
            return {"tests": assertions}
        case {"inputs": [*inputs], "outputs": [*outputs], **others} if not others.get("fn_name") and inputs:
            texts = {"stdin": list(map(_as_lines, inputs)), "stdout": list(map(_as_lines, outputs))}
            is_complete = len(inputs) == len(outputs) and None not in (*texts["stdin"], *texts["stdout"])
            return dict(texts) if is_complete else {}
        case _:
            return {}


def _as_lines(value: object) -> str | None:
    """Return a text, or a list of lines joined to a text; None for anything else."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    return value if isinstance(value, str) else None


def _human_eval(first: Row) -> Format | None:
    if not {"prompt", "test", "entry_point"} <= set(first):
        return None

    def columns(row: Row) -> dict[str, object]:
        for name in ("test", "entry_point"):
            text_of(row, name, name)
        # Keep the original header: the prompt may be reworded later, but a completion may be only the function's body.
        return {"header": require(row, "prompt"), **columns_except("prompt", "canonical_solution")(row)}

    demonstration = "canonical_solution" if "canonical_solution" in first else DEMONSTRATION_COLUMN
    return Format(
        "HumanEval", lambda row: prompt_of(row, "prompt"), _no_answer, optional_demonstration(demonstration), columns
    )


def _leet_code(first: Row) -> Format | None:
    """Recognize LeetCodeDataset: `prompt` contains only imports and helpers, and another column contains the question."""
    question = next((name for name in ("query", "problem_description") if name in first), None)
    form = _human_eval(first)
    if form is None or question is None:
        return None

    def prompt(row: Row) -> tuple[str, None]:
        task, start = text_of(row, question, "prompt"), row.get("starter_code")
        if isinstance(start, str) and start.strip() not in task:
            task = _TASK_WITH_START.format(task=task.strip(), start=start.rstrip())
        return task, None

    response = next((name for name in ("response", "completion") if name in first), DEMONSTRATION_COLUMN)
    return form._replace(
        name="LeetCodeDataset",
        prompt=prompt,
        demonstration=optional_demonstration(response),
        columns=lambda row: columns_except(question)(form.columns(row)),
    )


def _mbpp(first: Row) -> Format | None:
    """Recognize MBPP, both full (`text`) and sanitized (`prompt`)."""
    task = next((name for name in ("text", "prompt") if name in first), None)
    if task is None or not {"test_list", "code"} <= set(first):
        return None

    def prompt(row: Row) -> tuple[str, None]:
        tests = "\n".join(_lines(row, "test_list"))
        return _TASK_AND_TESTS.format(task=text_of(row, task, "prompt").strip(), tests=tests), None

    def columns(row: Row) -> dict[str, object]:
        imports = _lines(row, "test_imports", empty=True) if "test_imports" in row else []
        setup = row.get("test_setup_code")
        setup_code = "\n".join([*imports, *([setup] if isinstance(setup, str) and setup else [])])
        others = columns_except(task, "test_list", "test_setup_code", "test_imports")(row)
        return {"tests": _lines(row, "test_list"), "setup": setup_code, **others}

    return Format("MBPP", prompt, _no_answer, lambda row: _with_unix_line_ends(text_of(row, "code", "code")), columns)


def _tests(first: Row) -> Format | None:
    """Recognize other programming tasks: `tests`, a `test` with assertions, or `stdin` and `stdout`. The answer is optional."""
    test = first.get("test")
    if "prompt" not in first:
        return None
    if isinstance(first.get("tests"), (list, tuple)):
        check: Callable[[Row], object] = lambda row: _lines(row, "tests")  # noqa: E731 - one of three
    elif isinstance(test, str) and "assert" in test:
        check = lambda row: text_of(row, "test", "test")  # noqa: E731
    elif isinstance(first.get("stdin"), (list, tuple)) and "stdout" in first:
        check = _inputs_and_outputs
    else:
        return None

    def columns(row: Row) -> dict[str, object]:
        check(row)
        return columns_except("prompt")(row)

    def answer(row: Row) -> str:
        return "" if row.get("answer") in (None, "") else answer_of(row, "answer")

    return Format("code with tests", lambda row: prompt_of(row, "prompt"), answer, optional_demonstration(), columns)


def _inputs_and_outputs(row: Row) -> tuple[list[str], list[str]]:
    inputs, outputs = _lines(row, "stdin"), _lines(row, "stdout")
    if len(inputs) != len(outputs):
        raise BadRowError(
            f"there are {len(outputs)} outputs for {len(inputs)} inputs",
            "give one output per input, or remove the row",
            column="stdout",
        )
    return inputs, outputs


def _aime(first: Row) -> Format | None:
    """Recognize AIME in any capitalization: by an id such as 2024-I-3, a URL, or the year and number of the problem."""
    named = {name.lower(): name for name in first if isinstance(name, str)}
    prompt = next((named[name] for name in ("problem", "question") if name in named), None)
    problem_id, problem_url = (str(first[named[name]]) if name in named else "" for name in ("id", "url"))
    is_dated = _AIME_ID.fullmatch(problem_id) or "AIME" in problem_url or {"year", "problem number"} <= set(named)
    if prompt is None or "answer" not in named or not is_dated:
        return None

    def answer(row: Row) -> str:
        text = answer_of(row, named["answer"]).strip()
        if not re.fullmatch(r"[0-9]{1,3}", text):
            raise BadRowError(
                f"an AIME answer is an integer from 0 to 999, not {text[:60]!r}", "correct it", column=named["answer"]
            )
        return str(int(text))

    demonstration = optional_demonstration(named["solution"]) if "solution" in named else no_value
    return Format("AIME", lambda row: prompt_of(row, prompt), answer, demonstration, columns_except(prompt))


def _strategy_qa(first: Row) -> Format | None:
    has_answer = isinstance(first.get("answer"), bool) and isinstance(first.get("question"), str)
    if not has_answer or not {"facts", "decomposition", "term", "qid"} & set(first):
        return None

    def answer(row: Row) -> str:
        value = require(row, "answer")
        if not isinstance(value, bool):
            raise BadRowError(
                f"a StrategyQA answer is true or false, not {describe_value(value)}", "correct it", column="answer"
            )
        return "yes" if value else "no"

    return Format("StrategyQA", lambda row: prompt_of(row, "question"), answer, no_value, columns_except("question"))


def _gsm8k(first: Row) -> Format | None:
    worked = first.get("answer")
    if "question" not in first or not isinstance(worked, str) or "####" not in worked:
        return None
    return Format(
        "GSM8K",
        lambda row: prompt_of(row, "question"),
        lambda row: answer_after_hash_marks(text_of(row, "answer", "answer"), "answer"),
        lambda row: text_of(row, "answer", "demonstration"),
        columns_except("question"),
    )


def _math(first: Row) -> Format | None:
    r"""Recognize MATH and similar datasets: a `solution` with a boxed answer, with or without a column `answer`."""
    solution = first.get("solution")
    if "problem" not in first or not isinstance(solution, str) or not (r"\boxed" in solution or r"\fbox" in solution):
        return None

    def boxed(row: Row) -> str:
        return last_boxed(text_of(row, "solution", "solution"), "solution")

    return Format(
        "MATH",
        lambda row: prompt_of(row, "problem"),
        (lambda row: answer_of(row, "answer")) if "answer" in first else boxed,
        optional_demonstration("solution"),
        columns_except("problem"),
    )


def _commonsense_qa(first: Row) -> Format | None:
    """Recognize CommonsenseQA and ARC, which have the same columns: labeled choices, and the label of the right choice."""
    if "answerKey" not in first or not {"question", "choices"} <= set(first):
        return None

    def options(row: Row) -> tuple[list[str], list[str]]:
        choices = require(row, "choices")
        labels, texts = (_lines(choices, name) if isinstance(choices, Mapping) else [] for name in ("label", "text"))
        if not labels or len(labels) != len(texts) or len(labels) > len(ascii_uppercase):
            raise BadRowError(
                f"choices must have as many labels as texts, at most 26, not {short_repr(choices)}",
                "rewrite them",
                column="choices",
            )
        return labels, texts

    def prompt(row: Row) -> tuple[str, None]:
        lines = [f"{letter}. {text}" for letter, text in zip(ascii_uppercase, options(row)[1], strict=False)]
        return "\n".join([text_of(row, "question", "prompt"), *lines]), None

    def answer(row: Row) -> str:
        key, labels = require(row, "answerKey"), options(row)[0]
        if key == "":  # the published test split withholds its answers
            return ""
        if key not in labels:
            raise BadRowError(
                f"the answer {short_repr(key)} is not one of the labels {labels}", "correct it", column="answerKey"
            )
        return ascii_uppercase[labels.index(str(key))]

    return Format("CommonsenseQA", prompt, answer, no_value, columns_except("question"))


_FOLIO_LABELS = {"True": "A", "False": "B", "Uncertain": "C", "Unknown": "C"}
_FOLIO_PROMPT = "{premises}\n\nIs the following statement true?\n{conclusion}\n\nA. True\nB. False\nC. Uncertain"


def _folio(first: Row) -> Format | None:
    """Recognize FOLIO: premises, and a conclusion that is true, false or uncertain. The answer is the option's letter."""
    if not {"premises", "conclusion", "label"} <= set(first):
        return None

    def prompt(row: Row) -> tuple[str, None]:
        premises = require(row, "premises")
        lines = [text_of(row, "premises", "prompt")] if isinstance(premises, str) else _lines(row, "premises")
        return _FOLIO_PROMPT.format(premises="\n".join(lines), conclusion=text_of(row, "conclusion", "prompt")), None

    def answer(row: Row) -> str:
        label = require(row, "label")
        if not isinstance(label, str) or label not in _FOLIO_LABELS:
            raise BadRowError(
                f"a label of FOLIO is True, False, Uncertain or Unknown, not {short_repr(label)}",
                "correct it",
                column="label",
            )
        return _FOLIO_LABELS[str(label)]

    return Format("FOLIO", prompt, answer, no_value, columns_except("premises", "conclusion"))


def _code_contests(first: Row) -> Format | None:
    """Recognize CodeContests. The tests are inputs and outputs; the first Python 3 solution is the demonstration."""
    if not {"description", *_CONTEST_TESTS} <= set(first):
        return None

    def prompt(row: Row) -> tuple[str, None]:
        return _TASK_WITH_INPUT.format(task=text_of(row, "description", "prompt").strip()), None

    def solution(row: Row) -> str | None:
        solutions = row.get("solutions")
        if not isinstance(solutions, Mapping):
            return None
        languages, texts = solutions.get("language"), solutions.get("solution")
        if not isinstance(languages, Sequence) or not isinstance(texts, Sequence):
            return None
        python = (text for language, text in zip(languages, texts, strict=False) if language == _PYTHON_3)
        return next((text for text in python if isinstance(text, str)), None)

    def columns(row: Row) -> dict[str, object]:
        for name in ("input_file", "output_file"):
            if row.get(name) not in (None, ""):
                raise BadRowError("the program has to read or write a file", "remove the row", column=name)
        pairs = {"stdin": "input", "stdout": "output"}
        columns = {
            ours: [text for name in _CONTEST_TESTS for text in _texts_in(row, name, theirs)]
            for ours, theirs in pairs.items()
        }
        _inputs_and_outputs(columns)
        return columns | columns_except("description", "solutions", "incorrect_solutions", *_CONTEST_TESTS)(row)

    return Format("CodeContests", prompt, _no_answer, solution, columns)


def _texts_in(row: Row, column: str, name: str) -> list[str]:
    """Return the list of texts in one entry of an object column."""
    value = require(row, column)
    if not isinstance(value, Mapping):
        raise BadRowError(f"{column} must be an object, not {describe_value(value)}", "rewrite it", column=column)
    return _lines(value, name, empty=True)


def _messages(first: Row) -> Format | None:
    """Recognize TRL's conversations: the last message is the assistant's and becomes the demonstration.

    A row without an answer may repeat one of its messages in a prompt column, as in UltraChat.
    """
    messages, repeated = first.get("messages"), [first[name] for name in PROMPT_COLUMNS if name in first]
    if not isinstance(messages, (list, tuple)) or (
        repeated and any(name in first for name in (*ANSWER_COLUMNS, "completion"))
    ):
        return None
    contents = [message.get("content") for message in messages if isinstance(message, Mapping)]
    if not all(isinstance(prompt, str) and prompt in contents for prompt in repeated):
        return None

    def turns(row: Row) -> Messages:
        messages = chat_of(require(row, "messages"), "messages")
        if len(messages) < 2 or messages[-1]["role"] != "assistant":
            raise BadRowError(
                "the conversation must end with the assistant's turn after at least one other message",
                "complete it or, if the messages are the prompt, set prompt_column=messages",
                column="messages",
            )
        return messages

    def prompt(row: Row) -> tuple[str, Messages]:
        opening = turns(row)[:-1]
        return prompt_of({"messages": opening}, "messages")[0], opening

    def response(row: Row) -> str:
        return text_of({"messages": join_contents(turns(row)[-1:])}, "messages", "demonstration")

    return Format(
        "TRL messages",
        prompt,
        _answer_or(first, response),
        response,
        columns_except("messages"),
        lambda row: rich_turns(turns(row)[-1:]),
    )


def rich_turns(turns: Messages) -> Messages | None:
    """Return the turns if plain text cannot represent them (several turns, tool calls or reasoning); otherwise None."""
    return turns if len(turns) > 1 or any(set(turn) != {"role", "content"} for turn in turns) else None


def _completion(first: Row) -> Format | None:
    """Recognize TRL's prompt and completion; each is text or messages."""
    if not {"prompt", "completion"} <= set(first):
        return None

    def turns(row: Row) -> Messages | None:
        value = require(row, "completion")
        messages = None if isinstance(value, str) else chat_of(value, "completion")
        roles = [] if messages is None else [messages[0]["role"], messages[-1]["role"]]
        other = next((role for role in roles if role != "assistant"), None)
        if other is not None:
            raise BadRowError(
                f"the completion begins or ends with a message of role {other!r}",
                "begin and end it with assistant messages",
                column="completion",
            )
        return messages

    def response(row: Row) -> str:
        messages = turns(row)
        text = require(row, "completion") if messages is None else join_contents(messages)
        return text_of({"completion": text}, "completion", "demonstration")

    def answer(row: Row) -> str:
        messages = turns(row)
        return response(row) if messages is None else join_contents(messages[-1:])

    return Format(
        "TRL completion",
        lambda row: prompt_of(row, "prompt"),
        _answer_or(first, answer),
        response,
        columns_except("prompt", "completion"),
        lambda row: None if (messages := turns(row)) is None else rich_turns(messages),
    )


_CODE = (_leet_code, _human_eval, _mbpp, _code_contests, _tests)
_ALL = (_verl, *_CODE, _aime, _commonsense_qa, _folio, _strategy_qa, _gsm8k, _math, _messages, _completion)


def _answer_or(first: Row, otherwise: Callable[[Row], str]) -> Callable[[Row], str]:
    """Return a function that reads an answer column, or `otherwise` if the first row has none."""
    column = next((name for name in ANSWER_COLUMNS if lookup(first, name) is not MISSING), None)
    return otherwise if column is None else lambda row: answer_of(row, column)


def _no_answer(row: Row) -> str:
    """Return an empty answer, for tasks whose responses are judged by tests."""
    del row
    return ""


def _lines(row: Row, column: str, *, empty: bool = False) -> list[str]:
    value = require(row, column)
    entries = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else None
    lines = [] if entries is None else [entry for entry in entries if isinstance(entry, str)]
    if entries is None or len(lines) < len(entries) or not (lines or empty):
        actual = "an empty list" if entries == [] else describe_value(value)
        raise BadRowError(f"{column} must be a list of texts, not {actual}", "rewrite it, or remove the row", column=column)
    return lines


def _with_unix_line_ends(code: str) -> str:
    """Convert the line endings of Windows and old Macs to newlines."""
    return code.replace("\r\n", "\n").replace("\r", "\n")
