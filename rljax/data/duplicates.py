"""Texts that say nearly the same: exact set similarity over shingles, without hashing, so that nothing is missed by chance.

A text is the set of its runs of three words. Two sets whose Jaccard similarity is at least t overlap so much that, when all
shingles are put into one order (rarest first), the first `n - ceil(t n) + 1` shingles of each must have one in common. So only
those are looked up, and whatever they find is compared in full.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

_WORD = re.compile(r"\w+|[^\w\s]")

SHINGLE_WORDS = 3
BOILERPLATE_SHARE = 0.1
BOILERPLATE_TEXTS = 10  # a shingle of no more texts than this is never boilerplate
SHORT_TEXT = 10  # a held-out text with fewer shingles may well be a part of another problem by chance

Shingles = tuple[int, ...]
"""A text as the ranks of its shingles, rarest first."""


def shingle_ranks(texts: Sequence[str]) -> list[Shingles]:
    """Turn texts into sets of shingles that can be compared.

    A shingle that more than a tenth of all texts share (at least 11) is boilerplate, an instruction around every question, and
    is left out, so that two questions are not alike for what stands around them.

    Args:
        texts: all that will be compared with one another.

    Returns:
        For each text its shingles; a common order of rarity, ties by spelling, makes ranks of them.

    Example:
        >>> shingle_ranks(["a b c d", "b c d"])
        [(0, 1), (1,)]
    """
    split = [_shingles(text) for text in texts]
    counts = Counter(shingle for shingles in split for shingle in shingles)
    order = sorted(counts, key=lambda shingle: (counts[shingle], shingle))
    rank = {shingle: position for position, shingle in enumerate(order)}
    limit = max(BOILERPLATE_TEXTS, BOILERPLATE_SHARE * len(texts))
    telling = [{shingle for shingle in shingles if counts[shingle] <= limit} for shingles in split]
    # A text of boilerplate alone is compared as a whole.
    return [
        tuple(sorted(rank[shingle] for shingle in (rare if rare else all_of_it)))
        for rare, all_of_it in zip(telling, split, strict=True)
    ]


def _shingles(text: str) -> frozenset[str]:
    words = _WORD.findall(text.casefold())
    return frozenset(" ".join(words[i : i + SHINGLE_WORDS]) for i in range(max(1, len(words) - SHINGLE_WORDS + 1)))


def near_duplicates(texts: Sequence[str], labels: Sequence[str], *, threshold: float) -> list[int | None]:
    """Find the texts that nearly repeat an earlier one of the same label.

    Two problems that differ in a number alone look alike, but have different answers: the label keeps them apart.

    Args:
        texts: in the order in which the first of each kind is to be kept.
        labels: one a text; only equal ones are compared.
        threshold: least Jaccard similarity t of two sets of shingles, in (0, 1].

    Returns:
        For each text the index of the first earlier one that it repeats, itself no repetition; else None.

    Raises:
        ValueError: a threshold out of its range, or not one label a text.

    Example:
        >>> texts = ["Tom has 3 red pens and 2 blue pens .", "Tom has 3 red pens and 2 blue pens !", "Ann has 3 red pens ."]
        >>> near_duplicates(texts, ["5", "5", "3"], threshold=0.7)
        [None, 0, None]
    """
    _check_threshold(threshold)
    if len(labels) != len(texts):
        raise ValueError(f"labels must have one entry a text, got {len(labels)} for {len(texts)} texts")
    sets = shingle_ranks(texts)
    holders: dict[tuple[str, int], list[int]] = defaultdict(list)
    found: list[int | None] = []
    for index, (shingles, label) in enumerate(zip(sets, labels, strict=True)):
        beginning = _beginning(shingles, threshold)
        candidates = sorted({other for shingle in beginning for other in holders[label, shingle]})
        first = next((other for other in candidates if jaccard(shingles, sets[other]) >= threshold), None)
        found.append(first)
        if first is None:
            for shingle in beginning:
                holders[label, shingle].append(index)
    return found


def leaks(texts: Sequence[str], heldout: Sequence[str], *, threshold: float) -> list[int | None]:
    """Find the training texts that give a held-out one away: they contain nearly all of it, with or without more around it.

    Args:
        texts: to train on.
        heldout: to evaluate on.
        threshold: least share t of a held-out text's shingles that must be found in one training text, in (0, 1]. For a
            held-out text of fewer than 10 shingles, the least Jaccard similarity instead.

    Returns:
        For each training text the index of the first held-out one that it contains, or None.

    Raises:
        ValueError: a threshold out of its range.

    Example:
        >>> question = "Tom has 3 red pens and 2 blue pens . How many pens does Tom have ?"
        >>> leaks([f"Think first . {question} Answer briefly .", "Ann has a pen ."], [question], threshold=0.8)
        [0, None]
    """
    _check_threshold(threshold)
    sets = shingle_ranks([*texts, *heldout])
    secrets = sets[len(texts) :]
    holders: dict[int, list[int]] = defaultdict(list)
    for index, shingles in enumerate(secrets):
        for shingle in _beginning(shingles, threshold):
            holders[shingle].append(index)

    def gives_away(shingles: Shingles, secret: Shingles) -> bool:
        if len(secret) < SHORT_TEXT:
            return jaccard(shingles, secret) >= threshold
        return len(set(shingles) & set(secret)) >= _least(secret, threshold)

    found = []
    for shingles in sets[: len(texts)]:
        candidates = sorted({other for shingle in shingles if shingle in holders for other in holders[shingle]})
        found.append(next((other for other in candidates if gives_away(shingles, secrets[other])), None))
    return found


def jaccard(left: Shingles, right: Shingles) -> float:
    """Shared shingles over all shingles of two texts.

    Example:
        >>> jaccard((1, 2, 3), (2, 3, 4))
        0.5
    """
    shared = len(set(left) & set(right))
    return shared / (len(left) + len(right) - shared)


def _least(shingles: Shingles, threshold: float) -> int:
    return math.ceil(threshold * len(shingles) - 1e-9)  # 0.7 * 10 is a little more than 7


def _beginning(shingles: Shingles, threshold: float) -> Shingles:
    return shingles[: len(shingles) - _least(shingles, threshold) + 1]


def _check_threshold(threshold: float) -> None:
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must be above 0 and at most 1, got {threshold}")
