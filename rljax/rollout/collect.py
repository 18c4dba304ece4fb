"""Dynamic sampling: sample, drop what carries no signal, refill, carry the surplus over."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from rljax.rollout.groups import Groups, concatenate, take


class Collected(NamedTuple):
    """One rollout's worth of groups, and what it took to get them."""

    groups: Groups
    """The groups to train on: the wanted number, or fewer when the tries ran out."""
    surplus: Groups | None
    """Kept groups of this rollout beyond the wanted number, for the next one."""
    sampled: Groups
    """Everything that was sampled now, kept or not: what averages are taken over."""
    tries: int
    filtered_ratio: float
    """Share of the groups sampled now that were dropped."""
    complete: bool
    """Whether the wanted number was reached."""


def collect(
    sample: Callable[[], Groups],
    keep: Callable[[Groups], np.ndarray] | None,
    *,
    wanted: int,
    carried: Groups | None,
    max_tries: int,
) -> Collected:
    """Sample until `wanted` groups are kept.

    Fresh groups come first and carried ones fill up, so what is trained on is as new as can be. A carried group that is not
    needed is dropped: nothing is ever older than one rollout.

    Args:
        sample: draws a fresh set of groups at every call.
        keep: says which groups carry a signal, `[P]`; None keeps all.
        wanted: number of groups to return.
        carried: the surplus of the rollout before.
        max_tries: at most so many calls of `sample`.

    Returns:
        `Collected`; with `complete` False when the tries ran out first.
    """
    spare = 0 if carried is None else carried.count
    kept: list[Groups] = []
    sampled: list[Groups] = []
    while len(sampled) < max_tries:
        drawn = sample()
        sampled.append(drawn)
        kept.append(drawn if keep is None else take(drawn, np.asarray(keep(drawn))))
        if sum(part.count for part in kept) + spare >= wanted:
            break
    fresh = concatenate(kept)
    pool = fresh if carried is None else concatenate([fresh, carried])
    everything = concatenate(sampled)
    return Collected(
        groups=take(pool, slice(0, wanted)),
        surplus=take(fresh, slice(wanted, None)) if fresh.count > wanted else None,
        sampled=everything,
        tries=len(sampled),
        filtered_ratio=1 - fresh.count / everything.count,
        complete=pool.count >= wanted,
    )
