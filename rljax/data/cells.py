"""Read and validate the cells of a row: prompts, answers, demonstrations and chats."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rljax.boxed import boxes
from rljax.data.bad_rows import BadRowError, describe_value, short_repr
from rljax.records import is_finite_number
from rljax.text import parse_json

MAX_CHARACTERS = 1_000_000
"""Maximum length of a prompt, answer or demonstration. A longer text is treated as a mistake in the file."""

INTEGER_LIMIT = 10**4300
"""Integers must be below this, because Python refuses to convert integers of more than 4,300 digits to text."""

Messages = tuple[Mapping[str, Any], ...]
CONTENT_SUBSTITUTES = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")
"""Entries that a message may have in place of content."""

MISSING = object()
"""What `lookup` returns for a column that a row does not have."""

_NO_ANSWERS, _KINDS_OF_PROBLEMS = {"proof", "notfound"}, ("question_type", "problem_type")
"""What NuminaMath-1.5 writes in place of an answer, and columns by which its rows are recognized."""
_BOX_COMMANDS = ("boxed", "fbox")
_BOX = re.compile(rf"\\(?:{'|'.join(_BOX_COMMANDS)})(?![a-zA-Z])")


def lookup(row: Mapping[str, object], column: str) -> object:
    """Get a column by its name, or a nested column by its path `outer.inner`; `MISSING` if the row has no such column.

    Example:
        >>> lookup({"reward_model": {"ground_truth": "2"}}, "reward_model.ground_truth")
        '2'
    """
    if column in row:
        return row[column]
    value: object = row
    for part in column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return MISSING
        value = value[part]
    return value


def require(row: Mapping[str, object], column: str) -> object:
    """Get a required column.

    Raises:
        BadRowError: the row does not have the column.
    """
    value = lookup(row, column)
    if value is MISSING:
        raise BadRowError(f"the column is missing ({columns_of(row)})", "add it, or remove the row", column=column)
    return value


def columns_of(row: Mapping[str, object]) -> str:
    """List the columns of a row, for messages.

    Example:
        >>> columns_of({"prompt": "1+1?", "answer": "2"}), columns_of({})
        ('the columns are: prompt, answer', 'there are no columns')
    """
    return f"the columns are: {', '.join(map(str, row))}" if row else "there are no columns"


def text_of(row: Mapping[str, object], column: str, noun: str) -> str:
    """Read a column of text.

    Args:
        row: the row.
        column: the name of the column.
        noun: what the text is called in messages, for example "answer".

    Returns:
        The text, unchanged.

    Raises:
        BadRowError: the value is not text, is blank, is longer than `MAX_CHARACTERS`, or cannot be encoded in UTF-8.
    """
    value = require(row, column)
    if not isinstance(value, str):
        raise BadRowError(f"the {noun} must be text, not {describe_value(value)}", "replace it with text", column=column)
    return _check_text(value, column, noun)


def _check_text(text: str, column: str, noun: str) -> str:
    if not text.strip():
        raise BadRowError(f"the {noun} is empty", "fill it in, or remove the row", column=column)
    if len(text) > MAX_CHARACTERS:
        raise BadRowError(
            f"the {noun} has {len(text):,} characters, more than {MAX_CHARACTERS:,}",
            "shorten it, or remove the row",
            column=column,
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRowError(
            f"the {noun} contains a lone surrogate ({error.reason} at {error.start})", "save it in UTF-8", column=column
        ) from error
    return text


def answer_of(row: Mapping[str, object], column: str) -> str:
    """Read an answer that is text or a number (Python's or NumPy's); a number becomes text, for example 27.0 becomes `27`.

    Raises:
        BadRowError: the value is null, a list, an object, a number that is not finite or has over 4,300 digits, or text that
            `text_of` rejects; or the row is one of NuminaMath without a checkable answer.

    Example:
        >>> answer_of({"answer": 27.0}, "answer"), answer_of({"answer": "27.0"}, "answer")
        ('27', '27.0')
    """
    value = require(row, column)
    if isinstance(value, np.generic):
        value = shortest_decimal(value) if isinstance(value, np.floating) else value.item()
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int) and abs(value) < INTEGER_LIMIT:
        return str(value)
    if is_finite_number(value) and not isinstance(value, int):
        return str(int(value)) if value == int(value) else repr(value)
    if not isinstance(value, str):
        raise BadRowError(
            f"an answer must be text or a number, not {describe_value(value)}",
            "fill in the answer, or remove the row",
            column=column,
        )
    if value.strip().lower() in _NO_ANSWERS and any(name in row for name in _KINDS_OF_PROBLEMS):
        raise BadRowError("the row has no checkable answer", "remove the row", column=column)
    return _check_text(value, column, "answer")


def shortest_decimal(value: np.floating) -> float:
    """Convert a half- or single-precision number to its shortest decimal form, such as 0.1 instead of 0.10000000149011612.

    A number without a fractional part keeps all of its digits.

    Example:
        >>> shortest_decimal(np.float32(0.1)), shortest_decimal(np.float16(0.1)), float(np.float32(0.1))
        (0.1, 0.1, 0.10000000149011612)
    """
    return float(value) if float(value).is_integer() else float(str(value))


def prompt_of(row: Mapping[str, object], column: str) -> tuple[str, Messages | None]:
    """Read a prompt that is text or a chat; a JSON list of messages in text form is a chat too.

    Args:
        row: the row.
        column: the name of the column.

    Returns:
        The prompt as text (for a chat, its messages' contents joined by newlines), and the messages (None if the prompt is plain
        text).

    Raises:
        BadRowError: the value is neither text nor a chat, is empty, or is a chat that ends with the assistant's turn.
    """
    value = _parse_chat(require(row, column))
    if isinstance(value, str):
        return _check_text(value, column, "prompt"), None
    messages = chat_of(value, column)
    if messages[-1]["role"] == "assistant":
        raise BadRowError(
            "the chat ends with the assistant's turn, which the policy must generate", "remove that message", column=column
        )
    return _check_text(join_contents(messages), column, "prompt"), messages


def _parse_chat(value: object) -> object:
    """Parse text that is a JSON list of objects with a `role`; return any other value unchanged."""
    try:
        parsed = parse_json(value) if isinstance(value, str) and value.lstrip().startswith("[") else None
    except ValueError:
        return value
    is_chat = isinstance(parsed, list) and parsed and all(isinstance(entry, dict) and "role" in entry for entry in parsed)
    return parsed if is_chat else value


def chat_of(value: object, column: str) -> Messages:
    """Read chat messages with all entries that a chat template may use: `role`, `content`, `tool_calls`, `name`, ...

    Null entries are left out at any depth, because tables fill missing entries with null. Content in several parts is joined
    into one text; content that is null or missing becomes an empty string if the message has a tool call or reasoning.

    Raises:
        BadRowError: the value is not a list, is empty, or has a message whose role or content is not text.

    Example:
        >>> chat_of([{"role": "assistant", "content": None, "tool_calls": [{"name": "add"}], "name": None}], "prompt")
        ({'role': 'assistant', 'content': '', 'tool_calls': [{'name': 'add'}]},)
    """
    if not isinstance(value, (list, tuple)) or not value:
        raise BadRowError(
            f"a prompt must be text or a list of chat messages, not {describe_value(value)}", "rewrite it", column=column
        )
    return tuple(_message(message, column) for message in value)


def _message(message: object, column: str) -> Mapping[str, Any]:
    entries = without_nulls(message) if isinstance(message, Mapping) else {}
    content = entries.get("content", "" if any(entries.get(name) for name in CONTENT_SUBSTITUTES) else None)
    if isinstance(content, (list, tuple)):
        other = next((part for part in content if not _is_text_part(part)), None)
        if other is not None:
            raise BadRowError(
                f"a part of a chat message must be {{'type': 'text', 'text': ...}}, not {short_repr(other)}",
                "rewrite it",
                column=column,
            )
        content = "".join(part["text"] for part in content)
    if not isinstance(entries.get("role"), str) or not isinstance(content, str):
        raise BadRowError(
            f"a chat message must be an object whose 'role' and 'content' are text, not {short_repr(message)}",
            "rewrite it",
            column=column,
        )
    if entries.get("weight", 1) not in (0, 1):
        raise BadRowError(
            f"the weight of a chat message must be 1 (trained on) or 0 (not trained on), not {short_repr(entries['weight'])}",
            "rewrite it",
            column=column,
        )
    return {"role": entries["role"], "content": content} | {
        k: v for k, v in entries.items() if k not in ("role", "content")
    }


def _is_text_part(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


def without_nulls(value: Any) -> Any:
    """Remove null entries from mappings, at any depth.

    Example:
        >>> without_nulls({"name": "add", "arguments": {"a": 2, "b": None}})
        {'name': 'add', 'arguments': {'a': 2}}
    """
    if isinstance(value, Mapping):
        return {key: without_nulls(entry) for key, entry in value.items() if entry is not None}
    return [without_nulls(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def join_contents(messages: Sequence[Mapping[str, Any]]) -> str:
    """Join the contents of a chat with newlines; a message without content contributes its tool calls, as JSON.

    Example:
        >>> join_contents([{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1?"}])
        'Add.\\n1+1?'
    """
    return "\n".join(
        json.dumps(message["tool_calls"], ensure_ascii=False)
        if message.get("tool_calls") and not message["content"]
        else message["content"]
        for message in messages
    )


def answer_after_hash_marks(solution: str, column: str) -> str:
    """Read the answer after the last `####` of a GSM8K solution.

    Raises:
        BadRowError: there is no `####`, or no text after it.

    Example:
        >>> answer_after_hash_marks("48 + 24 = 72 clips.\\n#### 72", "answer")
        '72'
    """
    _, marks, after = solution.rpartition("####")
    answer = after.strip()
    if not marks or not answer:
        raise BadRowError("the solution has no answer after '####'", "add one, or remove the row", column=column)
    return answer


def last_boxed(solution: str, column: str) -> str:
    r"""Read the answer in the last `\boxed{...}` of a MATH solution (or `\boxed 5`, or `\fbox{...}`).

    Raises:
        BadRowError: there is no box, or the last box is empty or its braces do not balance.

    Example:
        >>> last_boxed(r"Thus $x = \boxed{\frac{1}{2}}$.", "solution"), last_boxed(r"It is $\boxed 5$.", "solution")
        ('\\frac{1}{2}', '5')
    """
    commands = list(_BOX.finditer(solution))
    if not commands:
        raise BadRowError(r"the solution has no \boxed{answer}", "add one, or remove the row", column=column)
    last, rest = solution[commands[-1].start() :], solution[commands[-1].end() :].lstrip()
    if rest.startswith("{"):
        closed = boxes(last, commands=_BOX_COMMANDS)
        if not closed:
            raise BadRowError(
                r"the braces of the last \boxed{ do not balance", "close them, or remove the row", column=column
            )
        answer = closed[-1].content.strip()
    else:
        answer = rest.partition("$")[0].partition("\n")[0].strip()
    if not answer:
        raise BadRowError(
            r"the last \boxed{} of the solution is empty", "fill in the answer, or remove the row", column=column
        )
    return answer
