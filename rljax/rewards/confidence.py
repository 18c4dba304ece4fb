"""Calibration: a response states how sure it is, and the reward is highest if the confidence is calibrated."""

import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from rljax.errors import InputError
from rljax.rewards.calling import Progress, arguments_for, called_name
from rljax.rewards.correctness import Failed, is_verifier, lowest_right, verifier_like
from rljax.rewards.extract import LONGEST_READ
from rljax.rewards.protocol import Weighted

_MARKS = "*_`"
_STATEMENT = re.compile(
    rf"[\s;,]{{0,3}}(?:<confidence>([^<>]{{0,40}})</confidence>"
    rf"|[{_MARKS}]{{0,3}}(?<![a-z-])(?<![a-z]_)confidence[{_MARKS}]{{0,3}} ?[:=][{_MARKS}]{{0,3}}\s{{0,3}}[{_MARKS}]{{0,3}}"
    rf"([-+.%0-9][\w.,/%+-]*(?: ?[/%] ?[\w.,/%+-]*)?)[{_MARKS}]{{0,3}}[.,]?)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")


def stated_confidence(text: str) -> float | None:
    """Read the confidence that a response states: the last `confidence: 0.8` or `<confidence>0.8</confidence>` in it.

    Asterisks, underscores and backticks of Markdown may surround the word and the number. A number that continues, such as
    `1e-3`, `0,8` or `0.8/1`, states no confidence.

    Args:
        text: a response.

    Returns:
        A probability; None if no confidence is stated, or the last one is not a number from 0 to 1.

    Example:
        >>> stated_confidence("#12 Confidence: 0.8."), stated_confidence("<confidence> 1 </confidence> #12")
        (0.8, 1.0)
        >>> stated_confidence("confidence: 0.2, no, confidence: 80%"), stated_confidence("#12")
        (None, None)
        >>> stated_confidence("**Confidence:** 0.8"), stated_confidence("confidence: 0,8")
        (0.8, None)
    """
    found = deque(_STATEMENT.finditer(text[-LONGEST_READ:]), maxlen=1)
    if not found:
        return None
    tagged, plain = found[0].groups()
    written = (plain if tagged is None else tagged).strip().strip(_MARKS).strip()
    number = written.removesuffix(".").removesuffix(",").rstrip(_MARKS)
    confidence = float(number) if _NUMBER.fullmatch(number) else None
    return confidence if confidence is not None and confidence <= 1 else None


def without_confidence(text: str) -> str:
    """Remove every statement of a confidence, with the comma or semicolon before it, so that a verifier reads only the answer.

    Example:
        >>> without_confidence("7+5=12;#12, confidence: 0.8")
        '7+5=12;#12'
    """
    return _STATEMENT.sub("", text)


def brier(verifier: Callable) -> Weighted:
    """Make a reward: 1 for a right answer, minus the Brier score of the confidence that the response states.

    ::

        R = c - (q - c)²        c = 1 for a right answer, else 0

    For an answer that is right with probability p, the expected reward is highest at q = p, where it is p², so a more probable
    answer is still worth more. A response that states no confidence gets the worst Brier score, 1, whether its answer is right or
    wrong: leaving it out is never better than stating one.

    Args:
        verifier: decides c; it reads the response without the statement of the confidence, as text. It is called once for each of
            the two parts, and may be a coroutine function.

    Returns:
        One reward with two parts: the verifier under its own name, and `brier_score`, (q - c)², with the weight -1. Their means in
        the metrics are the accuracy and the Brier score.

    Raises:
        InputError: the reward is not a verifier; see `rljax.rewards.verifier`.

    Example:
        >>> from rljax.rewards import BY_NAME
        >>> reward = brier(BY_NAME["exact"])
        >>> completions = ["#2 confidence: 0.8", "#3 confidence: 0.8", "#2"]
        >>> [round(value, 3) for value in reward(["1+1="] * 3, completions, answer=["2"] * 3)]
        [0.96, -0.64, 0.0]

    Source:
        RLCR, Damani et al., arXiv:2507.16806: the reward, and why a bounded proper scoring rule keeps the best answer best. The
        rule for a missing confidence is ours; the paper asks for it in a format reward.
    """
    if not is_verifier(verifier):
        raise InputError(
            f"the Brier reward needs a verifier, which decides what is right, but {called_name(verifier)} is not one; name one, "
            "e.g. brier:exact, or mark yours with `rljax.rewards.verifier`."
        )
    name = called_name(verifier).rpartition(".")[2]

    def value(
        prompts: Sequence[str], completions: Sequence[str], progress: Progress | None = None, **columns: Sequence
    ) -> list[float | Failed | None] | Awaitable[list]:
        answers = [without_confidence(completion) for completion in completions]
        offered = {"prompts": prompts, "completions": answers, **columns, "progress": progress}
        return verifier(**arguments_for(verifier, offered))

    def brier_score(
        prompts: Sequence[str], completions: Sequence[str], progress: Progress | None = None, **columns: Sequence
    ) -> list[float | None] | Awaitable[list]:
        values = value(prompts, completions, progress, **columns)
        return awaited(completions, values) if isinstance(values, Awaitable) else errors(completions, values)

    async def awaited(completions: Sequence[str], values: Awaitable[list]) -> list[float | None]:
        return errors(completions, await values)

    def errors(completions: Sequence[str], values: list[float | Failed | None]) -> list[float | None]:
        pairs = zip(map(stated_confidence, completions), map(right, values), strict=True)
        return [None if c is None else 1.0 if q is None else (q - c) ** 2 for q, c in pairs]

    def right(value: float | Failed | None) -> float | None:
        if value is None or isinstance(value, Failed):
            return None
        limit = lowest_right(verifier)
        return float(value > 0 if limit is None else value >= limit)

    value.__qualname__ = f"without_confidence({name})"
    rewards = {name: verifier_like(value, verifier), "brier_score": brier_score}
    return Weighted(rewards, {name: 1.0, "brier_score": -1.0}, name="brier")
