"""Near-duplicate texts, found by exact set similarity of shingles. Unlike MinHash, this never misses a pair by chance.

A text is represented by its shingles, the set of its three-word runs. Shingles are sorted by frequency, rarest first. If the
Jaccard similarity of two sets is at least t, their prefixes have at least one shingle in common; the prefix of a set of n shingles
has `n - ceil(t n) + 1` of them. So candidates are found by their prefixes alone, and only candidates are compared in full.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from rljax.text import shingles_of

BOILERPLATE_SHARE = 0.1
BOILERPLATE_TEXTS = 10  # a shingle that occurs in at most this many texts is never boilerplate
SHORT_TEXT = 10  # a held-out text with fewer shingles may occur inside an unrelated text by chance

Shingles = tuple[int, ...]
"""The ranks of a text's shingles, rarest first."""


def shingle_ranks(texts: Sequence[str]) -> list[Shingles]:
    """Turn texts into sets of shingles that can be compared.

    A shingle in more than a tenth of all texts (and in at least 11) is boilerplate, such as an instruction that wraps every
    question. Boilerplate is ignored: two questions are not similar merely because they share it.

    Args:
        texts: all texts that will be compared with each other.

    Returns:
        The shingles of each text, as ranks in one common order: rarest first, ties in alphabetical order.

    Example:
        >>> shingle_ranks(["a b c d", "b c d"])
        [(0, 1), (1,)]
    """
    split = [shingles_of(text) for text in texts]
    counts = Counter(shingle for shingles in split for shingle in shingles)
    order = sorted(counts, key=lambda shingle: (counts[shingle], shingle))
    rank = {shingle: position for position, shingle in enumerate(order)}
    limit = max(BOILERPLATE_TEXTS, BOILERPLATE_SHARE * len(texts))
    rare_sets = [{shingle for shingle in shingles if counts[shingle] <= limit} for shingles in split]
    # A text that is nothing but boilerplate keeps all of its shingles.
    return [
        tuple(sorted(rank[shingle] for shingle in (rare if rare else shingles)))
        for rare, shingles in zip(rare_sets, split, strict=True)
    ]


def near_duplicates(texts: Sequence[str], labels: Sequence[str], *, threshold: float | int) -> list[int | None]:
    """Find the texts that nearly repeat an earlier one with the same label.

    Two problems that differ only in a number look alike but have different answers, so the answer is a useful label.

    Args:
        texts: the texts; the first of several near-duplicates is kept.
        labels: one per text; only texts with equal labels are compared.
        threshold: the minimum Jaccard similarity t of near-duplicates, in (0, 1].

    Returns:
        For each text, the index of the first kept text that it repeats, or None if the text itself is kept.

    Raises:
        ValueError: the threshold is out of range, or there is not one label per text.

    Example:
        >>> texts = ["Tom has 3 red pens and 2 blue pens .", "Tom has 3 red pens and 2 blue pens !", "Ann has 3 red pens ."]
        >>> near_duplicates(texts, ["5", "5", "3"], threshold=0.7)
        [None, 0, None]
    """
    _check_threshold(threshold)
    if len(labels) != len(texts):
        raise ValueError(f"labels must have one entry per text, got {len(labels)} for {len(texts)} texts")
    sets = shingle_ranks(texts)
    texts_with: dict[tuple[str, int], list[int]] = defaultdict(list)
    found: list[int | None] = []
    for index, (shingles, label) in enumerate(zip(sets, labels, strict=True)):
        prefix = _prefix(shingles, threshold)
        candidates = sorted({other for shingle in prefix for other in texts_with[label, shingle]})
        first = next((other for other in candidates if jaccard(shingles, sets[other]) >= threshold), None)
        found.append(first)
        if first is None:
            for shingle in prefix:
                texts_with[label, shingle].append(index)
    return found


def find_leaks(texts: Sequence[str], heldout: Sequence[str], *, threshold: float | int) -> list[int | None]:
    """Find the training texts that leak a held-out text: they contain nearly all of it, possibly with more text around it.

    Args:
        texts: the training texts.
        heldout: the held-out texts.
        threshold: the minimum fraction t of a held-out text's shingles that one training text contains, in (0, 1]. For a held-out
            text with fewer than 10 shingles, t is the minimum Jaccard similarity instead.

    Returns:
        For each training text, the index of the first held-out text that it contains, or None.

    Raises:
        ValueError: the threshold is out of range.

    Example:
        >>> question = "Tom has 3 red pens and 2 blue pens . How many pens does Tom have ?"
        >>> find_leaks([f"Think first . {question} Answer briefly .", "Ann has a pen ."], [question], threshold=0.8)
        [0, None]
    """
    _check_threshold(threshold)
    sets = shingle_ranks([*texts, *heldout])
    heldout_sets = sets[len(texts) :]
    texts_with: dict[int, list[int]] = defaultdict(list)
    for index, shingles in enumerate(heldout_sets):
        for shingle in _prefix(shingles, threshold):
            texts_with[shingle].append(index)

    def contains(shingles: Shingles, part: Shingles) -> bool:
        if len(part) < SHORT_TEXT:
            return jaccard(shingles, part) >= threshold
        return len(set(shingles) & set(part)) >= _minimum_overlap(part, threshold)

    found: list[int | None] = []
    for shingles in sets[: len(texts)]:
        candidates = sorted({other for shingle in shingles if shingle in texts_with for other in texts_with[shingle]})
        found.append(next((other for other in candidates if contains(shingles, heldout_sets[other])), None))
    return found


def jaccard(left: Shingles, right: Shingles) -> float:
    """Jaccard similarity: the number of shingles that two texts share, divided by the number in at least one of them.

    Example:
        >>> jaccard((1, 2, 3), (2, 3, 4))
        0.5
    """
    shared = len(set(left) & set(right))
    return shared / (len(left) + len(right) - shared)


def _minimum_overlap(shingles: Shingles, threshold: float | int) -> int:
    return math.ceil(threshold * len(shingles) - 1e-9)  # in floating point 0.7 * 10 is slightly more than 7


def _prefix(shingles: Shingles, threshold: float | int) -> Shingles:
    return shingles[: len(shingles) - _minimum_overlap(shingles, threshold) + 1]


def _check_threshold(threshold: float | int) -> None:
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must be above 0 and at most 1, got {threshold}")
