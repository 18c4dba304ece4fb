"""Transcripts: a few responses of a step with their turns, tokens, log-probabilities, advantages and ratios, as JSON rows.

The fields `tokens`, `kinds`, `logp`, `advantage` and `ratio` have one entry per token; `spans` divides the tokens into turns.

Axes: P groups, G responses per group, T response slots; B = P*G rows.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from rljax.algorithms import Batch
from rljax.data.token_texts import full_text, token_texts
from rljax.data.tool_calls import read_turn
from rljax.models import Scores
from rljax.records import required
from rljax.rewards.correctness import Failures
from rljax.rewards.reward_call import has_failed
from rljax.rollout.environment import read_call_settings
from rljax.rollout.groups import Collected, Groups, correctness_masks
from rljax.rollout.layout import Sequences
from rljax.rollout.worker import RolloutWorker

LOGGED_RESPONSES = 8
"""Number of responses that a run writes each time it logs samples, unless its settings say otherwise."""
PER_GROUP = 2
"""Number of responses per group: the one with the highest reward, and the one with the lowest."""
MAX_TOKENS = 4096
"""Largest number of response tokens in a JSON row; the middle of a longer response is left out."""
MAX_CHARACTERS = 8000
"""Largest number of characters of a prompt or of a call's arguments in a JSON row; the middle of a longer text is left out."""
QUESTION_CHARACTERS = 200
"""Largest number of characters of the problem's text in a JSON row; lists of responses show this text."""
TRAINED, SAMPLED, OBSERVED = "t", "s", "o"
"""Kinds of tokens: sampled by the policy and trained on; sampled but not trained on; observed from the environment."""
ROLES = (
    (re.compile(r"<tool_response>|\[TOOL_RESULTS\]|<｜tool▁output▁begin｜>|<\|start_header_id\|>ipython"), "tool"),
    (re.compile(r"<\|im_start\|>(\w+)|<\|start_header_id\|>(\w+)|<start_of_turn>(\w+)"), None),
    (re.compile(r"\[INST\]|<｜User｜>"), "user"),
)
"""Pairs of a chat template's markup and the role of the message that it opens; None if the markup contains the role."""
OWN_ROLES = ("assistant", "model")
POLICY, ENVIRONMENT = "policy", "environment"

Row = dict[str, Any]


class ResponseLocation(NamedTuple):
    """The place of one response in the groups of a step."""

    groups: Groups
    """The groups that contain the response."""
    group: int
    """Index of the response's group in `groups`."""
    member: int
    """Index of the response in its group."""
    is_trained: bool
    """Whether the step trained on this group."""


def choose(trained: Groups, sampled: Groups, count: int) -> list[ResponseLocation]:
    """Choose responses of a step to log: the best and the worst response of each of the first groups.

    If dynamic sampling dropped groups, up to a quarter of the responses come from these, or more if the other groups have too few.

    Args:
        trained: the groups that the step trained on.
        sampled: all groups that the step sampled.
        count: maximum number of responses.
    """
    kept = set(trained.prompt_ids.tolist())
    dropped = [group for group in range(sampled.count) if sampled.prompt_ids[group] not in kept]
    learned = [
        ResponseLocation(trained, group, member, True)
        for group in range(trained.count)
        for member in extremes(trained, group)
    ]
    others = [ResponseLocation(sampled, group, member, False) for group in dropped for member in extremes(sampled, group)]
    quota = max(count - len(learned), min(count // 4, len(others)))
    return learned[: count - quota] + others[:quota]


def extremes(groups: Groups, group: int) -> list[int]:
    """Return the indices of a group's responses with the highest and the lowest reward; no reward counts as the lowest."""
    valid = required(groups.rollout.valid, "rollout.valid")[group]
    members = np.flatnonzero(groups.present[group])
    rewards = np.where(valid, groups.rollout.rewards[group], -np.inf)[members]
    order = members[np.argsort(-rewards, kind="stable")].tolist()
    return order if len(order) <= PER_GROUP else [order[0], order[-1]]


def sequences_at(places: Sequence[ResponseLocation]) -> Sequences:
    """Return the chosen responses as sequences, in the same order."""
    rollouts = [place.groups.rollout for place in places]
    logps = [required(rollout.policy_logp, "rollout.policy_logp") for rollout in rollouts]
    kept = [place.groups.kept for place in places]
    return Sequences(
        np.stack([place.groups.prompt_tokens[place.group] for place in places]),
        np.stack([place.groups.prompt_attention[place.group] for place in places]),
        np.stack([place.groups.tokens[place.group, place.member] for place in places]),
        np.stack([place.groups.attention[place.group, place.member] for place in places]),
        np.stack([logp[place.group, place.member] for logp, place in zip(logps, places, strict=True)]),
        kept=None
        if any(array is None for array in kept)
        else np.stack([required(a, "kept")[p.group, p.member] for a, p in zip(kept, places, strict=True)]),
    )


def make_rows(
    worker: RolloutWorker,
    places: Sequence[ResponseLocation],
    batch: Batch[np.ndarray] | None,
    logp_after: Float[np.ndarray, "N T"],
    *,
    step: int,
) -> list[Row]:
    """Convert responses of a step to JSON rows.

    ::

        ratio_t = exp(logp_after_t - old_logp_t)

    Args:
        worker: the worker that sampled the responses, with its problems, tokenizer and environment.
        places: the N responses.
        batch: the batch prepared from the trained groups; None if none of the responses is in these groups.
        logp_after: log-probability of each token under the policy after the step's updates, in nats.
        step: number of RL steps done, including this one.

    Returns:
        A row per response. `logp` is the log-probability under the policy before the updates, in nats. `advantage` has the unit
        that the algorithm uses, and is None at tokens that are not trained on. `ratio` is the probability after the updates,
        divided by the denominator of the algorithm's ratio. All three are None at observations.
    """
    return [_row(worker, place, batch, after, step) for place, after in zip(places, logp_after, strict=True)]


def _row(
    worker: RolloutWorker,
    place: ResponseLocation,
    batch: Batch[np.ndarray] | None,
    after: Float[np.ndarray, "T"],
    step: int,
) -> Row:
    groups, group, member, _ = place
    rollout = groups.rollout
    at = np.flatnonzero(groups.attention[group, member])
    length = len(at)
    half = MAX_TOKENS // 2
    at = at if length <= MAX_TOKENS else np.concatenate([at[:half], at[-half:]])
    ids = groups.tokens[group, member][at].tolist()
    values = _token_values(place, batch, after)
    sampled, trained = rollout.mask[group, member][at].astype(bool), values.trained[at]
    kinds = "".join(TRAINED if t else SAMPLED if s else OBSERVED for s, t in zip(sampled, trained, strict=True))
    texts = token_texts(worker.judge.tokenizer, ids)
    ends = np.isin(ids, worker.sampling.eos_ids)
    problem = worker.prompts.problems[groups.prompt_ids[group]]
    prompt = groups.prompt_tokens[group][groups.prompt_attention[group]].tolist()
    right, known = correctness_masks(rollout)
    valid, failure_code = required(rollout.valid, "rollout.valid")[group, member], int(groups.failed[group, member])
    is_failure = has_failed(groups.failed[group])[member]
    return {
        "step": step,
        "problem": int(groups.prompt_ids[group]),
        "member": member,
        "sampled_at": int(groups.version[group, member]),
        **token_versions(groups, group, member),
        "trained": place.is_trained,
        "prompt": shorten_middle(full_text(worker.judge.tokenizer, prompt)),
        "question": shorten_middle(problem.prompt, QUESTION_CHARACTERS),
        "answer": None if problem.answer is None else str(problem.answer),
        "reward": _round_or_none(rollout.rewards[group, member]) if valid else None,
        "correct": bool(right[group, member]) if known[group, member] and rollout.correct is not None else None,
        "failure": Failures._fields[failure_code - 1] if is_failure else None,
        "remark": Failures._fields[failure_code - 1] if failure_code and not is_failure else None,
        "truncated": bool(required(rollout.truncated, "rollout.truncated")[group, member]),
        "turns": int(groups.turns[group, member]),
        "length": length,
        "parts": _values_by_name(rollout.reward_parts if len(rollout.reward_parts or ()) > 1 else None, group, member),
        "metrics": _values_by_name(groups.metrics, group, member),
        **({} if length <= MAX_TOKENS else {"left_out": {"at": half, "tokens": length - MAX_TOKENS}}),
        "spans": list(_turn_spans(worker, ids, texts, sampled, ends)),
        "tokens": texts,
        "kinds": kinds,
        "logp": _round_known(values.logp[at], sampled, digits=4),
        "advantage": _round_known(values.advantage[at], trained),
        "ratio": _round_known(values.ratio[at], sampled),
    }


def token_versions(groups: Groups, group: int, member: int) -> dict[str, list[list[int]]]:
    """Return runs of tokens that the same weights sampled, each as [RL steps, number of tokens]; {} if they are not known."""
    if groups.token_version is None:
        return {}
    versions = groups.token_version[group, member][groups.attention[group, member]].tolist()
    return {"token_versions": [[version, len(list(run))] for version, run in groupby(versions)]}


class _TokenValues(NamedTuple):
    """Values at the tokens of one response, `[T]`."""

    trained: Bool[np.ndarray, "T"]
    logp: Float[np.ndarray, "T"]
    advantage: Float[np.ndarray, "T"]
    ratio: Float[np.ndarray, "T"]


def _token_values(place: ResponseLocation, batch: Batch[np.ndarray] | None, after: Float[np.ndarray, "T"]) -> _TokenValues:
    """Return the values at a response's tokens. The batch has no log-probabilities for a response without a reward."""
    groups, group, member, is_trained = place
    row = group * groups.tokens.shape[1] + member
    logp = old = required(groups.rollout.policy_logp, "rollout.policy_logp")[group, member]
    trained, advantage = np.zeros(logp.shape, bool), np.zeros(logp.shape, np.float32)
    if batch is not None and is_trained:
        trained, advantage = np.asarray(batch.mask[row], bool), np.asarray(batch.advantage[row])
    if batch is not None and is_trained and required(groups.rollout.valid, "rollout.valid")[group, member]:
        logp, old = np.asarray(batch.policy_logp[row]), np.asarray(batch.old_logp[row])
    with np.errstate(over="ignore", invalid="ignore"):  # the values of a diverged run may overflow
        return _TokenValues(trained, logp, advantage, np.exp(np.asarray(after, np.float64) - old))


def _turn_spans(
    worker: RolloutWorker,
    ids: Sequence[int],
    texts: Sequence[str],
    sampled: Bool[np.ndarray, "N"],
    ends: Bool[np.ndarray, "N"],
) -> Iterator[Row]:
    """Divide the tokens into the policy's turns and the observations between them."""
    has_tools = worker.environment is not None and bool(read_call_settings(worker.environment).tools)
    is_first = True
    for start, end in find_boundaries(sampled, ends):
        if not sampled[start]:
            yield {"role": observed_role("".join(texts[start:end])), "start": start, "end": end}
            continue
        span: Row = {"role": POLICY, "start": start, "end": end}
        if has_tools:
            turn = read_turn(worker.judge.tokenizer, ids[start:end], is_first=is_first)
            calls = [{"name": call.name, "arguments": _as_json(call.arguments)} for call in turn.calls]
            span |= {"calls": calls} if calls else {}
            span |= {"malformed": list(turn.malformed)} if turn.malformed else {}
        is_first = False
        yield span


def _as_json(arguments: Mapping[str, Any]) -> str:
    """Convert the arguments of a call to text, because a model may write values that JSON rows cannot contain, such as NaN."""
    try:
        return shorten_middle(json.dumps(arguments, ensure_ascii=False))
    except RecursionError:
        return "nested too deeply to be written"


def find_boundaries(sampled: Bool[np.ndarray, "N"], ends: Bool[np.ndarray, "N"]) -> list[tuple[int, int]]:
    """Return the slice of each turn and each observation: the index of its first token, and one more than that of its last token.

    Args:
        sampled: whether the policy sampled each token.
        ends: whether each token ends a turn.

    Example:
        >>> find_boundaries(np.array([1, 1, 0, 0, 1, 1], bool), np.array([0, 1, 0, 1, 1, 0], bool))
        [(0, 2), (2, 4), (4, 5), (5, 6)]
    """
    changes = (sampled[1:] != sampled[:-1]) | (sampled[1:] & ends[:-1])
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(sampled)]
    return list(pairwise(edges))


def observed_role(text: str) -> str:
    """Return the roles of the messages in an observation, read from the chat template's markup; "environment" without markup.

    Example:
        >>> observed_role("<|im_end|>\\n<|im_start|>user\\nhigher<|im_end|>\\n<|im_start|>assistant\\n"), observed_role("higher")
        ('user', 'environment')
    """
    for pattern, role in ROLES:
        found = [role or next(filter(None, match.groups())) for match in pattern.finditer(text)]
        roles = [name for name in dict.fromkeys(found) if name not in OWN_ROLES]
        if roles:
            return " and ".join(roles)
    return ENVIRONMENT


def shorten_middle(text: str, most: int = MAX_CHARACTERS) -> str:
    """Shorten a long text by leaving out its middle.

    Example:
        >>> shorten_middle("0123456789", 4)
        '01… 6 characters left out …89'
    """
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}… {len(text) - 2 * half} characters left out …{text[-half:]}"


def _values_by_name(arrays: Mapping[str, np.ndarray] | None, group: int, member: int) -> dict[str, float]:
    """Return the values of a response by name; missing values (NaN) are left out."""
    found = {name: _round_or_none(array[group, member]) for name, array in (arrays or {}).items()}
    return {name: value for name, value in found.items() if value is not None}


def _round_known(values: np.ndarray, known: Bool[np.ndarray, "N"], *, digits: int | None = None) -> list[float | None]:
    """Round values to `digits` decimals, or to five significant digits; unknown and non-finite values become None."""
    return [_round_or_none(value, digits) if is_known else None for value, is_known in zip(values, known, strict=True)]


def _round_or_none(value: float | np.floating[Any], digits: int | None = None) -> float | None:
    number = float(value)
    if not np.isfinite(number):
        return None
    rounded = round(number, digits) if digits is not None else float(f"{number:.5g}")
    return rounded + 0.0  # turns -0.0 into 0.0


def rollout_rows(
    worker: RolloutWorker,
    collected: Collected,
    batch: Batch[np.ndarray],
    score: Callable[[Sequences], Scores],
    *,
    step: int,
    count: int,
) -> list[Row]:
    """Choose responses of a step, score them after its updates, and convert them to JSON rows.

    Args:
        worker: the worker that sampled the responses.
        collected: the groups that the step sampled, and those that it trained on.
        batch: the batch prepared from the groups that the step trained on.
        score: function that scores responses under the policy after the updates.
        step: number of RL steps done, including this one.
        count: maximum number of responses.
    """
    places = choose(collected.groups, collected.sampled, count)
    return make_rows(worker, places, batch, np.asarray(score(sequences_at(places)).logp), step=step) if places else []
