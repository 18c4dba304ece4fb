"""Sampled and judged groups as host arrays. Dynamic sampling keeps, drops and carries them over.

Axes: P groups, G responses of a group, L prompt slots (left-padded), T response slots (right-padded).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Int, Int8, Int32, Shaped

from rljax.algorithms import Rollout
from rljax.errors import InputError
from rljax.records import documented, required
from rljax.rollout.request import Response


@documented
class Groups(NamedTuple):
    """P groups of G responses: the rollout that algorithms read, the tokens, and the outcome of judging."""

    rollout: Rollout[np.ndarray]
    """All that algorithms read."""
    prompt_ids: Int[np.ndarray, "P"]
    """Index of each prompt among the training prompts; -1 for a padding group."""
    prompt_tokens: Int32[np.ndarray, "P L"]
    """Token ids of the prompts."""
    prompt_attention: Bool[np.ndarray, "P L"]
    """Which prompt slots hold a token."""
    tokens: Int32[np.ndarray, "P G T"]
    """Token ids of the responses, drawn and observed."""
    attention: Bool[np.ndarray, "P G T"]
    """Which response slots hold a token, which later tokens see. `rollout.mask` says which of them are trained on."""
    version: Int32[np.ndarray, "P G"]
    """RL steps that the sampling policy had made."""
    turns: Int32[np.ndarray, "P G"]
    """Turns of the policy in each response; 0 where there is no response."""
    failed: Int8[np.ndarray, "P G"]
    """How judging the response failed: 0 for no failure, else the position in `rewards.failure.Failures`, counted from 1."""

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self.prompt_ids)

    @property
    def present(self) -> Bool[np.ndarray, "P G"]:
        """Mask of the places that hold a response; a group may have fewer than G."""
        return np.asarray(self.attention.any(-1))


def right_and_known(rollout: Rollout[np.ndarray]) -> tuple[Bool[np.ndarray, "P G"], Bool[np.ndarray, "P G"]]:
    """Masks of the responses that are right, and of those for which this is known.

    With a verifier, those on which it has an opinion are known. Without one, those that have a reward are, and a reward above 0 is
    right.

    Example:
        >>> mask, rewards = np.ones((1, 3, 1), bool), np.array([[1.0, 0.2, 0.2]], np.float32)
        >>> rollout = Rollout(mask, np.zeros((1, 3, 1), np.float32), rewards, valid=np.ones((1, 3), bool))
        >>> [array.tolist() for array in right_and_known(rollout)]
        [[[True, True, True]], [[True, True, True]]]
        >>> checked = rollout._replace(correct=np.array([[1.0, 0.0, np.nan]], np.float32))
        >>> [array.tolist() for array in right_and_known(checked)]
        [[[True, False, False]], [[True, True, False]]]
    """
    valid = required(rollout.valid, "rollout.valid")
    if rollout.correct is None:
        return valid & (rollout.rewards > 0), valid
    return valid & (rollout.correct > 0), valid & ~np.isnan(rollout.correct)


def part_means(groups: Groups) -> dict[str, float]:
    """Mean of each part of a reward with several parts, over the responses that have it, by the name `reward_PART`."""
    parts = {} if groups.rollout.reward_parts is None else groups.rollout.reward_parts
    scores = {name: array[np.isfinite(array)] for name, array in parts.items()}
    return {f"reward_{name}": float(values.mean(dtype=np.float64)) for name, values in scores.items() if values.size}


def concatenate(parts: Sequence[Groups]) -> Groups:
    """Join groups in order."""
    return jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)


def take(groups: Groups, index: np.ndarray | slice) -> Groups:
    """Select groups."""
    return jax.tree.map(lambda array: array[index], groups)


def pad(groups: Groups, count: int) -> Groups:
    """Append groups without tokens or a valid response, whose weight is zero, up to `count` groups."""
    missing = count - groups.count

    def extend(array: np.ndarray) -> np.ndarray:
        return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])

    padded = jax.tree.map(extend, groups)
    padded.prompt_attention[groups.count :, -1] = True
    padded.prompt_ids[groups.count :] = -1
    return padded


def padded_responses(responses: Sequence[Response], length: int) -> dict[str, Shaped[np.ndarray, "N T"]]:
    """Lay responses out as arrays `[N, T]`, padded on their right: tokens, attention, mask and both log-probabilities."""
    arrays = {
        "tokens": np.zeros((len(responses), length), np.int32),
        "attention": np.zeros((len(responses), length), bool),
        "mask": np.zeros((len(responses), length), bool),
        "behaviour_logp": np.zeros((len(responses), length), np.float32),
        "policy_logp": np.zeros((len(responses), length), np.float32),
    }
    for row, response in enumerate(responses):
        end = len(response.tokens)
        arrays["tokens"][row, :end] = response.tokens
        arrays["attention"][row, :end] = True
        arrays["mask"][row, :end] = response.mask
        for name in ("behaviour_logp", "policy_logp"):
            arrays[name][row, :end] = np.where(response.mask, getattr(response, name), 0.0)
    return arrays


def grouped(
    rows: Shaped[np.ndarray, "N *X"], member: Bool[np.ndarray, "P G"], empty: float = 0
) -> Shaped[np.ndarray, "P G *X"]:
    """Put the rows where the groups have responses; the other places hold `empty`."""
    places = np.full((*member.shape, *rows.shape[1:]), empty, rows.dtype)
    places[member] = rows
    return places


def to_dict(groups: Groups) -> dict[str, Any]:
    """Nested dict of the arrays that are not None, for a checkpoint."""
    present = {name: array for name, array in groups._asdict().items() if array is not None}
    return present | {"rollout": {name: array for name, array in groups.rollout._asdict().items() if array is not None}}


def from_dict(arrays: Mapping[str, Any]) -> Groups:
    """Make the groups from the dict that `to_dict` returned.

    Raises:
        InputError: the fields are those of another version.
    """
    other = set(arrays) ^ set(Groups._fields)
    if other:
        raise InputError(
            f"These groups were saved by another version of rljax: they differ in {', '.join(sorted(other))}. Go on with the "
            "version that saved them, or begin a new run."
        )
    return Groups(**{**arrays, "rollout": Rollout(**arrays["rollout"])})
