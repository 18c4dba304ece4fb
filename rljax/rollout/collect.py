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
    """Kept groups beyond the wanted number, for the next rollout."""
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

    Args:
        sample: draws a fresh set of groups at every call.
        keep: says which groups carry a signal, `[P]`; None keeps all.
        wanted: number of groups to return.
        carried: kept groups left over by the rollout before; they are used first.
        max_tries: at most so many calls of `sample`. At least one is made, so that no rollout is wholly stale.

    Returns:
        `Collected`; with `complete` False when the tries ran out first.
    """
    kept = [] if carried is None else [carried]
    sampled: list[Groups] = []
    dropped = 0
    while len(sampled) < max_tries:
        fresh = sample()
        sampled.append(fresh)
        chosen = np.ones(fresh.count, bool) if keep is None else np.asarray(keep(fresh))
        dropped += int((~chosen).sum())
        kept.append(take(fresh, chosen))
        if sum(part.count for part in kept) >= wanted:
            break
    pool = concatenate(kept)
    everything = concatenate(sampled)
    return Collected(
        groups=take(pool, slice(0, wanted)),
        surplus=take(pool, slice(wanted, None)) if pool.count > wanted else None,
        sampled=everything,
        tries=len(sampled),
        filtered_ratio=dropped / everything.count,
        complete=pool.count >= wanted,
    )
