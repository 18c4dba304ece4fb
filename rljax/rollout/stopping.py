"""Stop strings: where the text of a response first has one.

A string may begin and end inside of tokens, so it is looked for in the decoded text and never among token ids. The response ends
with the token that completes it. No token is encoded again: the response is a prefix of what was drawn.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np
from jaxtyping import Int

CHECK_TOKENS = 32
"""Tokens of a row that are drawn between two looks at its text. As many more than needed are drawn at most, and thrown away."""

Decode = Callable[[Sequence[int]], str]
"""Token ids -> text. The text of more ids begins with that of fewer, but for replacement characters, which stand for a character
that is not complete. So a stop string that is there stays there; otherwise the end that is found need not be the first."""


def stop_end(tokens: Int[np.ndarray, "T"], stop: Collection[str], decode: Decode) -> int | None:
    """Number of tokens after which the text first has a stop string; None if it has none.

    Args:
        tokens: ids of a response.
        stop: the strings.
        decode: turns ids into text.

    Example:
        >>> from rljax.data.tokenizer import ByteTokenizer
        >>> bytes_ = ByteTokenizer()
        >>> stop_end(np.array(bytes_.encode("so </b> it is")), ["</b>", "is"], bytes_.decode)
        7
    """

    def is_found(count: int) -> bool:
        text = decode(tokens[:count].tolist())
        return any(string in text for string in stop)

    if not stop or not is_found(len(tokens)):
        return None
    low, high = 1, len(tokens)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_found(middle) else (middle + 1, high)
    return high


def may_have_stopped(tokens: Int[np.ndarray, "T"], stop: Collection[str], decode: Decode, *, new: int) -> bool:
    """True if a stop string may end within the last `new` tokens: a look at their text, and at that of a few tokens before.

    A token that decodes to nothing may lie inside of a string. Then the look may miss it, and `stop_end` finds it when the row has
    ended.
    """
    if not stop:
        return False
    longest = max(len(string.encode()) for string in stop)
    text = decode(tokens[max(0, len(tokens) - new - longest) :].tolist())
    return any(string in text for string in stop)
