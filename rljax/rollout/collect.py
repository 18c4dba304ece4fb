"""Dynamic sampling: sample groups, drop those without a training signal, refill, and carry the surplus over."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from rljax.rollout.groups import Groups, concatenate, take

Place = TypeVar("Place")


class Collected(NamedTuple):
    """The groups of one rollout, and how they were collected."""

    groups: Groups
    """The groups to train on: as many as requested, or fewer if the tries ran out."""
    surplus: Groups | None
    """Groups of this rollout that were kept but not needed; the next rollout may use them."""
    sampled: Groups
    """All groups sampled in this call, kept or not; averages are taken over these."""
    tries: int
    """Number of calls that sampled groups."""
    filtered_ratio: float
    """Fraction of the groups sampled in this call that were dropped."""
    complete: bool
    """Whether there are as many groups as requested."""


def collect(
    sample: Callable[[Place], tuple[Place, Groups]],
    place: Place,
    keep: Callable[[Groups], np.ndarray] | None,
    *,
    wanted: int,
    carried: Groups | None,
    max_tries: int,
) -> tuple[Place, Collected]:
    """Sample until `wanted` groups are kept.

    Fresh groups come first and carried groups fill the rest, so the training data is as recent as possible. A carried group
    that is not needed is dropped, so no group is ever older than one rollout.

    Args:
        sample: samples fresh groups from a starting place, such as a position in the prompts, and also returns the place after
            them.
        place: the place to start from.
        keep: returns which groups carry a training signal, `[P]`; None keeps all.
        wanted: number of groups to return.
        carried: the surplus of the previous rollout.
        max_tries: largest number of calls to `sample`.

    Returns:
        The place after all sampled groups, and a `Collected`, whose `complete` is False if the tries ran out first.
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
