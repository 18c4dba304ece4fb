"""The record that every task and every dataset is turned into."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rljax.errors import InputError


@dataclass(frozen=True)
class Problem:
    """A question whose answer can be checked.

    Args:
        prompt: the question as text; for a chat, the contents of its messages joined by newlines.
        answer: what a reward compares a completion with.
        demonstration: a worked response to imitate in supervised training, if there is one.
        columns: whatever else the data says about the question; a reward may ask for each by its name.
        messages: the chat the question was given as, `{"role": ..., "content": ...}` each; None for plain text.
    """

    prompt: str
    answer: str
    demonstration: str | None = None
    columns: Mapping[str, object] = field(default_factory=dict)
    messages: tuple[Mapping[str, str], ...] | None = None


def reward_columns(problems: Sequence[Problem]) -> dict[str, list]:
    """Turn problems into the columns that a reward receives: one list a column, one entry a problem.

    Args:
        problems: the questions that the completions answer, repeated where several completions answer one.

    Returns:
        `answer` and every extra column that at least one problem has; None where a problem lacks it.

    Raises:
        InputError: an extra column is itself called `answer`.

    Example:
        >>> reward_columns([Problem("1+1=", "2"), Problem("7+5=", "12", columns={"digits": 1})])
        {'answer': ['2', '12'], 'digits': [None, 1]}
    """
    names = dict.fromkeys(name for problem in problems for name in problem.columns)
    if "answer" in names:
        raise InputError(
            "a problem has an extra column called 'answer', the name under which rewards receive Problem.answer; rename it."
        )
    extra = {name: [problem.columns.get(name) for problem in problems] for name in names}
    return {"answer": [problem.answer for problem in problems], **extra}
