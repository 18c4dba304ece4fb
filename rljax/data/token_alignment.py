"""Alignment of two tokenizations of a text, in spans that begin and end at the same characters."""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """Two ranges of tokens, one per tokenizer, that encode the same characters."""

    ours: tuple[int, int]
    """Token range of the first tokenizer: first index, and end index (exclusive)."""
    theirs: tuple[int, int]
    """Token range of the second tokenizer, in the same form."""


def token_ends(decode: Callable[[Sequence[int]], str], tokens: Sequence[int]) -> list[int | None]:
    """Compute the number of characters in the text up to the end of each token.

    Args:
        decode: a function that turns token ids into text.
        tokens: the token ids.

    Returns:
        One number per token; None if the token ends inside a character, or if later tokens change the text up to its end.

    Example:
        >>> token_ends(lambda ids: bytes(ids).decode(errors="replace"), list("né".encode()))
        [1, None, 2]
    """
    text = decode(tokens)
    prefixes = [decode(tokens[: count + 1]) for count in range(len(tokens))]
    return [len(prefix) if text.startswith(prefix) else None for prefix in prefixes]


def align(ours: Sequence[int | None], theirs: Sequence[int | None]) -> list[Span]:
    """Divide two tokenizations of the same text into the shortest spans that end at the same characters.

    Args:
        ours: for each token of the first tokenizer, the number of characters up to its end; see `token_ends`.
        theirs: the same for the second tokenizer.

    Returns:
        The spans, in order. Tokens after the last common end are in no span. A token without characters belongs to the span of
        the token before it.

    Example:
        >>> align([2, 3, 6], [1, 3, 4, 6])
        [Span(ours=(0, 2), theirs=(0, 2)), Span(ours=(2, 3), theirs=(2, 4))]

    Source:
        GOLD (TRL's `GOLDTrainer`), which aligns the tokens of student and teacher at the characters where both end a token.
    """
    our_last, their_last = (
        {end: index + 1 for index, end in enumerate(ends) if end is not None} for ends in (ours, theirs)
    )
    spans, begin = [], (0, 0)
    for end in sorted(our_last.keys() & their_last.keys() - {0}):
        after = our_last[end], their_last[end]
        if after[0] > begin[0] and after[1] > begin[1]:
            spans.append(Span((begin[0], after[0]), (begin[1], after[1])))
            begin = after
    return spans
