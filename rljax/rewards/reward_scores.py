"""The protocol of reward functions: how rljax calls them, and what they may return.

The convention is TRL's: `f(prompts=..., completions=..., **columns)`, where every argument is a list with one entry per
completion. If a prompt is a conversation, so is its completion: `completions[i][0]["content"]` is the text. The function
returns a list of the same length with a number for each completion, or None to abstain. The function may be a coroutine function.
If it has a parameter `progress`, it receives a callback, to call as `progress(done, total)`, or None.

A completion that a reward could not judge is a failure: neither a wrong answer nor an abstention. Failures are counted by reward
and kind. A failed completion gets no reward, and too many failures stop the run.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Float64, Int8

from rljax.errors import InputError
from rljax.rewards.correctness import RESERVED_NAMES, Failures, form_of, is_verifier, lowest_correct_value
from rljax.rewards.reward_call import (
    CallResult,
    Progress,
    call_function,
    check_failures,
    has_failed,
    qualified_name,
    read_result,
    short_name,
    wait_for,
)

MAX_FAILURE_SHARE = 0.1
"""Default fraction of a batch that may fail before the run stops."""
CONVERSATION_HINT = (
    'It received lists of messages, because the prompts are conversations. The text is completions[i][0]["content"]; '
    "--no-reward-messages passes text instead, except in an environment."
)
"""Hint that follows the error of a reward that raised on conversations."""

Messages = Sequence[Mapping[str, str]]
"""The messages of a conversation. In TRL's form a prompt is such a list, and a completion is a list with one message."""

Combination = Callable[
    [Float64[np.ndarray, "K N"], Bool[np.ndarray, "K N"], Float64[np.ndarray, "K"]], Float64[np.ndarray, "N"]
]
"""(rewards of K parts for N completions, which of these rewards are valid, weights) -> one number per completion; 0 where all parts
abstain."""


def weighted_sum(
    values: Float64[np.ndarray, "K N"], valid: Bool[np.ndarray, "K N"], weights: Float64[np.ndarray, "K"]
) -> Float64[np.ndarray, "N"]:
    """Sum the weighted rewards of the parts that do not abstain, in 64 bits, so that 0.1 + 0.6 and 0.7 give the same 32-bit number.

    Args:
        values: rewards of K parts for N completions.
        valid: False where a part abstains.
        weights: weights of the parts.

    Example:
        >>> values, valid = np.float64([[1, 2], [3, 0]]), np.array([[True, True], [True, False]])
        >>> weighted_sum(values, valid, np.float64([1, 0.5])).tolist()
        [2.5, 2.0]
    """
    total = np.zeros(values.shape[1], np.float64)
    for weight, row, has_verdict in zip(weights, values, valid, strict=True):
        total += weight * np.where(has_verdict, row, np.float64(0))
    return total


def minimum(
    values: Float64[np.ndarray, "K N"], valid: Bool[np.ndarray, "K N"], weights: Float64[np.ndarray, "K"]
) -> Float64[np.ndarray, "N"]:
    """Return the smallest weighted reward of the parts that do not abstain, so that exploiting a single part does not pay.

    ::

        r = min_k w_k r_k

    The parts must score on the same scale, such as reward models that were trained in the same way on the same pairs.

    Args:
        values: r, rewards of K parts for N completions.
        valid: False where a part abstains.
        weights: w, weights of the parts.

    Example:
        >>> values, valid = np.float64([[1, 2], [-3, 0]]), np.array([[True, True], [True, False]])
        >>> minimum(values, valid, np.float64([1, 0.5])).tolist()
        [-1.5, 2.0]

    Source:
        Coste et al., "Reward Model Ensembles Help Mitigate Overoptimization", arXiv:2310.02743, worst-case optimization.
    """
    smallest = np.where(valid, weights[:, None] * values, np.float64(np.inf)).min(axis=0)
    return np.where(valid.any(axis=0), smallest, np.float64(0))


COMBINATIONS: MappingProxyType[str, Combination] = MappingProxyType({"sum": weighted_sum, "min": minimum})
"""Name in `--reward-combine` -> the function that combines the parts."""


class RewardScores(NamedTuple):
    """The rewards of N completions: the combined reward, and each part's reward."""

    total: Float32[np.ndarray, "N"]
    """The weighted sum of the parts that do not abstain, or their minimum; 0 where `valid` is False."""
    valid: Bool[np.ndarray, "N"]
    """Whether at least one part gave a reward and none failed."""
    parts: dict[str, Float32[np.ndarray, "N"]]
    """The unweighted rewards of each part by name; NaN where the part abstains or fails."""
    failures: dict[str, Failures]
    """Name of each part -> its failures, counted by kind."""
    failed: Int8[np.ndarray, "N"]
    """The kind of failure of the first part that failed: 0 for none, else the position in `Failures`, counted from 1."""
    correct: Float32[np.ndarray, "N"] | None = None
    """1 where every verifier that does not abstain finds the answer correct, 0 where one finds it wrong, NaN where all verifiers
    abstain or any part failed; None if no part is a verifier."""


@dataclass(frozen=True)
class Weighted:
    """A reward that combines several rewards into their weighted sum or minimum; `judge` reports each part separately.

    Like any other reward, it can be passed to the trainer, and used as a part of another `Weighted`.

    Args:
        rewards: part name -> reward function.
        weights: part name -> finite weight.
        total: function that combines the parts' rewards into one number; see `COMBINATIONS`.
        name: the name of this reward as a part of another reward.

    Raises:
        InputError: there are no rewards, the weights do not match them, or a part has the name of a metric.

    Example:
        >>> from rljax.rewards import BY_NAME
        >>> both = Weighted({"exact": BY_NAME["exact"], "format": BY_NAME["format"]}, {"exact": 1.0, "format": 0.5})
        >>> both(prompts=["1+1="] * 2, completions=["#2", "#3"], answer=["2"] * 2)
        [1.5, 0.5]
    """

    rewards: Mapping[str, Callable]
    weights: Mapping[str, float | int]
    total: Combination = weighted_sum
    name: str = "Weighted"

    def __post_init__(self):
        if not self.rewards:
            raise InputError("there are no rewards to combine; give at least one.")
        if set(self.weights) != set(self.rewards):
            raise InputError(
                f"the weights are for {sorted(self.weights)}, but the rewards are {sorted(self.rewards)}; "
                f"give each reward one weight."
            )
        for name, weight in self.weights.items():
            if name in RESERVED_NAMES:
                raise InputError(
                    f"a part of the reward must not be called {name!r}, because reward_{name} is a metric of the run; rename it."
                )
            if not math.isfinite(weight):
                raise InputError(f"the weight of the reward {name!r} is {weight}; it must be a finite number.")

    def __call__(self, prompts: Sequence[str], completions: Sequence[str], **columns: Sequence) -> list[float | None]:
        """Return the combined rewards; None where all parts abstain or any part failed."""
        scores = judge(self, prompts, completions, columns)
        return [float(total) if valid else None for total, valid in zip(scores.total, scores.valid, strict=True)]

    def flatten(self) -> "Weighted":
        """Replace every part that is a weighted sum by its own parts, named `outer/inner`; each gets the product of both weights.

        Weighted sums inside a minimum, and a minimum inside a weighted sum, stay unchanged.
        """
        rewards, weights = {}, {}
        for name, reward in self.rewards.items():
            if isinstance(reward, Weighted) and self.total is weighted_sum and reward.total is weighted_sum:
                inner = reward.flatten()
                rewards |= {f"{name}/{part}": function for part, function in inner.rewards.items()}
                weights |= {f"{name}/{part}": self.weights[name] * weight for part, weight in inner.weights.items()}
            else:
                rewards[name], weights[name] = reward, self.weights[name]
        return Weighted(rewards, weights, self.total, self.name)


def combine(rewards: Sequence[Callable], weights: Sequence[float] | None, how: str = "sum") -> Callable:
    """Combine several rewards into one.

    Args:
        rewards: the reward functions. Each part has its function's name, or the `name` of its `Weighted`; a second part of the
            same name is called NAME_2.
        weights: one weight per reward; None gives each the weight 1.
        how: how to combine the rewards, a key of `COMBINATIONS`.

    Returns:
        A `Weighted`; a single reward without a weight is returned unchanged.

    Raises:
        InputError: there are no rewards, rewards and weights differ in number, or the minimum of a single reward is requested.

    Example:
        >>> from rljax.rewards import BY_NAME
        >>> both = combine([BY_NAME["exact"], BY_NAME["format"]], [1.0, 0.5])
        >>> both.weights
        {'exact': 1.0, 'has_final_answer': 0.5}
    """
    if how != "sum" and len(rewards) == 1:
        raise InputError(
            f"reward_combine={how!r} needs several rewards, but there is only one; leave it out, or add a reward."
        )
    if weights is None and len(rewards) == 1:
        return rewards[0]
    if weights is not None and len(weights) != len(rewards):
        raise InputError(f"reward_weights has {len(weights)} numbers for {len(rewards)} rewards; give one for each.")
    names: list[str] = []
    for reward in rewards:
        name = reward.name if isinstance(reward, Weighted) else short_name(reward)
        numbered = [f"{name}_{number}" for number in range(2, len(rewards) + 1)]
        names.append(next(other for other in (name, *numbered) if other not in names))
    chosen = [1.0] * len(rewards) if weights is None else weights
    return Weighted(dict(zip(names, rewards, strict=True)), dict(zip(names, chosen, strict=True)), COMBINATIONS[how])


def has_verifier(reward: Callable) -> bool:
    """True if a reward, or one of its parts at any depth, decides whether answers are correct; see `rljax.rewards.verifier`.

    Example:
        >>> from rljax.rewards import BY_NAME
        >>> has_verifier(Weighted({"exact": BY_NAME["exact"], "length": len}, {"exact": 1, "length": -0.01})), has_verifier(len)
        (True, False)
    """
    return any(map(is_verifier, _leaf_rewards(reward)))


def only_subtracts(reward: Callable) -> bool:
    """True if a reward is a sum whose parts all have negative weights, like the rules of a constitution.

    Example:
        >>> only_subtracts(Weighted({"long": len}, {"long": -1.0})), only_subtracts(len)
        (True, False)
    """
    return isinstance(reward, Weighted) and all(weight < 0 for weight in reward.flatten().weights.values())


def forms_of(reward: Callable) -> dict[str, str]:
    """Return the answer format that each part of a reward reads, by the part's name; parts that declare no format are left out.

    Example:
        >>> from rljax.rewards import BY_NAME
        >>> forms_of(Weighted({"aime": BY_NAME["aime"], "length": len}, {"aime": 1, "length": -0.01}))
        {'aime': 'an integer from 0 to 999, in the same form as for math'}
    """
    forms = {short_name(leaf): form_of(leaf) for leaf in _leaf_rewards(reward)}
    return {name: form for name, form in forms.items() if form is not None}


def needs_all_hosts(reward: Callable | None) -> bool:
    """Decide whether every host of a run must judge all completions.

    A reward must set its attribute `on_all_hosts` if it computes on the devices of all hosts, or compares completions with each
    other. Every host then judges all completions, and the first host's answer counts. For any other reward, each host judges its
    own part of the completions.

    Example:
        >>> def ranked(completions): ...
        >>> ranked.on_all_hosts = True
        >>> needs_all_hosts(ranked), needs_all_hosts(Weighted({"length": len, "rank": ranked}, {"length": 1, "rank": 1}))
        (True, True)
        >>> needs_all_hosts(len), needs_all_hosts(None)
        (False, False)
    """
    return reward is not None and any(getattr(leaf, "on_all_hosts", False) for leaf in _leaf_rewards(reward))


def judge(
    reward: Callable,
    prompts: Sequence[str],
    completions: Sequence[str],
    columns: Mapping[str, Sequence],
    *,
    max_failure_share: float | int = MAX_FAILURE_SHARE,
    progress: Progress | None = None,
    chats: Sequence[Messages | None] | None = None,
) -> RewardScores:
    """Judge completions with a reward, and report its parts and its failures separately.

    The parts of a `Weighted` are called one after another; those that are coroutine functions run concurrently.

    Args:
        reward: called with `prompts`, `completions` and the columns; without `**kwargs` it receives only the arguments it names.
        prompts: N prompts.
        completions: one per prompt.
        columns: extra data by name, N entries each, including `answer` if the data has it.
        max_failure_share: the largest fraction of the completions that a part may fail to judge, from 0 to 1. Unless it is 0,
            one failure among several completions is always tolerated.
        progress: called with the number of completions judged and the total number, if the reward supports it; or None.
        chats: the messages of each prompt, None for a prompt that is plain text. A reward that is not built into rljax receives
            these prompts and their completions as lists of messages, as TRL passes them. If `chats` is None, every reward gets
            text.

    Returns:
        The combined reward, and each part's reward. A reward that is not a `Weighted` has one part, under the function's name.

    Raises:
        ValueError: the completions or a column do not have one entry per prompt.
        InputError: the function needs a column that the data lacks, or does not return a list whose entries are numbers, None or
            `Failed`; more completions failed than `max_failure_share` allows; or `max_failure_share` is not between 0 and 1.

    Example:
        >>> scores = judge(lambda completions: [len(c) or None for c in completions], ["a", "a"], ["bcd", ""], {})
        >>> scores.total.tolist(), scores.valid.tolist(), scores.failures["<lambda>"].total
        ([3.0, 0.0], [True, False], 0)
        >>> from rljax.rewards import BY_NAME
        >>> both = Weighted({"exact": BY_NAME["exact"], "length": lambda completions: list(map(len, completions))},
        ...                 {"exact": 1.0, "length": 0.1})
        >>> judge(both, ["1+1="] * 2, ["#2", "#3"], {"answer": ["2"] * 2}).correct.tolist()
        [1.0, 0.0]
    """
    results = call_reward(
        reward, prompts, completions, columns, max_failure_share=max_failure_share, progress=progress, chats=chats
    )
    return combine_scores(reward, results, max_failure_share=max_failure_share)


def call_reward(
    reward: Callable,
    prompts: Sequence[str],
    completions: Sequence[str],
    columns: Mapping[str, Sequence],
    *,
    max_failure_share: float | int = MAX_FAILURE_SHARE,
    progress: Progress | None = None,
    chats: Sequence[Messages | None] | None = None,
    seconds: float | int | None = None,
) -> list[CallResult]:
    """Call each part of a reward once, at whatever depth it is, and read what it returns.

    The arguments are those of `judge`, plus `seconds`, the time limit per call. The results of several calls can be joined
    (`rljax.rewards.reward_call.join_results`) before `combine_scores` counts their failures.

    Raises:
        ValueError: in the same cases as for `judge`.
        InputError: in the same cases as for `judge`, except that failed completions raise it only if a complete call failed.
    """
    if not 0 <= max_failure_share <= 1:
        raise InputError(f"max_failure_share is {max_failure_share!r}; it must be a number from 0 to 1.")
    for name, column in {"completions": completions, **columns}.items():
        if len(column) != len(prompts):
            raise ValueError(f"{name} must have one entry per prompt, got {len(column)} for {len(prompts)} prompts")
    parts = _leaf_rewards(reward)
    in_chat = [chats is not None and any(chats) and not reads_text(part) for part in parts]
    chat_prompts, chat_completions = (
        (prompts, completions) if chats is None else convert_to_messages(prompts, completions, chats)
    )
    returned = wait_for(
        [
            call_function(
                part,
                chat_prompts if chat else prompts,
                chat_completions if chat else completions,
                columns,
                progress,
                seconds,
            )
            for part, chat in zip(parts, in_chat, strict=True)
        ],
        seconds,
    )
    results = []
    for part, value, chat in zip(parts, returned, in_chat, strict=True):
        result = read_result(value, qualified_name(part), len(prompts))
        if chat and result.cause is not None:
            result = result._replace(reason=f"{result.reason} {CONVERSATION_HINT}")
        if result.call_failed:
            check_failures(result, qualified_name(part), max_failure_share)
        results.append(result)
    return results


def combine_scores(
    reward: Callable, results: Sequence[CallResult], *, max_failure_share: float | int = MAX_FAILURE_SHARE
) -> RewardScores:
    """Combine the results of a reward's parts into one number per completion.

    Args:
        reward: as in `judge`.
        results: the output of `call_reward`, one result per part, all for the same N completions.
        max_failure_share: as in `judge`.

    Raises:
        InputError: more completions failed than `max_failure_share` allows.
    """
    scores = _compute_exact_scores(reward, results, max_failure_share)
    parts = {name: values.astype(np.float32) for name, values in scores.parts.items()}
    return RewardScores(
        scores.total.astype(np.float32), scores.valid, parts, scores.failures, scores.failed, scores.correct
    )


class _ExactScores(NamedTuple):
    """`RewardScores` in 64 bits, so that a sum of rewards is rounded to 32 bits only once, at the end."""

    total: Float64[np.ndarray, "N"]
    valid: Bool[np.ndarray, "N"]
    parts: dict[str, Float64[np.ndarray, "N"]]
    failures: dict[str, Failures]
    failed: Int8[np.ndarray, "N"]
    correct: Float32[np.ndarray, "N"] | None


def _compute_exact_scores(reward: Callable, results: Sequence[CallResult], max_failure_share: float | int) -> _ExactScores:
    parts = _flatten(reward)
    count = len(results[0].values)
    valid, failed, rest = np.zeros(count, bool), np.zeros(count, np.int8), iter(results)
    scores = {}
    for name, part in parts.rewards.items():
        own = list(islice(rest, len(_leaf_rewards(part))))
        scores[name] = (_compute_exact_scores if isinstance(part, Weighted) else _score_single)(
            part, own, max_failure_share
        )
        valid |= scores[name].valid
        failed = np.where(has_failed(failed) | (scores[name].failed == 0), failed, scores[name].failed)
    verdicts = np.stack([own.valid for own in scores.values()])
    weights = np.array([parts.weights[name] for name in scores], np.float64)
    total = parts.total(np.stack([own.total for own in scores.values()]), verdicts, weights)
    valid &= ~has_failed(failed)
    values = {name: np.where(own.valid, own.total, np.nan) for name, own in scores.items()}
    failures = {name: Failures(*map(sum, zip(*own.failures.values(), strict=True))) for name, own in scores.items()}
    decided = [own.correct for own in scores.values() if own.correct is not None]
    correct = np.where(valid, _all_correct(np.stack(decided)), np.float32(np.nan)) if decided else None
    return _ExactScores(np.where(valid, total, 0.0), valid, values, failures, failed, correct)


def _score_single(reward: Callable, results: Sequence[CallResult], max_failure_share: float | int) -> _ExactScores:
    """Compute the scores of a reward without parts from its only result, as `_compute_exact_scores` does for a `Weighted`."""
    (result,) = results
    check_failures(result, qualified_name(reward), max_failure_share)
    limit = lowest_correct_value(reward)
    right = np.where(result.valid, result.values > 0 if limit is None else result.values >= limit, np.float32(np.nan))
    correct = right.astype(np.float32) if is_verifier(reward) else None
    return _ExactScores(result.values, result.valid, {}, {"": result.failures}, result.failed, correct)


def _leaf_rewards(reward: Callable) -> list[Callable]:
    """Return the functions that a reward calls, in order: its parts, at any depth, or the reward itself."""
    if not isinstance(reward, Weighted):
        return [reward]
    return [leaf for part in reward.flatten().rewards.values() for leaf in _leaf_rewards(part)]


def _flatten(reward: Callable) -> Weighted:
    """Flatten a `Weighted`, or wrap any other reward as the only part of a sum, under the function's name."""
    if isinstance(reward, Weighted):
        return reward.flatten()
    name = short_name(reward)
    return Weighted({name: reward}, {name: 1.0})


def _all_correct(values: Float[np.ndarray, "V N"]) -> Float32[np.ndarray, "N"]:
    """Combine V verdicts per completion, ignoring NaN: 1 where all are positive, else 0; NaN where all are NaN."""
    known = ~np.isnan(values)
    return np.where(known.any(0), ((values > 0) | ~known).all(0), np.nan).astype(np.float32)


def score(
    reward: Callable,
    prompts: Sequence[str],
    completions: Sequence[str],
    columns: Mapping[str, Sequence],
    *,
    max_failure_share: float | int = MAX_FAILURE_SHARE,
) -> tuple[Float32[np.ndarray, "N"], Bool[np.ndarray, "N"]]:
    """Judge completions with a reward, and return only the combined reward; see `judge`.

    Args:
        reward: as in `judge`.
        prompts: N prompts.
        completions: one per prompt.
        columns: extra data by name, N entries each.
        max_failure_share: as in `judge`.

    Returns:
        The reward of each completion, 0 if it has none, and whether it has one.

    Raises:
        ValueError: in the same cases as for `judge`.
        InputError: in the same cases as for `judge`.

    Example:
        >>> values, valid = score(lambda completions: [len(c) or None for c in completions], ["a", "a"], ["bcd", ""], {})
        >>> values.tolist(), valid.tolist()
        ([3.0, 0.0], [True, False])
    """
    scores = judge(reward, prompts, completions, columns, max_failure_share=max_failure_share)
    return scores.total, scores.valid


def reads_text(reward: Callable) -> bool:
    """True if a reward reads prompts and completions as text, as all rewards that are built into rljax do.

    A reward made by `rljax.rewards.each.each` has an attribute `reads_text`, which depends on the function that it calls.

    Example:
        >>> from rljax.rewards import BY_NAME
        >>> reads_text(BY_NAME["exact"]), reads_text(functools.partial(BY_NAME["math"])), reads_text(len)
        (True, True, False)
    """
    while isinstance(reward, functools.partial):
        reward = reward.func
    return getattr(reward, "reads_text", qualified_name(reward).startswith("rljax."))


def convert_to_messages(
    prompts: Sequence[str], completions: Sequence[str], chats: Sequence[Messages | None]
) -> tuple[list[Any], list[Any]]:
    """Convert the prompts that are conversations to lists of messages, and their completions to lists of one message.

    Args:
        prompts: N prompts as text.
        completions: one per prompt.
        chats: the messages of each prompt; None for a prompt that is plain text.

    Returns:
        N prompts and N completions. Every message is a new dict, because a reward may change its arguments.

    Example:
        >>> convert_to_messages(["1+1", "2+2"], ["2", "4"], [[{"role": "user", "content": "1+1"}], None])
        ([[{'role': 'user', 'content': '1+1'}], '2+2'], [[{'role': 'assistant', 'content': '2'}], '4'])
    """
    chat_prompts = [
        text if chat is None else [dict(message) for message in chat] for text, chat in zip(prompts, chats, strict=True)
    ]
    chat_completions = [
        text if chat is None else [{"role": "assistant", "content": text}]
        for text, chat in zip(completions, chats, strict=True)
    ]
    return chat_prompts, chat_completions
