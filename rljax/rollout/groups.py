"""Groups of sampled and judged responses, as host arrays, and dynamic sampling, which keeps, drops or carries over groups.

Axes: P groups, G responses per group, L prompt slots (left-padded), T response slots (right-padded).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Bool, Float32, Int, Int8, Int16, Int32, Shaped

from rljax.algorithms import Rollout
from rljax.errors import InputError
from rljax.records import required
from rljax.rollout.engine_protocols import Response


class Groups(NamedTuple):
    """P groups of G responses: the rollout that algorithms read, the tokens, and the outcome of judging."""

    rollout: Rollout[np.ndarray]
    """Everything that algorithms read."""
    prompt_ids: Int[np.ndarray, "P"]
    """Index of each prompt among the training prompts; -1 for a padding group."""
    prompt_tokens: Int32[np.ndarray, "P L"]
    """Token ids of the prompts."""
    prompt_attention: Bool[np.ndarray, "P L"]
    """Which prompt slots contain a token."""
    tokens: Int32[np.ndarray, "P G T"]
    """Token ids of the responses, both sampled and observed."""
    attention: Bool[np.ndarray, "P G T"]
    """Which response slots contain a token; later tokens attend to these. `rollout.mask` marks the tokens that are trained on."""
    version: Int32[np.ndarray, "P G"]
    """Number of RL steps that the policy had been trained for when it sampled the response's first token."""
    turns: Int32[np.ndarray, "P G"]
    """Number of the policy's turns in each response; 0 for a missing response."""
    failed: Int8[np.ndarray, "P G"]
    """How judging the response failed: 0 for no failure, else the position in `rewards.correctness.Failures`, counted from 1."""
    kept: Int32[np.ndarray, "P G T N"] | None = None
    """Ids of the tokens that top-k and top-p kept at each token, padded with -1; None if they are not recorded."""
    experts: Int16[np.ndarray, "P G S Y C"] | None = None
    """The C experts that each of Y layers used for the token in each of S = L + T slots, -1 if unknown; None if they are not
    recorded."""
    metrics: dict[str, Float32[np.ndarray, "P G"]] | None = None
    """Metrics of the episodes of an environment; NaN if an episode has none."""
    token_version: Int32[np.ndarray, "P G T"] | None = None
    """`version` for each token, if the weights may change within a response; else None."""

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self.prompt_ids)

    @property
    def present(self) -> Bool[np.ndarray, "P G"]:
        """Mask of the responses that exist; a group may have fewer than G."""
        return np.asarray(self.attention.any(-1))


def sampled_versions(groups: Groups) -> Int32[np.ndarray, "N"]:
    """Return the version of each response, or of each token in the mask if `token_version` is known."""
    if groups.token_version is None:
        return groups.version[groups.present]
    return groups.token_version[groups.rollout.mask]


def correctness_masks(rollout: Rollout[np.ndarray]) -> tuple[Bool[np.ndarray, "P G"], Bool[np.ndarray, "P G"]]:
    """Return the mask of correct responses, and the mask of responses whose correctness is known.

    If a verifier or an environment reports correctness, it is known for the responses that it judged. Otherwise it is known for
    all responses with a reward, and a reward above 0 counts as correct.

    Example:
        >>> mask, rewards = np.ones((1, 3, 1), bool), np.array([[1.0, 0.2, 0.2]], np.float32)
        >>> rollout = Rollout(mask, np.zeros((1, 3, 1), np.float32), rewards, valid=np.ones((1, 3), bool))
        >>> [array.tolist() for array in correctness_masks(rollout)]
        [[[True, True, True]], [[True, True, True]]]
        >>> checked = rollout._replace(correct=np.array([[1.0, 0.0, np.nan]], np.float32))
        >>> [array.tolist() for array in correctness_masks(checked)]
        [[[True, False, False]], [[True, True, False]]]
    """
    valid = required(rollout.valid, "rollout.valid")
    if rollout.correct is None:
        return valid & (rollout.rewards > 0), valid
    return valid & (rollout.correct > 0), valid & ~np.isnan(rollout.correct)


def mean_parts_and_metrics(groups: Groups) -> dict[str, float]:
    """Return the mean of each part of a reward, as `reward_NAME`, and of each metric of an environment, as `episode_NAME`.

    Each mean is over the responses with a finite value.
    """
    named = {f"reward_{name}": array for name, array in (groups.rollout.reward_parts or {}).items()}
    named |= {f"episode_{name}": array for name, array in (groups.metrics or {}).items()}
    scores = {name: array[groups.present & np.isfinite(array)] for name, array in named.items()}
    return {name: float(values.mean(dtype=np.float64)) for name, values in scores.items() if values.size}


def concatenate(parts: Sequence[Groups]) -> Groups:
    """Join groups in order. If some groups lack correctness, a part of the reward or a metric, it is NaN in those groups."""
    if len(parts) > 1:
        reported = any(part.rollout.correct is not None for part in parts)
        names = dict.fromkeys(name for part in parts for name in part.rollout.reward_parts or {})
        metrics = dict.fromkeys(name for part in parts for name in part.metrics or {})
        parts = [_align(part, tuple(names), tuple(metrics), has_correct=reported) for part in parts]
    return jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)


def _align(groups: Groups, names: Sequence[str], metrics: Sequence[str], *, has_correct: bool) -> Groups:
    """Add the missing reward parts and metrics as NaN, and `correct` as well if it is missing and `has_correct` is True."""
    rollout, unknown = groups.rollout, np.full(groups.rollout.rewards.shape, np.nan, np.float32)
    rollout = rollout._replace(
        correct=unknown if has_correct and rollout.correct is None else rollout.correct,
        reward_parts={name: (rollout.reward_parts or {}).get(name, unknown) for name in names} or None,
    )
    return groups._replace(
        rollout=rollout, metrics={name: (groups.metrics or {}).get(name, unknown) for name in metrics} or None
    )


def take(groups: Groups, index: np.ndarray | slice) -> Groups:
    """Select groups."""
    return jax.tree.map(lambda array: array[index], groups)


def pad(groups: Groups, count: int) -> Groups:
    """Pad to `count` groups with groups that have no response tokens, no valid response and zero weight."""
    missing = count - groups.count

    def extend(array: np.ndarray) -> np.ndarray:
        return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])

    padded = jax.tree.map(extend, groups)
    padded.prompt_attention[groups.count :, -1] = True
    padded.prompt_ids[groups.count :] = -1
    return padded


def pad_responses(responses: Sequence[Response], length: int) -> dict[str, Shaped[np.ndarray, "N T *K"]]:
    """Lay responses out as right-padded arrays `[N, T]`: tokens, attention, mask and both log-probabilities.

    If the responses have sampling masks, these are in `kept`, `[N, T, K]`; if they have a version per token, it is in
    `token_version`.
    """
    floats = {"behaviour_logp": np.float32, "policy_logp": np.float32}
    dtypes: dict[str, Any] = {"tokens": np.int32, "attention": bool, "mask": bool, **floats}
    if responses and isinstance(responses[0].version, np.ndarray):
        dtypes["token_version"] = np.int32
    arrays: dict[str, np.ndarray] = {name: np.zeros((len(responses), length), dtype) for name, dtype in dtypes.items()}
    if responses and (first := responses[0].kept) is not None:
        arrays["kept"] = np.full((len(responses), length, first.shape[-1]), -1, np.int32)
    for row, response in enumerate(responses):
        end = len(response.tokens)
        arrays["attention"][row, :end] = True
        for name, values in response.token_arrays.items():
            known = np.where(response.mask, values, 0.0) if name in floats else values
            arrays["token_version" if name == "version" else name][row, :end] = known
    return arrays


def group_rows(
    rows: Shaped[np.ndarray, "N *X"], member: Bool[np.ndarray, "P G"], empty: float = 0
) -> Shaped[np.ndarray, "P G *X"]:
    """Arrange the rows of N responses as `[P, G]`: in order, at the entries in the mask `member`; `empty` fills the others."""
    grouped = np.full((*member.shape, *rows.shape[1:]), empty, rows.dtype)
    grouped[member] = rows
    return grouped


def to_dict(groups: Groups) -> dict[str, Any]:
    """Return a nested dict of the arrays that are not None, for a checkpoint."""
    present = {name: array for name, array in groups._asdict().items() if array is not None}
    return present | {"rollout": {name: array for name, array in groups.rollout._asdict().items() if array is not None}}


def from_dict(arrays: Mapping[str, Any]) -> Groups:
    """Restore groups from the dict that `to_dict` returned.

    Raises:
        InputError: the dict has the fields of another version of rljax.
    """
    other = (set(arrays) ^ set(Groups._fields)) - set(Groups._field_defaults)
    if other:
        raise InputError(
            f"These groups were saved by another version of rljax: they differ in the fields {', '.join(sorted(other))}. Continue "
            "with the version that saved them, or start a new run."
        )
    return Groups(**{**arrays, "rollout": Rollout(**arrays["rollout"])})


Position = TypeVar("Position")


def for_algorithm(groups: Groups) -> Rollout[np.ndarray]:
    """Return the rollout that algorithms read: `valid` is None if all responses have a reward; `reward_parts` is never None."""
    rollout = groups.rollout
    if rollout.reward_parts is None:
        rollout = rollout._replace(reward_parts={"reward": rollout.rewards})
    return rollout._replace(valid=None) if required(rollout.valid, "rollout.valid").all() else rollout


class Collected(NamedTuple):
    """The groups of one rollout, and how they were collected."""

    groups: Groups
    """The groups to train on: as many as requested, or fewer if the tries ran out."""
    surplus: Groups | None
    """Groups of this rollout that were kept but not needed; the next rollout may use them."""
    sampled: Groups
    """All groups sampled in this call, kept or not; metrics are averaged over these."""
    tries: int
    """Number of calls to `sample`."""
    filtered_ratio: float
    """Fraction of the groups sampled in this call that were dropped."""
    complete: bool
    """Whether `groups` has as many groups as requested."""


def collect(
    sample: Callable[[Position], tuple[Position, Groups]],
    place: Position,
    keep: Callable[[Groups], np.ndarray] | None,
    *,
    wanted: int,
    carried: Groups | None,
    max_tries: int,
) -> tuple[Position, Collected]:
    """Sample until there are `wanted` groups to train on, counting carried groups, or `max_tries` is reached.

    Fresh groups come first and carried groups fill the rest, so the training data is as recent as possible. A carried group
    that is not needed is dropped, so no group is ever older than one rollout.

    Args:
        sample: function that samples fresh groups, starting at a position such as an index into the prompts, and returns the
            position after these groups, and the groups.
        place: the position to start from.
        keep: function that returns which groups to keep, `[P]`, because they carry a training signal; None keeps all.
        wanted: number of groups to return.
        carried: the surplus of the previous rollout.
        max_tries: maximum number of calls to `sample`.

    Returns:
        The position after all sampled groups, and a `Collected`, whose `complete` is False if the tries ran out first.
    """
    spare = 0 if carried is None else carried.count
    kept: list[Groups] = []
    sampled: list[Groups] = []
    while len(sampled) < max_tries:
        place, groups = sample(place)
        sampled.append(groups)
        kept.append(groups if keep is None else take(groups, np.asarray(keep(groups))))
        if sum(part.count for part in kept) + spare >= wanted:
            break
    fresh = concatenate(kept)
    pool = fresh if carried is None else concatenate([fresh, carried])
    everything = concatenate(sampled)
    return place, Collected(
        groups=take(pool, slice(0, wanted)),
        surplus=take(fresh, slice(wanted, None)) if fresh.count > wanted else None,
        sampled=everything,
        tries=len(sampled),
        filtered_ratio=1 - fresh.count / everything.count,
        complete=pool.count >= wanted,
    )
