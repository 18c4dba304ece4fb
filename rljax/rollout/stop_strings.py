"""Stop strings: find the first token after which the text of a response contains one of them.

A stop string may begin and end inside a token, so the decoded text is searched, and never the token ids. The response ends
with the token that completes the string. The text is not tokenized again, so the response is a prefix of the sampled tokens.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence

import numpy as np
from jaxtyping import Int

TOKENS_BETWEEN_CHECKS = 32
"""Number of tokens sampled per row between two checks for stop strings. Tokens sampled after a stop string are discarded."""

Decode = Callable[[Sequence[int]], str]
"""Function from token ids to text. Adding ids must only append to the text, except that the replacement characters of an
incomplete character may change. Otherwise a stop string might vanish again, and `stop_end` might miss its first occurrence."""


def stop_end(tokens: Int[np.ndarray, "T"], stop: Collection[str], decode: Decode) -> int | None:
    """Return the number of tokens after which the text first contains a stop string; None if it never does.

    Args:
        tokens: token ids of a response.
        stop: the stop strings.
        decode: function that turns token ids into text.

    Example:
        >>> from rljax.data.tokenizer import ByteTokenizer
        >>> tokenizer = ByteTokenizer()
        >>> stop_end(np.array(tokenizer.encode("so </b> it is")), ["</b>", "is"], tokenizer.decode)
        7
    """

    def is_found(count: int) -> bool:
        text = decode(tokens[:count].tolist())
        return any(string in text for string in stop)

    if not stop or not is_found(len(tokens)):
        return None
    return 1 + bisect_left(range(1, len(tokens)), True, key=is_found)


def may_have_stopped(tokens: Int[np.ndarray, "T"], stop: Collection[str], decode: Decode, *, new: int) -> bool:
    """Return True if a stop string seems to end within the last `new` tokens. Only these and a few tokens before them are decoded.

    The check may miss a stop string among tokens that decode to no text. `stop_end` finds such a string once the row has ended.
    """
    if not stop:
        return False
    longest = max(len(string.encode()) for string in stop)
    text = decode(tokens[max(0, len(tokens) - new - longest) :].tolist())
    return any(string in text for string in stop)
