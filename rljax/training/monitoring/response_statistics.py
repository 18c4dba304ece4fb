"""Statistics of sampled responses: whether they repeat themselves, are all alike, or earn their reward by length."""

import numpy as np
from jaxtyping import Float32, Int, Int32, UInt64

from rljax.rollout import Groups
from rljax.rollout.groups import right_and_known

RUN = 8
"""Tokens of a run that may occur again in a response."""


def share_of_groups(groups: Groups, *, right: bool) -> float | None:
    """Share of the groups whose responses are all right (`right`) or all wrong; None if there is no group.

    Without a verifier, those whose rewards are equal as well, above 0 or not: a reward that is never above 0, or always, may still
    tell the responses apart. A group of which fewer than two responses are judged is left out.
    """
    rollout, known = groups.rollout, right_and_known(groups.rollout)[1]
    compared = known.sum(-1) > 1
    if not compared.any():
        return None
    values = (rollout.rewards if rollout.correct is None else rollout.correct)[compared].astype(np.float64)
    high = np.where(known[compared], values, -np.inf).max(-1)
    low = np.where(known[compared], values, np.inf).min(-1)
    return float(((high == low) & ((high > 0) == right)).mean())


def correlation(rewards: Float32[np.ndarray, "N"], lengths: Int[np.ndarray, "N"]) -> float | None:
    """Pearson's correlation of reward and length over responses; None where one of them is the same for all.

    Example:
        >>> correlation(np.array([0.0, 1.0, 2.0], np.float32), np.array([5, 6, 7]))
        1.0
        >>> correlation(np.ones(3, np.float32), np.array([5, 6, 7]))
    """
    if not rewards.size:
        return None
    x, y = (values.astype(np.float64) - values.mean(dtype=np.float64) for values in (rewards, lengths))
    spread = float(np.sqrt((x @ x) * (y @ y)))
    return round(float(x @ y) / spread, 12) if spread > 0 else None


def repetition(tokens: Int32[np.ndarray, "N T"], lengths: Int[np.ndarray, "N"]) -> float:
    """Share of the runs of `RUN` tokens that occurred earlier in the same response, the mean over responses.

    A response of at most `RUN` tokens has none.

    Args:
        tokens: padded on their right.
        lengths: tokens of each response.

    Example:
        >>> looping = np.tile(np.arange(2, dtype=np.int32), 10)[None]
        >>> round(repetition(looping, np.array([20])), 3), repetition(np.arange(20, dtype=np.int32)[None], np.array([20]))
        (0.846, 0.0)
    """
    if tokens.shape[1] < RUN + 1 or not len(tokens):
        return 0.0
    runs, count = _hashes(tokens), np.maximum(lengths - RUN + 1, 0)
    used = np.arange(runs.shape[1]) < count[:, None]
    ordered = np.sort(np.where(used, runs, np.iinfo(np.uint64).max), axis=1)
    again = (ordered[:, 1:] == ordered[:, :-1]) & used[:, 1:]  # the padding is sorted to the end, so `used` fits here too
    return float((again.sum(1) / np.maximum(count, 1)).mean())


def _hashes(tokens: Int32[np.ndarray, "N T"]) -> UInt64[np.ndarray, "N R"]:
    """A number for each run of tokens: equal runs have equal numbers, others almost never."""
    count = tokens.shape[1] - RUN + 1
    total = np.zeros((len(tokens), count), np.uint64)
    for offset in range(RUN):
        total = total * np.uint64(0x9E3779B97F4A7C15) + tokens[:, offset : offset + count].astype(np.uint64) + np.uint64(1)
    return total


def commonest_share(tokens: Int32[np.ndarray, "N T"], lengths: Int[np.ndarray, "N"]) -> float:
    """Share of the responses that are equal to the most frequent one, whatever the prompt; 0 without responses.

    Example:
        >>> commonest_share(np.array([[1, 2], [1, 2], [1, 9]], np.int32), np.array([2, 2, 1]))
        0.6666666666666666
    """
    texts, counts = [row[:end].tobytes() for row, end in zip(tokens, lengths, strict=True)], {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    return max(counts.values(), default=0) / max(len(texts), 1)
