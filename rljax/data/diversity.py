"""Different texts among several: Jaccard similarity of their runs of three words."""

from collections.abc import Sequence

from rljax.data.duplicates import shingles_of


def similarity(left: str, right: str) -> float:
    """Jaccard similarity of two texts: the share of their runs of three words or signs that both have.

    ::

        J(a, b) = |S(a) ∩ S(b)| / |S(a) ∪ S(b)|

    Args:
        left: a text.
        right: another answer.

    Returns:
        A number from 0, nothing in common, to 1, the same runs.

    Example:
        >>> similarity("4+3=7;#7", "4+3=7;#7"), round(similarity("4+3=7;#7", "4+3=8;#8"), 2)
        (1.0, 0.2)
    """
    first, second = shingles_of(left), shingles_of(right)
    return len(first & second) / len(first | second)


def different(texts: Sequence[str], *, most: int, threshold: float | int) -> list[int]:
    """Take texts in their order, each unless it is too similar to one that was taken.

    Args:
        texts: the texts.
        most: number of texts to take at most.
        threshold: largest similarity of two taken texts, from 0 to 1; at 1 only equal texts are too similar.

    Returns:
        Places of the texts that were taken.

    Raises:
        ValueError: `most` is below 1, or the threshold is out of its range.

    Example:
        >>> different(["4+3=7;#7", "4+3=7;#7", "3+4=7;#7"], most=2, threshold=0.8)
        [0, 2]
    """
    if most < 1:
        raise ValueError(f"most must be at least 1, got {most}")
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold must be from 0 to 1, got {threshold}")
    taken: list[int] = []
    for place, text in enumerate(texts):
        if len(taken) == most:
            break
        if all(text != texts[other] and similarity(text, texts[other]) <= threshold for other in taken):
            taken.append(place)
    return taken
