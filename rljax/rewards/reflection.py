"""Count how often a response checks or reconsiders its own text."""

import re
from collections.abc import Sequence

from rljax.rewards.correctness import reads

_PHRASES = (
    *(r"wait", r"hmm+", r"hold on", r"on second thought", r"actually,", r"alternatively,"),
    *(r"let(?:[\u2019']?s| me| us) (?:double[- ]?check|re-?check|check|verify|re-?examine|reconsider|rethink|try again)",),
    *(r"double[- ]?check(?:ing)?", r"re-?check(?:ing)?", r"to (?:check|verify) (?:this|that|the|my)"),
    *(r"i(?: have|['\u2019]ve)? made an? (?:error|mistake)", r"that[\u2019']?s (?:not right|wrong)"),
)
_PATTERN = re.compile(rf"\b(?:{'|'.join(_PHRASES)})(?!\w)", re.IGNORECASE)


@reads('phrases such as "wait" and "let me check"')
def reflection(completions: Sequence[str], **columns: Sequence) -> list[float]:
    """Count phrases such as "wait", "let me check" and "I made a mistake" in each response.

    The count is a metric, not a goal, so give it the weight 0, as in `--reward math,reflection --reward-weights 1 0`. The curve
    `reward_reflection` then shows whether self-checking becomes more frequent while the accuracy rises.

    Args:
        completions: the responses.
        columns: other columns of the data, which are ignored.

    Returns:
        The number of such phrases in each response. Overlapping phrases count once.

    Example:
        >>> reflection(["3 + 4 is 8. Wait, let me double-check: it is 7.", "7"])
        [2.0, 0.0]
    """
    del columns
    return [float(len(_PATTERN.findall(completion))) for completion in completions]
