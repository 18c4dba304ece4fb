"""A reward for final answers that equal the reference, as text or as decimal numbers."""

import re
from collections.abc import Sequence
from decimal import Decimal

from rljax.rewards.correctness import Unstated, reads, verifier
from rljax.rewards.extract import final_answer, normalize_answer

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)")


def same_answer(left: str, right: str) -> bool:
    """Compare two normalized answers as texts and as decimal numbers.

    Args:
        left: an answer as `final_answer` returns it.
        right: another answer.

    Returns:
        True for `21` and `21`, and for `18` and `18.00`. An answer that merely contains the other is not equal to it.

    Example:
        >>> same_answer("18", "18.00"), same_answer("2", "12")
        (True, False)
    """
    if _NUMBER.fullmatch(left) and _NUMBER.fullmatch(right):
        return Decimal(left) == Decimal(right)
    return left == right


@reads(r"the text after the last `#` of a response, to the end of its line, or the last `\boxed{...}`")
@verifier
def exact(prompts: Sequence[str], completions: Sequence[str], answer: Sequence, **columns: Sequence) -> list[float | None]:
    r"""Give 1 for a completion whose final answer equals the reference, else 0.

    Only the answer that the completion marks as final counts (see `final_answer`); the right number elsewhere in the completion
    earns nothing. Answers are compared as text and as decimal numbers, so `\frac{1}{2}` and `0.5` are different here.

    Args:
        prompts: unused; every reward receives them.
        completions: the responses, one per prompt.
        answer: the references: worked solutions that end with a final answer, or only the answer, as text or a number; None or
            blank if there is no reference.
        columns: unused; every reward receives them.

    Returns:
        1.0 or 0.0 for each completion; None if there is no reference.

    Example:
        >>> exact(["7+5="] * 3, ["7+5=12;#12", "#112", "12"], ["12"] * 3)
        [1.0, 0.0, 0.0]
    """
    del prompts, columns
    return [_score(completion, reference) for completion, reference in zip(completions, answer, strict=True)]


def _score(completion: str, reference: object) -> float | None:
    text = "" if reference is None else str(reference)
    if not text.strip():
        return None
    actual = final_answer(completion)
    if actual is None:
        return Unstated()
    expected = final_answer(text)
    return float(same_answer(actual, normalize_answer(text) if expected is None else expected))
