"""The `Problem` record, which all tasks and datasets share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rljax.errors import InputError


@dataclass(frozen=True)
class Problem:
    """A question whose answer can be checked.

    Args:
        prompt: the question as text; for a chat, the contents of its messages joined by newlines.
        answer: the reference answer, with which a reward compares a completion.
        demonstration: a worked response to imitate in supervised training, if there is one.
        columns: all other data about the question; a reward receives each column by its name.
        messages: the question as a chat, `{"role": ..., "content": ...}` each; None for plain text. The chat template also reads
            the columns `tools` and `chat_template_kwargs`.
        turns: the worked response as messages, if it has several messages, tool calls or reasoning; otherwise None.
    """

    prompt: str
    answer: str
    demonstration: str | None = None
    columns: Mapping[str, object] = field(default_factory=dict)
    messages: tuple[Mapping[str, Any], ...] | None = None
    turns: tuple[Mapping[str, Any], ...] | None = None


class TokenizedRow(NamedTuple):
    """A prompt and a worked response that are already tokenized."""

    prompt: tuple[int, ...]
    """Token ids of the prompt, with all special tokens."""
    response: tuple[int, ...]
    """Token ids of the response, the end token included."""
    mask: tuple[bool, ...]
    """Which tokens of the response are trained on."""


NO_TOKENS = TokenizedRow((), (), ())


@dataclass(frozen=True)
class TokenizedProblem(Problem):
    """A tokenized problem for supervised training. Its `prompt` and `demonstration` contain the token ids as text.

    Args:
        tokens: the ids, which training uses unchanged.
    """

    tokens: TokenizedRow = NO_TOKENS


def reward_columns(problems: Sequence[Problem]) -> dict[str, list]:
    """Turn problems into the columns that a reward receives: one list per column, one entry per problem.

    Args:
        problems: the problems that the completions answer, repeated if several completions answer the same one.

    Returns:
        `answer` and every extra column that at least one problem has. An entry is None if its problem lacks the column.

    Raises:
        InputError: an extra column is called `answer`.

    Example:
        >>> reward_columns([Problem("1+1=", "2"), Problem("7+5=", "12", columns={"digits": 1})])
        {'answer': ['2', '12'], 'digits': [None, 1]}
    """
    names = dict.fromkeys(name for problem in problems for name in problem.columns)
    if "answer" in names:
        raise InputError(
            "a problem has an extra column called 'answer', but rewards receive Problem.answer under that name; rename the column."
        )
    extra = {name: [problem.columns.get(name) for problem in problems] for name in names}
    return {"answer": [problem.answer for problem in problems], **extra}


def chats_of(problems: Sequence[Problem]) -> dict[str, tuple[Mapping[str, Any], ...]]:
    """Map each chat prompt's text to its messages; plain prompts are left out."""
    return {problem.prompt: problem.messages for problem in problems if problem.messages is not None}
