"""The published datasets that are known by their columns, and how a row of each becomes a problem.

A format is a record of functions of a row. Which one a dataset has is settled once, by its first row.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rljax.data.cells import (
    MISSING,
    Messages,
    after_hashes,
    answer_of,
    chat_of,
    joined,
    last_boxed,
    lookup,
    prompt_of,
    take,
    text_of,
)
from rljax.data.fault import BadRowError, kind

PROMPT_COLUMNS = ("prompt", "question", "problem", "text")
ANSWER_COLUMNS = ("answer", "solution", "ground_truth", "target", "reward_model.ground_truth")
DEMONSTRATION_COLUMN = "demonstration"
PROCESSED = "length_bin"
"""A column that `rljax preprocess` writes: such rows say themselves what is prompt and what is answer."""

Row = Mapping[str, object]

_TASK_AND_TESTS = "{task}\n\nThe code has to pass these tests:\n\n{tests}\n"
_AIME_ID = re.compile(r"(?:19|20)\d\d-(?:I{1,2}-)?\d+")


class Format(NamedTuple):
    """How one kind of row is read; each function raises `BadRowError` for a row that it cannot read."""

    name: str
    prompt: Callable[[Row], tuple[str, Messages | None]]
    answer: Callable[[Row], str]
    demonstration: Callable[[Row], str | None]
    columns: Callable[[Row], dict[str, object]]


def recognise(row: Row) -> Format | None:
    """Say which published format a row has.

    Args:
        row: the first row of a dataset.

    Returns:
        The format; None if the row has only a prompt and an answer under names of their own.

    Example:
        >>> recognise({"question": "1+1?", "answer": "1+1 = 2\\n#### 2"}).name
        'GSM8K'
        >>> recognise({"question": "1+1?", "answer": "2"}) is None
        True
    """
    candidates = (_tests,) if PROCESSED in row and "prompt" in row else _ALL
    return next((known for candidate in candidates if (known := candidate(row)) is not None), None)


def without(*names: str) -> Callable[[Row], dict[str, object]]:
    """Keep all columns but these and `answer`, the name under which rewards receive the answer itself."""
    return lambda row: {name: value for name, value in row.items() if name not in (*names, "answer")}


def nothing(row: Row) -> None:
    """No demonstration."""
    del row


def optional(column: str = DEMONSTRATION_COLUMN) -> Callable[[Row], str | None]:
    """Read a demonstration where a row has one."""
    return lambda row: None if row.get(column) in (None, "") else text_of(row, column, "demonstration")


def _verl(first: Row) -> Format | None:
    """Recognise verl's rows, DAPO-Math-17k among them."""
    if "prompt" not in first or lookup(first, "reward_model.ground_truth") is MISSING:
        return None
    return Format(
        "verl",
        lambda row: prompt_of(row, "prompt"),
        lambda row: answer_of(row, "reward_model.ground_truth"),
        optional(),
        without("prompt"),
    )


def _human_eval(first: Row) -> Format | None:
    if not {"prompt", "test", "entry_point"} <= set(first):
        return None

    def columns(row: Row) -> dict[str, object]:
        for name in ("test", "entry_point"):
            text_of(row, name, name)
        # A prompt may be reworded later, and a completion may be the body alone: what stands before it is kept as it is.
        return {"header": row["prompt"], **without("prompt", "canonical_solution")(row)}

    demonstration = "canonical_solution" if "canonical_solution" in first else DEMONSTRATION_COLUMN
    return Format("HumanEval", lambda row: prompt_of(row, "prompt"), _no_answer, optional(demonstration), columns)


def _mbpp(first: Row) -> Format | None:
    """Recognise MBPP, whole (`text`) and sanitised (`prompt`)."""
    task = next((name for name in ("text", "prompt") if name in first), None)
    if task is None or not {"test_list", "code"} <= set(first):
        return None

    def prompt(row: Row) -> tuple[str, None]:
        tests = "\n".join(_lines(row, "test_list"))
        return _TASK_AND_TESTS.format(task=text_of(row, task, "prompt").strip(), tests=tests), None

    def columns(row: Row) -> dict[str, object]:
        imports = _lines(row, "test_imports", empty=True) if "test_imports" in row else []
        setup = row.get("test_setup_code")
        written = "\n".join([*imports, *([setup] if isinstance(setup, str) and setup else [])])
        others = without(task, "test_list", "test_setup_code", "test_imports")(row)
        return {"tests": _lines(row, "test_list"), "setup": written, **others}

    return Format("MBPP", prompt, _no_answer, lambda row: _unix(text_of(row, "code", "code")), columns)


def _tests(first: Row) -> Format | None:
    """Recognise any other task that tests judge: `tests`, a list, or one text `test` that asserts. An answer may be missing."""
    test = first.get("test")
    listed = isinstance(first.get("tests"), (list, tuple))
    column = "tests" if listed else "test"
    if "prompt" not in first or not (listed or (isinstance(test, str) and "assert" in test)):
        return None

    def columns(row: Row) -> dict[str, object]:
        if column == "tests":
            _lines(row, column)
        else:
            text_of(row, column, "test")
        return without("prompt")(row)

    def answer(row: Row) -> str:
        return "" if row.get("answer") in (None, "") else answer_of(row, "answer")

    return Format("code with tests", lambda row: prompt_of(row, "prompt"), answer, optional(), columns)


def _aime(first: Row) -> Format | None:
    """Recognise AIME, however its columns are written: an id such as 2024-I-3, an address, or year and number of the problem."""
    named = {name.lower(): name for name in first if isinstance(name, str)}
    prompt = next((named[name] for name in ("problem", "question") if name in named), None)
    identity, address = (str(first[named[name]]) if name in named else "" for name in ("id", "url"))
    dated = _AIME_ID.fullmatch(identity) or "AIME" in address or {"year", "problem number"} <= set(named)
    if prompt is None or "answer" not in named or not dated:
        return None

    def answer(row: Row) -> str:
        text = answer_of(row, named["answer"]).strip()
        if not re.fullmatch(r"[0-9]{1,3}", text):
            raise BadRowError(
                f"an AIME answer is a whole number from 0 to 999, not {text[:60]!r}", "correct it", column=named["answer"]
            )
        return str(int(text))

    demonstration = optional(named["solution"]) if "solution" in named else nothing
    return Format("AIME", lambda row: prompt_of(row, prompt), answer, demonstration, without(prompt))


def _strategy_qa(first: Row) -> Format | None:
    said = isinstance(first.get("answer"), bool) and isinstance(first.get("question"), str)
    if not said or not {"facts", "decomposition", "term", "qid"} & set(first):
        return None

    def answer(row: Row) -> str:
        value = take(row, "answer")
        if not isinstance(value, bool):
            raise BadRowError(f"a StrategyQA answer is true or false, not {kind(value)}", "correct it", column="answer")
        return "yes" if value else "no"

    return Format("StrategyQA", lambda row: prompt_of(row, "question"), answer, nothing, without("question"))


def _gsm8k(first: Row) -> Format | None:
    worked = first.get("answer")
    if "question" not in first or not isinstance(worked, str) or "####" not in worked:
        return None
    return Format(
        "GSM8K",
        lambda row: prompt_of(row, "question"),
        lambda row: after_hashes(text_of(row, "answer", "answer"), "answer"),
        lambda row: text_of(row, "answer", "demonstration"),
        without("question"),
    )


def _math(first: Row) -> Format | None:
    r"""Recognise MATH and its kin: a `solution` that boxes its answer, with or without a column `answer`."""
    solution = first.get("solution")
    if "problem" not in first or not isinstance(solution, str) or not (r"\boxed" in solution or r"\fbox" in solution):
        return None

    def boxed(row: Row) -> str:
        return last_boxed(text_of(row, "solution", "solution"), "solution")

    return Format(
        "MATH",
        lambda row: prompt_of(row, "problem"),
        (lambda row: answer_of(row, "answer")) if "answer" in first else boxed,
        optional("solution"),
        without("problem"),
    )


def _messages(first: Row) -> Format | None:
    """Recognise TRL's conversations: the last message is the assistant's, and is what would be imitated."""
    if not isinstance(first.get("messages"), (list, tuple)) or any(name in first for name in PROMPT_COLUMNS):
        return None

    def turns(row: Row) -> Messages:
        messages = chat_of(take(row, "messages"), "messages")
        if len(messages) < 2 or messages[-1]["role"] != "assistant":
            raise BadRowError(
                "the conversation must end with the assistant's turn after another's", "complete it", column="messages"
            )
        return messages

    def prompt(row: Row) -> tuple[str, Messages]:
        asked = turns(row)[:-1]
        return prompt_of({"messages": asked}, "messages")[0], asked

    def response(row: Row) -> str:
        return text_of({"messages": turns(row)[-1]["content"]}, "messages", "demonstration")

    return Format("TRL messages", prompt, _known_answer(first, response), response, without("messages"))


def _completion(first: Row) -> Format | None:
    """Recognise TRL's prompt and completion, each text or messages."""
    if not {"prompt", "completion"} <= set(first):
        return None

    def response(row: Row) -> str:
        value = take(row, "completion")
        text = value if isinstance(value, str) else joined(chat_of(value, "completion"))
        return text_of({"completion": text}, "completion", "demonstration")

    return Format(
        "TRL completion",
        lambda row: prompt_of(row, "prompt"),
        _known_answer(first, response),
        response,
        without("prompt", "completion"),
    )


_ALL = (_verl, _human_eval, _mbpp, _tests, _aime, _strategy_qa, _gsm8k, _math, _messages, _completion)


def _known_answer(first: Row, otherwise: Callable[[Row], str]) -> Callable[[Row], str]:
    """Read the answer from a column of that name; without one the worked response is what there is to compare with."""
    column = next((name for name in ANSWER_COLUMNS if lookup(first, name) is not MISSING), None)
    return otherwise if column is None else lambda row: answer_of(row, column)


def _no_answer(row: Row) -> str:
    """Tests judge the response; there is no answer to compare it with."""
    del row
    return ""


def _lines(row: Row, column: str, *, empty: bool = False) -> list[str]:
    value = take(row, column)
    listed = isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(line, str) for line in value)
    if not listed or not (value or empty):
        what = "an empty list" if listed else kind(value)
        raise BadRowError(f"{column} must be a list of texts, not {what}", "rewrite it, or remove the row", column=column)
    return list(value)


def _unix(code: str) -> str:
    """End lines as a model is to write them."""
    return code.replace("\r\n", "\n").replace("\r", "\n")
