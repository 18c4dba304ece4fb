"""How a reward function is called, and what it may answer.

The convention is TRL's: `f(prompts=..., completions=..., **columns)`, every argument a list with one entry a completion; the
answer is as long a list of numbers, None for "no opinion". The function may be a coroutine function. One that names an
argument `progress` receives a function `(done, all)` to call, or None.

A completion that could not be judged is neither wrong nor without an opinion: it is a failure, counted by reward and kind. It
gets no reward, and too many of them stop the run.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int8

from rljax.errors import InputError
from rljax.rewards.calling import Progress, ask, called_name, check_failures, read_answer, wait_for
from rljax.rewards.failure import Failures

MAX_FAILURE_SHARE = 0.1
"""Share of a batch that may fail before the run stops, unless the person says otherwise."""


class Scores(NamedTuple):
    """Several rewards of N completions, together and apart.

    `total` is the weighted sum of the rewards that have an opinion, and `valid` says where at least one has and none failed;
    elsewhere the total is 0. In `parts`, unweighted and by name, NaN stands for no opinion and for a failure. `failures`
    counts the latter, by the same names.
    """

    total: Float32[np.ndarray, "N"]
    valid: Bool[np.ndarray, "N"]
    parts: dict[str, Float32[np.ndarray, "N"]]
    failures: dict[str, Failures]
    failed: Int8[np.ndarray, "N"]
    """How the first part that failed did: 0 none, else the place in `Failures`, counted from 1."""


@dataclass(frozen=True)
class Weighted:
    """Several rewards as one: a weighted sum whose parts `judge` keeps apart.

    It is itself a reward, so it may be named, passed to the trainer, and be a part of another one.

    Args:
        rewards: the functions, under the names that their parts shall have.
        weights: a finite number for each of those names.

    Raises:
        InputError: no rewards, or weights that do not match them.

    Example:
        >>> from rljax.rewards import BY_NAME
        >>> both = Weighted({"exact": BY_NAME["exact"], "format": BY_NAME["format"]}, {"exact": 1.0, "format": 0.5})
        >>> both(prompts=["1+1="] * 2, completions=["#2", "#3"], answer=["2"] * 2)
        [1.5, 0.5]
    """

    rewards: Mapping[str, Callable]
    weights: Mapping[str, float]

    def __post_init__(self):
        if not self.rewards:
            raise InputError("there is no reward; name at least one.")
        if set(self.weights) != set(self.rewards):
            raise InputError(
                f"the weights are for {sorted(self.weights)}, the rewards are {sorted(self.rewards)}; give each reward one."
            )
        for name, weight in self.weights.items():
            if not math.isfinite(weight):
                raise InputError(f"the weight of the reward {name!r} is {weight}; give a finite number.")

    def __call__(self, prompts: Sequence[str], completions: Sequence[str], **columns: Sequence) -> list[float | None]:
        """Give the weighted sums, None where no part has an opinion or one failed."""
        scores = judge(self, prompts, completions, columns)
        return [float(total) if valid else None for total, valid in zip(scores.total, scores.valid, strict=True)]

    def flat(self) -> "Weighted":
        """Take the parts of parts up, as `outer/inner`, with the product of their weights."""
        rewards, weights = {}, {}
        for name, reward in self.rewards.items():
            if isinstance(reward, Weighted):
                inner = reward.flat()
                rewards |= {f"{name}/{part}": function for part, function in inner.rewards.items()}
                weights |= {f"{name}/{part}": self.weights[name] * weight for part, weight in inner.weights.items()}
            else:
                rewards[name], weights[name] = reward, self.weights[name]
        return Weighted(rewards, weights)


def needs_all_hosts(reward: Callable | None) -> bool:
    """Whether every host of a run has to ask the reward about all completions.

    One that computes on the devices of all must, and one that compares completions with each other; it has the attribute
    `on_all_hosts`, and the first host's answer counts. Of any other, each host judges its own part of the completions.

    Example:
        >>> def ranked(completions): ...
        >>> ranked.on_all_hosts = True
        >>> needs_all_hosts(ranked), needs_all_hosts(Weighted({"length": len, "rank": ranked}, {"length": 1, "rank": 1}))
        (True, True)
        >>> needs_all_hosts(len), needs_all_hosts(None)
        (False, False)
    """
    parts = reward.flat().rewards.values() if isinstance(reward, Weighted) else [reward]
    return any(getattr(part, "on_all_hosts", False) for part in parts)


def judge(
    reward: Callable,
    prompts: Sequence[str],
    completions: Sequence[str],
    columns: Mapping[str, Sequence],
    *,
    max_failure_share: float = MAX_FAILURE_SHARE,
    progress: Progress | None = None,
) -> Scores:
    """Ask a reward about completions, and keep its parts and its failures apart.

    The parts of a `Weighted` are asked one after another; those that are coroutine functions wait together.

    Args:
        reward: called with `prompts`, `completions` and the columns; if it does not take `**kwargs`, with those it names.
        prompts: N of them.
        completions: one a prompt.
        columns: extra data by name, N entries each, `answer` among them where there is one.
        max_failure_share: the largest share of the completions that a part may fail to judge, from 0 to 1. Unless it is 0,
            one of several completions may always fail.
        progress: called by rewards that support it with the completions judged and all of them, or None.

    Returns:
        The reward, and every part of it; one part, under the function's name, where it is no `Weighted`.

    Raises:
        ValueError: completions or a column not as long as the prompts.
        InputError: the function asks for a column that is not there, answers with anything but finite numbers, or raises,
            exceeds its time or gives a wrong number of values for more than the allowed share; or this share is not one.

    Example:
        >>> scores = judge(lambda completions: [len(c) or None for c in completions], ["a", "a"], ["bcd", ""], {})
        >>> scores.total.tolist(), scores.valid.tolist(), scores.failures["<lambda>"].total
        ([3.0, 0.0], [True, False], 0)
    """
    if not 0 <= max_failure_share <= 1:
        raise InputError(f"max_failure_share is {max_failure_share!r}; give a number from 0 to 1.")
    for name, column in {"completions": completions, **columns}.items():
        if len(column) != len(prompts):
            raise ValueError(f"{name} must have one entry a prompt, got {len(column)} for {len(prompts)} prompts")
    name = called_name(reward).rpartition(".")[2]
    parts = reward.flat() if isinstance(reward, Weighted) else Weighted({name: reward}, {name: 1.0})
    returned = wait_for([ask(part, prompts, completions, columns, progress) for part in parts.rewards.values()])
    total = np.zeros(len(prompts), np.float32)
    valid = np.zeros(len(prompts), bool)
    failed = np.zeros(len(prompts), np.int8)
    values, failures = {}, {}
    for (name, part), said in zip(parts.rewards.items(), returned, strict=True):
        answer = read_answer(said, called_name(part), len(prompts))
        check_failures(answer, called_name(part), max_failure_share)
        total += np.float32(parts.weights[name]) * answer.values
        valid |= answer.valid
        failed = np.where(failed > 0, failed, answer.failed)
        values[name] = np.where(answer.valid, answer.values, np.float32(np.nan))
        failures[name] = answer.failures
    valid &= failed == 0
    return Scores(np.where(valid, total, np.float32(0)), valid, values, failures, failed)


def score(
    reward: Callable,
    prompts: Sequence[str],
    completions: Sequence[str],
    columns: Mapping[str, Sequence],
    *,
    max_failure_share: float = MAX_FAILURE_SHARE,
) -> tuple[Float32[np.ndarray, "N"], Bool[np.ndarray, "N"]]:
    """Ask a reward about completions, where only the sum matters; see `judge`.

    Args:
        reward: as in `judge`.
        prompts: N of them.
        completions: one a prompt.
        columns: extra data by name, N entries each.
        max_failure_share: as in `judge`.

    Returns:
        The rewards, and where there is one; elsewhere it is 0.

    Raises:
        ValueError: what `judge` raises.
        InputError: what `judge` raises.

    Example:
        >>> values, valid = score(lambda completions: [len(c) or None for c in completions], ["a", "a"], ["bcd", ""], {})
        >>> values.tolist(), valid.tolist()
        ([3.0, 0.0], [True, False])
    """
    scores = judge(reward, prompts, completions, columns, max_failure_share=max_failure_share)
    return scores.total, scores.valid


def weighted_scores(
    rewards: Mapping[str, Callable],
    weights: Mapping[str, float],
    prompts: Sequence[str],
    completions: Sequence[str],
    columns: Mapping[str, Sequence],
    *,
    max_failure_share: float = MAX_FAILURE_SHARE,
) -> Scores:
    """Ask several rewards about the same completions and add up what they say.

    Args:
        rewards: the functions, under the names that their parts shall have.
        weights: a finite number for each of those names.
        prompts: N of them.
        completions: one a prompt.
        columns: extra data by name, N entries each.
        max_failure_share: as in `judge`.

    Returns:
        The weighted sum and every part of it.

    Raises:
        ValueError: what `judge` raises.
        InputError: what `Weighted` and `judge` refuse.

    Example:
        >>> from rljax.rewards import BY_NAME
        >>> two = {name: BY_NAME[name] for name in ("exact", "format")}
        >>> scores = weighted_scores(two, {"exact": 1.0, "format": 0.1}, ["1+1="] * 2, ["#2", "#3"], {"answer": ["2"] * 2})
        >>> scores.total.round(2).tolist(), scores.parts["exact"].tolist()
        ([1.100000023841858, 0.10000000149011612], [1.0, 0.0])
    """
    return judge(Weighted(rewards, weights), prompts, completions, columns, max_failure_share=max_failure_share)
