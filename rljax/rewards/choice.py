"""Rewards for closed questions: yes or no, or one of several letters."""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from rljax.errors import InputError
from rljax.rewards.correctness import Unstated, reads, verifier
from rljax.rewards.extract import LONGEST_READ, skip_reasoning, stated_text

Answer = TypeVar("Answer")
_YES_NO = {"yes": True, "no": False, "true": True, "false": False}
_IN_TEXT = re.compile(r"\\(?:text(?:bf|rm|it)?|math(?:rm|bf|sf|it)|mbox)\{([^{}\\]*)\}")
_MARKS = re.compile(r'[*_"`$“”]|\\[()\[\]]')
_IS_RIGHT = re.compile(
    r"\(?([A-Z])\)? is (?:the )?(?:correct|right|best)(?: (?:answer|option|choice|one))?[.!]*", re.IGNORECASE
)
_LEAD = re.compile(
    r"(?:(?:so|thus|therefore|hence),? )?(?:i (?:would )?(?:choose|pick|select|say) )?(?:the )?(?:(?:correct|right|best|final) )?"
    r"(?:(?:answer|option|choice)(?: is|:)? )?(?:option |choice )?",
    re.IGNORECASE,
)
_WORD = re.compile(r"(yes|no|true|false)\b", re.IGNORECASE)
# A letter, alone or in parentheses, or with punctuation between it and the text of its choice: "B", "(B)", "B) Paris", "B: Paris".
_LETTER = re.compile(r"\(([A-Z])\)(?!\w)|([A-Z])(?=[).:,;\n]|$| (?:because|since|as)\b)\)?", re.IGNORECASE)
# Matches what follows an answer if that is a reason, or the text of the choice.
_REASON = re.compile(r"\)*(?:$|[.,:;!\n]| (?:because|since|as)\b)", re.IGNORECASE)
# Matches a letter that may name a choice, but not the words "a" and "I" in front of another word.
_OTHER_LETTER = r"\(?(?!(?:a|I)(?:['’]| (?!(?:and|or|are|is|was|because|since|as)\b)\w))[A-Z]\)?(?!\w)"
# These match what follows an answer if that retracts the answer or states another one.
_RETRACTION = (
    r"\W*(?:or|and|but|nor|is|isn't|are|was)\b|\s*(?-i:not|cannot|can't)\b"
    r"|.{0,1000}?(?:\b(?:or|and|but)(?: \w+)? (?:yes|no|true|false)\b"
    r"|\b(?:right|correct|best|true|actual) (?:one|answer|option|choice)|\b(?:wait|actually)\b"
)
_RETRACTED_WORD = re.compile(rf"{_RETRACTION})|\W*(?:yes|no|true|false)\b", re.IGNORECASE | re.DOTALL)
_RETRACTED_LETTER = re.compile(
    rf"{_RETRACTION}|\bor {_OTHER_LETTER})|\W*no[,;] (?!(?:because|since|as)\b)|[/&,] ?{_OTHER_LETTER}",
    re.IGNORECASE | re.DOTALL,
)
_LONGEST_CHOICE = 2_000


def _find_lead_end(text: str) -> int:
    """Return the position at which the introductory words before an answer end."""
    lead = _LEAD.match(text)
    return 0 if lead is None else lead.end()


def read_yes_no(text: str) -> bool | None:
    """Read an answer that is only yes, no, true or false, with or without a reason after it.

    Args:
        text: an answer.

    Returns:
        True for yes or true, False for no or false, None for anything else.

    Example:
        >>> read_yes_no("**Yes.**"), read_yes_no("false, because it rains"), read_yes_no("yes and no"), read_yes_no("Yes, but no")
        (True, False, None, None)
    """
    bare = _strip_marks(text)
    found = _WORD.match(bare, _find_lead_end(bare))
    if found is None or not _REASON.match(bare, found.end()) or _RETRACTED_WORD.match(bare[found.end() :]):
        return None
    return _YES_NO[found[1].casefold()]


def read_letter(text: str) -> str | None:
    r"""Read the letter of a choice, with or without the choice's text or a reason after it.

    Args:
        text: an answer.

    Returns:
        The letter in upper case; None if the answer is not a choice, or names several.

    Example:
        >>> read_letter("(b)"), read_letter("C: a dog"), read_letter(r"\text{(D)}"), read_letter("A dog")
        ('B', 'C', 'D', None)
        >>> read_letter("The correct option is B"), read_letter("(B) or (A)"), read_letter("B. is wrong; it is C.")
        ('B', None, None)
    """
    bare = _strip_marks(text)
    if found := _IS_RIGHT.fullmatch(bare, _find_lead_end(bare)):
        return found[1].upper()
    found = _LETTER.match(bare, _find_lead_end(bare))
    if found is None or _RETRACTED_LETTER.match(bare[found.end() :]):
        return None
    return (found[1] or found[2]).upper()


@reads("yes, no, true or false: the answer that a response states, else its first word, with or without a reason after it")
@verifier
def yes_no(prompts: Sequence[str], completions: Sequence[str], answer: Sequence, **columns: Sequence) -> list[float | None]:
    """Give 1 for a completion whose yes or no agrees with the reference, else 0 (StrategyQA).

    The answer is the one that the completion states (see `rljax.rewards.extract.stated_text`), or the complete response if it
    states none. An answer other than yes or no earns 0.

    Args:
        prompts: unused; every reward receives them.
        completions: the responses.
        answer: True or False, or one of the words yes, no, true and false; None or blank if there is no reference.
        columns: unused.

    Returns:
        1.0 or 0.0 for each completion; None if there is no reference.

    Raises:
        InputError: a reference is neither yes nor no.

    Example:
        >>> yes_no(["?"] * 4, ["So the answer is yes.", "No", "yes or no", "the answer is yes"], [True, "no", True, None])
        [1.0, 1.0, 0.0, None]
    """
    del prompts, columns
    return _score_answers(read_yes_no, "yes or no", completions, answer)


@reads("the letter of a choice, such as `B`, `(B)` or `B: Rome`: the answer that a response states, else its beginning")
@verifier
def multiple_choice(
    prompts: Sequence[str], completions: Sequence[str], answer: Sequence, **columns: Sequence
) -> list[float | None]:
    r"""Give 1 for a completion that picks the letter of the reference, else 0.

    The answer is the one that the completion states (see `rljax.rewards.extract.stated_text`), or the complete response if it
    states none.

    Args:
        prompts: unused; every reward receives them.
        completions: the responses.
        answer: letters, such as "B" or "(B)"; None or blank if there is no reference.
        columns: unused.

    Returns:
        1.0 or 0.0 for each completion; None if there is no reference.

    Raises:
        InputError: a reference is not a letter.

    Example:
        >>> multiple_choice(["?"] * 3, [r"\boxed{\text{(B)}}", "The answer is B: Rome.", "A or B"], ["B"] * 3)
        [1.0, 1.0, 0.0]
    """
    del prompts, columns
    return _score_answers(read_letter, "the letter of a choice", completions, answer)


def _score_answers(
    read: Callable[[str], bool | str | None], expectation: str, completions: Sequence[str], answer: Sequence
) -> list[float | None]:
    rewards: list[float | None] = []
    for position, (completion, entry) in enumerate(zip(completions, answer, strict=True)):
        text = "" if entry is None else str(entry)
        expected = read(text)
        if text.strip() and expected is None:
            raise InputError(f"the reference answer {position} is {text[:80]!r}; it must be {expectation}.")
        actual = read_response(read, completion)
        right = Unstated() if actual is None else float(actual == expected)
        rewards.append(None if expected is None else right)
    return rewards


def read_response(read: Callable[[str], Answer | None], text: str) -> Answer | None:
    """Read the answer that a response states, else the answer at its beginning.

    The reasoning before `</think>` is searched only if the text after it has neither.

    Args:
        read: reads a short answer, such as `read_letter`.
        text: a response.

    Returns:
        The answer; None if there is none, or more than one.

    Example:
        >>> read_response(read_letter, "<think>The answer is A.</think>B: Rome"), read_response(read_letter, "So the answer is C.")
        ('B', 'C')
    """
    rest, stated = skip_reasoning(text[-LONGEST_READ:]), stated_text(text)
    if stated_text(rest) is None and (actual := read(rest)) is not None:
        return actual
    return None if stated is None else read(stated)


def _strip_marks(text: str) -> str:
    """Remove what may mark up a short answer or its letter: asterisks, quotes, delimiters of mathematics, and text commands."""
    end = text[-LONGEST_READ:].strip(' \n\t*"`$')[:_LONGEST_CHOICE]
    return _MARKS.sub("", _IN_TEXT.sub(r"\1", end)).strip()
