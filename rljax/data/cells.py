"""From the values of a row to text that can be trusted: a prompt, an answer, a worked response."""

import math
from collections.abc import Mapping, Sequence

from rljax.data.fault import BadRowError, kind, shown
from rljax.text import boxes

MAX_CHARACTERS = 1_000_000
"""No prompt, answer or demonstration is longer; what is, is no such thing but a mistake in the file."""

Messages = tuple[Mapping[str, str], ...]

MISSING = object()

_BOX_COMMANDS = ("boxed", "fbox")


def lookup(row: Mapping[str, object], column: str) -> object:
    """Get a column by its name, or a nested one by the names that lead to it; `MISSING` if there is none.

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


def take(row: Mapping[str, object], column: str) -> object:
    """Get a column that must be there.

    Raises:
        BadRowError: it is not.
    """
    value = lookup(row, column)
    if value is MISSING:
        there = ", ".join(map(str, row)) if row else "none"
        raise BadRowError(f"it is missing (there are {there})", "add it, or remove the row", column=column)
    return value


def text_of(row: Mapping[str, object], column: str, noun: str) -> str:
    """Read a column of text.

    Args:
        row: an object of the file.
        column: its name.
        noun: what the text is, for messages: "answer".

    Returns:
        The text as it stands.

    Raises:
        BadRowError: no text, only white space, longer than `MAX_CHARACTERS`, or text that cannot be written in UTF-8.
    """
    value = take(row, column)
    if not isinstance(value, str):
        raise BadRowError(f"the {noun} must be text, not {kind(value)}", "rewrite it", column=column)
    return _checked(value, column, noun)


def _checked(text: str, column: str, noun: str) -> str:
    if not text.strip():
        raise BadRowError(f"the {noun} is empty", "write it in, or remove the row", column=column)
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
            f"the {noun} holds half a character ({error.reason} at {error.start})", "write it in UTF-8", column=column
        ) from error
    return text


def answer_of(row: Mapping[str, object], column: str) -> str:
    """Read an answer that is text or a number; a number becomes text, 27.0 becomes `27`.

    Raises:
        BadRowError: null, a list, an object, a number that is not finite, or text that `text_of` refuses.

    Example:
        >>> answer_of({"answer": 27.0}, "answer"), answer_of({"answer": "27.0"}, "answer")
        ('27', '27.0')
    """
    value = take(row, column)
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, (int, float)) and math.isfinite(value):
        return str(int(value)) if value == int(value) else repr(value)
    if not isinstance(value, str):
        raise BadRowError(
            f"an answer must be text or a number, not {kind(value)}",
            "write the answer in, or remove the row",
            column=column,
        )
    return _checked(value, column, "answer")


def prompt_of(row: Mapping[str, object], column: str) -> tuple[str, Messages | None]:
    """Read a prompt that is text or a chat.

    Args:
        row: an object of the file.
        column: its name.

    Returns:
        The prompt as text (for a chat the contents of its messages, a line each), and the messages of a chat.

    Raises:
        BadRowError: neither of the two, an empty one, or a chat that ends with the assistant's turn.
    """
    value = take(row, column)
    if isinstance(value, str):
        return _checked(value, column, "prompt"), None
    messages = chat_of(value, column)
    if messages[-1]["role"] == "assistant":
        raise BadRowError(
            "the chat ends with the assistant's turn, which is to be generated", "remove that message", column=column
        )
    return _checked(joined(messages), column, "prompt"), messages


def chat_of(value: object, column: str) -> Messages:
    """Read chat messages, `{"role": ..., "content": ...}` each; whatever else a message holds is left out.

    Raises:
        BadRowError: no list, an empty one, or a message whose role or content is not text.
    """
    if not isinstance(value, (list, tuple)) or not value:
        raise BadRowError(
            f"a prompt must be text or a list of chat messages, not {kind(value)}", "rewrite it", column=column
        )
    for message in value:
        well_formed = isinstance(message, Mapping) and all(isinstance(message.get(key), str) for key in ("role", "content"))
        if not well_formed:
            raise BadRowError(
                f"a chat message must be an object whose 'role' and 'content' are text, not {shown(message)}",
                "rewrite it",
                column=column,
            )
    return tuple({"role": message["role"], "content": message["content"]} for message in value)


def joined(messages: Sequence[Mapping[str, str]]) -> str:
    """Write the contents of a chat one below the other.

    Example:
        >>> joined([{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1?"}])
        'Add.\\n1+1?'
    """
    return "\n".join(message["content"] for message in messages)


def after_hashes(solution: str, column: str) -> str:
    """Read the answer that GSM8K writes after `####`.

    Raises:
        BadRowError: there is none.

    Example:
        >>> after_hashes("48 + 24 = 72 clips.\\n#### 72", "answer")
        '72'
    """
    _, hashes, after = solution.rpartition("####")
    answer = after.strip()
    if not hashes or not answer:
        raise BadRowError("the solution states no answer after '####'", "write one, or remove the row", column=column)
    return answer


def last_boxed(solution: str, column: str) -> str:
    r"""Read the answer that MATH writes into its last `\boxed{...}` (or `\boxed 5`, or `\fbox{...}`).

    Raises:
        BadRowError: there is no box, or its braces do not balance.

    Example:
        >>> last_boxed(r"Thus $x = \boxed{\frac{1}{2}}$.", "solution"), last_boxed(r"It is $\boxed 5$.", "solution")
        ('\\frac{1}{2}', '5')
    """
    start = max(solution.rfind(rf"\{command}") for command in _BOX_COMMANDS)
    if start < 0:
        raise BadRowError(r"the solution has no \boxed{answer}", "add one, or remove the row", column=column)
    last = solution[start:]
    rest = last.removeprefix(r"\boxed").removeprefix(r"\fbox").lstrip()
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
