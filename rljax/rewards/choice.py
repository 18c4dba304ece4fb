"""Rewards for closed questions: yes or no, or one of several letters."""

import re
from collections.abc import Callable, Sequence

from rljax.errors import InputError
from rljax.rewards.correctness import verifier
from rljax.rewards.extract import LONGEST_READ, normalized, stated_answer

_YES_NO = {"yes": True, "no": False, "true": True, "false": False}
_IN_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\{([^{}\\]*)\}")
# A letter alone, in parentheses or not, or a letter set off from the text of its choice: "B", "(B)", "B) Paris", "B: Paris".
_LETTER = re.compile(r"(?:\(([A-Z])\)|([A-Z])(?=[).:]|$))(?!\w).*", re.IGNORECASE | re.DOTALL)


def read_yes_no(text: str) -> bool | None:
    """Read an answer that is only yes or no, or true or false.

    Args:
        text: an answer.

    Returns:
        True for yes, False for no, None for anything else.

    Example:
        >>> read_yes_no("**Yes.**"), read_yes_no("false"), read_yes_no("yes and no")
        (True, False, None)
    """
    return _YES_NO.get(_bare(text).casefold())


def read_letter(text: str) -> str | None:
    r"""Read the letter of a choice, with or without the text of the choice after it.

    Args:
        text: an answer.

    Returns:
        The letter in upper case; None if the answer is not a choice.

    Example:
        >>> read_letter("(b)"), read_letter("C: a dog"), read_letter(r"\text{(D)}"), read_letter("A dog")
        ('B', 'C', 'D', None)
    """
    found = _LETTER.fullmatch(_bare(text))
    return (found[1] or found[2]).upper() if found else None


@verifier
def yes_no(prompts: Sequence[str], completions: Sequence[str], answer: Sequence, **columns: Sequence) -> list[float | None]:
    """Give 1 for a completion that answers yes or no as the reference does, else 0 (StrategyQA).

    The answer is the one that the completion states (see `rljax.rewards.extract.stated_answer`), or the whole completion if it
    states none. Anything but a plain yes or no earns 0.

    Args:
        prompts: unused; every reward receives them.
        completions: the responses.
        answer: True or False, or one of the words yes, no, true and false; None or blank if there is no reference.
        columns: unused.

    Returns:
        1.0 or 0.0 for each completion; None without a reference.

    Raises:
        InputError: a reference is neither yes nor no.

    Example:
        >>> yes_no(["?"] * 4, ["So the answer is yes.", "No", "yes or no", "the answer is yes"], [True, "no", True, None])
        [1.0, 1.0, 0.0, None]
    """
    del prompts, columns
    return _judge(read_yes_no, "yes or no", completions, answer)


@verifier
def multiple_choice(
    prompts: Sequence[str], completions: Sequence[str], answer: Sequence, **columns: Sequence
) -> list[float | None]:
    r"""Give 1 for a completion that picks the letter of the reference, else 0.

    The answer is the one that the completion states (see `rljax.rewards.extract.stated_answer`), or the whole completion if it
    states none.

    Args:
        prompts: unused; every reward receives them.
        completions: the responses.
        answer: letters, such as "B" or "(B)"; None or blank if there is no reference.
        columns: unused.

    Returns:
        1.0 or 0.0 for each completion; None without a reference.

    Raises:
        InputError: a reference is not a letter.

    Example:
        >>> multiple_choice(["?"] * 3, [r"\boxed{\text{(B)}}", "The answer is B: Rome.", "A or B"], ["B"] * 3)
        [1.0, 1.0, 0.0]
    """
    del prompts, columns
    return _judge(read_letter, "the letter of a choice", completions, answer)


def _judge(
    read: Callable[[str], bool | str | None], expectation: str, completions: Sequence[str], answer: Sequence
) -> list[float | None]:
    rewards: list[float | None] = []
    for position, (completion, entry) in enumerate(zip(completions, answer, strict=True)):
        text = "" if entry is None else str(entry)
        expected = read(text)
        if text.strip() and expected is None:
            raise InputError(f"the reference answer {position} is {text[:80]!r}; it must be {expectation}.")
        stated = stated_answer(completion)
        actual = read(completion if stated is None else stated)
        rewards.append(None if expected is None else float(actual == expected))
    return rewards


def _bare(text: str) -> str:
    inside = _IN_TEXT.sub(r"\1", normalized(text[-LONGEST_READ:])).strip(' *"`')
    return inside.removesuffix(".").rstrip(' *"`')
