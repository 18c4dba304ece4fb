r"""Majority voting: read the answer for which each response votes.

The problem's reference answer is not used. Two answers are the same if they differ only in what
`rljax.rewards.math.simplify_answer` rewrites (spacing, sizes of brackets, Unicode) and in redundant zeros. `\frac{1}{2}` and `0.5`
are two different answers here, even for a reward that accepts both.
"""

import re
from collections.abc import Callable
from decimal import Decimal
from types import MappingProxyType

from rljax.rewards.choice import read_letter, read_response, read_yes_no
from rljax.rewards.confidence import remove_confidence
from rljax.rewards.extract import final_answer, stated_answer, stated_answer_or_last_number
from rljax.rewards.math import simplify_answer

_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})")


def canonical_form(answer: str) -> str:
    r"""Write an answer in a canonical form, so that equal answers are equal strings.

    Args:
        answer: an answer.

    Returns:
        The answer as `simplify_answer` writes it. From a decimal number, redundant zeros and a plus sign are removed as well.

    Example:
        >>> [canonical_form(answer) for answer in ("18.00", "+018", "-0", r"\left( 1,\, 2 \right)", "x + 1")]
        ['18', '18', '0', '(1,2)', 'x+1']
    """
    simplified = simplify_answer(answer)
    if not _NUMBER.fullmatch(simplified):
        return simplified
    sign = "-" if simplified.startswith("-") and Decimal(simplified) else ""
    integer, _, fraction = simplified.lstrip("+-").partition(".")
    integer, fraction = integer.lstrip("0"), fraction.rstrip("0")
    return f"{sign}{integer if integer else '0'}{'.' if fraction else ''}{fraction}"


def vote(text: str) -> str | None:
    """Return a response's answer in canonical form; for rewards that are not in `VOTE_READERS`.

    Args:
        text: a response.

    Returns:
        The result of `stated_answer`, or if that is None, the result of `final_answer`, which also reads the text after a single
        `#`.

    Example:
        >>> vote("so it is #18.0"), vote("The answer is 18."), vote("18")
        ('18', '18', None)
    """
    stated = stated_answer(text)
    answer = final_answer(text) if stated is None else stated
    return None if answer is None else canonical_form(answer)


def _make_vote_reader(read: Callable[[str], str | None]) -> Callable[[str], str | None]:
    def read_vote(text: str) -> str | None:
        answer = read(text)
        return None if answer is None else canonical_form(answer)

    return read_vote


def vote_yes_no(text: str) -> str | None:
    """Read a response's yes or no as the reward `yes_no` does.

    Example:
        >>> vote_yes_no("So the answer is true."), vote_yes_no("No"), vote_yes_no("yes and no")
        ('yes', 'no', None)
    """
    answer = read_response(read_yes_no, text)
    return None if answer is None else ("no", "yes")[answer]


def vote_letter(text: str) -> str | None:
    """Read a response's choice as the reward `multiple_choice` does.

    Example:
        >>> vote_letter("The answer is (b)."), vote_letter("C"), vote_letter("A or B")
        ('B', 'C', None)
    """
    return read_response(read_letter, text)


def _read_no_vote(text: str) -> None:
    """Return None: programs do not vote, because no two programs count as the same answer."""
    del text


VOTE_READERS = MappingProxyType(
    {
        "exact": _make_vote_reader(final_answer),
        "math": _make_vote_reader(stated_answer),
        "math_or_last_number": _make_vote_reader(stated_answer_or_last_number),
        "gsm8k": _make_vote_reader(stated_answer),
        "aime": _make_vote_reader(stated_answer),
        "yes_no": vote_yes_no,
        "multiple_choice": vote_letter,
        "code": _read_no_vote,
        "code_fraction": _read_no_vote,
    }
)
"""Name of a reward -> the function that reads votes from the responses judged by this reward. All other rewards use `vote`."""


def vote_reader(reward: str) -> Callable[[str], str | None]:
    """Find the function that reads the votes of the responses that a reward judges.

    Args:
        reward: the reward's name, as `rljax.rewards.resolve` accepts it, or several names separated by commas; for several names,
            `vote` reads the answers. If a name begins with `brier:`, stated confidences are removed before the answer is read.

    Returns:
        A function from a response to its answer in canonical form, or to None if the response has no answer.

    Example:
        >>> vote_reader("exact")("7+5=12;#12"), vote_reader("code")("return 12"), vote_reader("mine.py:judge")("12")
        ('12', None, None)
        >>> vote_reader("brier:exact")("#12 confidence: 0.8")
        '12'
        >>> vote_reader("count_bonus:0.1,brier:math")("The answer is 12, confidence: 0.8")
        '12'
    """
    names = reward.split(",")
    read = VOTE_READERS.get(",".join(name.strip().removeprefix("brier:") for name in names), vote)
    states_confidence = any(name.strip().startswith("brier:") for name in names)
    return (lambda text: read(remove_confidence(text))) if states_confidence else read
