"""A calibration reward: responses state a confidence, and the expected reward is highest if the confidence is calibrated."""

import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from rljax.errors import InputError
from rljax.rewards.correctness import Failed, is_verifier, lowest_correct_value, mark_like
from rljax.rewards.extract import LONGEST_READ
from rljax.rewards.reward_call import Progress, qualified_name, select_arguments, short_name
from rljax.rewards.reward_scores import Weighted

_MARKS = "*_`"
_STATEMENT = re.compile(
    rf"[\s;,]{{0,3}}(?:<confidence>([^<>]{{0,40}})</confidence>"
    rf"|[{_MARKS}]{{0,3}}(?<![a-z-])(?<![a-z]_)confidence[{_MARKS}]{{0,3}} ?[:=][{_MARKS}]{{0,3}}\s{{0,3}}[{_MARKS}]{{0,3}}"
    rf"([-+.%0-9][\w.,/%+-]*(?: ?[/%] ?[\w.,/%+-]*)?)[{_MARKS}]{{0,3}}[.,]?)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")


def read_confidence(text: str) -> float | None:
    """Read the confidence that a response states: the last `confidence: 0.8` or `<confidence>0.8</confidence>` in it.

    Markdown's asterisks, underscores and backticks may surround the word and the number. A number with something attached to it, as
    in `1e-3`, `0,8` or `0.8/1`, is not accepted as a confidence.

    Args:
        text: a response.

    Returns:
        A probability; None if no confidence is stated, or the last one is not a number from 0 to 1.

    Example:
        >>> read_confidence("#12 Confidence: 0.8."), read_confidence("<confidence> 1 </confidence> #12")
        (0.8, 1.0)
        >>> read_confidence("confidence: 0.2, no, confidence: 80%"), read_confidence("#12")
        (None, None)
        >>> read_confidence("**Confidence:** 0.8"), read_confidence("confidence: 0,8")
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


def remove_confidence(text: str) -> str:
    """Remove every stated confidence and the comma or semicolon before it, so that a verifier reads only the answer.

    Example:
        >>> remove_confidence("7+5=12;#12, confidence: 0.8")
        '7+5=12;#12'
    """
    return _STATEMENT.sub("", text)


def brier(verifier: Callable) -> Weighted:
    """Make a reward: 1 for a right answer, minus the Brier score of the confidence that the response states.

    ::

        R = c - (q - c)²        c = 1 for a right answer, else 0

    For an answer that is right with probability p, the expected reward is highest, p², when the stated confidence q equals p. So an
    answer that is more likely to be right still earns more. A response that states no confidence gets the worst Brier score, 1,
    whether its answer is right or wrong, so that omitting the confidence is never better than stating it.

    Args:
        verifier: the reward that decides c. It receives the responses as text, without the stated confidence. It is called twice,
            once for each part of the reward, and may be a coroutine function.

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
        RLCR, Damani et al., arXiv:2507.16806: the reward, and the reason why the answer that is most likely to be right still earns
        the most under a bounded proper scoring rule. The rule for a missing confidence is ours; the paper uses a format reward.
    """
    if not is_verifier(verifier):
        raise InputError(
            f"the Brier reward needs a verifier, which decides what is right, but {qualified_name(verifier)} is not one; name one, "
            "e.g. brier:exact, or mark yours with `rljax.rewards.verifier`."
        )
    name = short_name(verifier)

    def verify(
        prompts: Sequence[str], completions: Sequence[str], progress: Progress | None = None, **columns: Sequence
    ) -> list[float | Failed | None] | Awaitable[list]:
        answers = [remove_confidence(completion) for completion in completions]
        offered = {"prompts": prompts, "completions": answers, **columns, "progress": progress}
        return verifier(**select_arguments(verifier, offered))

    def brier_score(
        prompts: Sequence[str], completions: Sequence[str], progress: Progress | None = None, **columns: Sequence
    ) -> list[float | None] | Awaitable[list]:
        values = verify(prompts, completions, progress, **columns)
        return await_scores(completions, values) if isinstance(values, Awaitable) else compute_scores(completions, values)

    async def await_scores(completions: Sequence[str], values: Awaitable[list]) -> list[float | None]:
        return compute_scores(completions, await values)

    def compute_scores(completions: Sequence[str], values: list[float | Failed | None]) -> list[float | None]:
        pairs = zip(map(read_confidence, completions), map(as_correctness, values), strict=True)
        return [None if c is None else 1.0 if q is None else (q - c) ** 2 for q, c in pairs]

    def as_correctness(value: float | Failed | None) -> float | None:
        if value is None or isinstance(value, Failed):
            return None
        limit = lowest_correct_value(verifier)
        return float(value > 0 if limit is None else value >= limit)

    verify.__qualname__ = f"without_confidence({name})"
    rewards = {name: mark_like(verify, verifier), "brier_score": brier_score}
    return Weighted(rewards, {name: 1.0, "brier_score": -1.0}, name="brier")
