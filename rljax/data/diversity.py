"""Diversity of texts: selection by the Jaccard similarity of three-word runs, and distinct-n."""

import math
from collections.abc import Sequence

from rljax.text import shingles_of, words_of


def similarity(left: str, right: str) -> float:
    """Jaccard similarity of two texts: the fraction of their runs of three words or punctuation marks that occur in both.

    ::

        J(a, b) = |S(a) ∩ S(b)| / |S(a) ∪ S(b)|

    Args:
        left: a text.
        right: another text.

    Returns:
        A number from 0 (nothing in common) to 1 (the same runs).

    Example:
        >>> similarity("4+3=7;#7", "4+3=7;#7"), round(similarity("4+3=7;#7", "4+3=8;#8"), 2)
        (1.0, 0.2)
    """
    first, second = shingles_of(left), shingles_of(right)
    return len(first & second) / len(first | second)


def distinct_share(texts: Sequence[str], *, n: int = 2) -> float:
    """Distinct-n: the number of distinct runs of n words or punctuation marks in several texts, divided by the number of runs.

    ::

        distinct-n = |∪_i grams_n(y_i)| / Σ_i |grams_n(y_i)|

    Args:
        texts: the texts, such as the responses to one prompt.
        n: length of a run, at least 1.

    Returns:
        A number from 0 to 1; NaN if no text has n words.

    Raises:
        ValueError: `n` is below 1.

    Example:
        >>> distinct_share(["1 + 2 is 3", "1 + 2 is 3"]), distinct_share(["a b", "c d"])
        (0.5, 1.0)

    Source:
        Li et al., arXiv:1510.03055, Section 5.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    runs = [tuple(words[i : i + n]) for words in map(words_of, texts) for i in range(len(words) - n + 1)]
    return len(set(runs)) / len(runs) if runs else math.nan


def choose_different(texts: Sequence[str], *, most: int, threshold: float | int) -> list[int]:
    """Choose texts in order, skipping each text that is too similar to one already chosen.

    Args:
        texts: the texts.
        most: maximum number of texts to choose.
        threshold: largest similarity of two chosen texts, from 0 to 1; at 1 only equal texts are too similar.

    Returns:
        Indices of the chosen texts.

    Raises:
        ValueError: `most` is below 1, or the threshold is out of range.

    Example:
        >>> choose_different(["4+3=7;#7", "4+3=7;#7", "3+4=7;#7"], most=2, threshold=0.8)
        [0, 2]
    """
    if most < 1:
        raise ValueError(f"most must be at least 1, got {most}")
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold must be from 0 to 1, got {threshold}")
    taken: list[int] = []
    for index, text in enumerate(texts):
        if len(taken) == most:
            break
        if all(text != texts[other] and similarity(text, texts[other]) <= threshold for other in taken):
            taken.append(index)
    return taken
