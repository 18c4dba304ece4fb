"""Tokens of two tokenizers for the same text, in spans that begin and end at the same character."""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """Tokens of two tokenizers for the same characters; the ends are exclusive."""

    ours: tuple[int, int]
    """First and last token of the one tokenizer."""
    theirs: tuple[int, int]
    """First and last token of the other."""


def token_ends(decode: Callable[[Sequence[int]], str], tokens: Sequence[int]) -> list[int | None]:
    """Find the number of characters of the text up to the end of each token.

    Args:
        decode: turns token ids into text.
        tokens: the token ids.

    Returns:
        One number per token; None where a token ends inside a character, or changes the text before it.

    Example:
        >>> token_ends(lambda ids: bytes(ids).decode(errors="replace"), list("né".encode()))
        [1, None, 2]
    """
    text = decode(tokens)
    prefixes = [decode(tokens[: count + 1]) for count in range(len(tokens))]
    return [len(prefix) if text.startswith(prefix) else None for prefix in prefixes]


def align(ours: Sequence[int | None], theirs: Sequence[int | None]) -> list[Span]:
    """Divide two sequences of tokens for the same text into the shortest spans that end at the same character.

    Args:
        ours: for each token of the one tokenizer the number of characters up to its end, see `token_ends`.
        theirs: the same for the other tokenizer.

    Returns:
        The spans, in order. Tokens after the last common end are in none. A token without characters belongs to the span of the
        token before it.

    Example:
        >>> align([2, 3, 6], [1, 3, 4, 6])
        [Span(ours=(0, 2), theirs=(0, 2)), Span(ours=(2, 3), theirs=(2, 4))]

    Source:
        GOLD (TRL's `GOLDTrainer`), which aligns the tokens of student and teacher where both tokenizers end a token.
    """
    our_last, their_last = (
        {end: place + 1 for place, end in enumerate(ends) if end is not None} for ends in (ours, theirs)
    )
    spans, begin = [], (0, 0)
    for end in sorted(our_last.keys() & their_last.keys() - {0}):
        after = our_last[end], their_last[end]
        if after[0] > begin[0] and after[1] > begin[1]:
            spans.append(Span((begin[0], after[0]), (begin[1], after[1])))
            begin = after
    return spans
