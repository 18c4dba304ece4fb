"""Batches by length: prompts drawn from bins of length, and fewer responses where they are long, all under a budget of tokens.

Whether a rollout is large is a matter of its tokens, not of its responses. Both halves are pure functions: of a position, as every
order of prompts is, and of the lengths that are expected.
"""

from collections.abc import Sequence
from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from rljax.data.measure import PERCENTILES, bins_of
from rljax.data.prompts import PromptStream
from rljax.errors import InputError
from rljax.ops.unpublished.length import adaptive_group_size

BINS = len(PERCENTILES) + 1


class LengthStream(PromptStream):
    """An endless order of records in which each comes from a bin of length that is drawn first.

    The bins end at the 25th, 50th, 75th and 95th percentile of length. Within a bin the order is shuffled anew in each epoch, an
    epoch being as many draws as there are records. What stands at a position depends on the lengths, the weights and the seed
    alone.

    Args:
        records: what to serve, for instance `range(n)`.
        lengths: how long each record is, in any unit, at least 1.
        weights: p(ℓ), how likely each of the five bins is drawn from, in any scale. Bins without records are left out.
        seed: of the draws and of the orders, from 0 on.

    Raises:
        InputError: no records, not one length a record, a length below 1, a negative seed, or weights that are not five numbers of
            0 or more with one above 0 at a bin that has records.

    Example:
        >>> stream = LengthStream(range(5), [10, 20, 30, 40, 50], weights=[0, 0, 1, 0, 1], seed=0)
        >>> stream.indices(0, 8)
        [4, 3, 3, 3, 4, 4, 4, 4]

    Source:
        Unpublished: Algorithm 3 of the design document, steps 2, 4 and 5, which leave p(ℓ) open.
    """

    def __init__(self, records: Sequence, lengths: Sequence[int], *, weights: Sequence[float], seed: int):
        super().__init__(records, seed=seed)
        if len(lengths) != len(records) or min(lengths) < 1:
            raise InputError(
                f"batches by length need a length of 1 or more for each record; got {len(lengths)} lengths for "
                f"{len(records)} records, the least of them {min(lengths, default=0)}."
            )
        bins = np.asarray(bins_of(lengths)[0])
        sizes = np.bincount(bins, minlength=BINS)
        given = np.asarray(weights, float)
        fits = given.shape == (BINS,) and np.isfinite(given).all() and (given >= 0).all() and given[sizes > 0].sum() > 0
        if not fits:
            raise InputError(
                f"the weights of the length bins are {tuple(weights)}; give {BINS} numbers of 0 or more, with one above 0 at a bin "
                f"that has prompts (they have {sizes.tolist()})."
            )
        members = tuple(np.flatnonzero(bins == number) for number in range(BINS))
        self._order = _Order(members, np.where(sizes > 0, given, 0.0), seed)


class _Order:
    """Which record stands at each position; the two epochs asked for last are kept."""

    def __init__(self, members: tuple[Int[np.ndarray, "n"], ...], weights: Float[np.ndarray, "K"], seed: int):
        self._size = sum(map(len, members))
        self._epoch = lru_cache(maxsize=2)(lambda epoch: _epoch_order(members, weights, (seed, epoch)))

    def __getitem__(self, position: int) -> int:
        epoch, place = divmod(position, self._size)
        return int(self._epoch(epoch)[place])


def _epoch_order(
    members: Sequence[Int[np.ndarray, "n"]], weights: Float[np.ndarray, "K"], seed: tuple[int, int]
) -> Int[np.ndarray, "N"]:
    """One epoch: a bin for every draw, and the next of its shuffled records; a bin that runs out begins again."""
    random = np.random.default_rng(seed)
    drawn = random.choice(len(members), size=sum(map(len, members)), p=weights / weights.sum())
    order = np.zeros(len(drawn), np.int64)
    for number, part in enumerate(members):
        places = np.flatnonzero(drawn == number)
        if len(places):
            shuffled = random.permutation(part)
            order[places] = shuffled[np.arange(len(places)) % len(part)]
    return order


def group_sizes(lengths: Float[np.ndarray, "P"], *, budget: int, most: int, floor: int = 2) -> Int[np.ndarray, "P"]:
    """Say how many responses each prompt of a rollout gets, so that all prompts take like shares of a budget of tokens.

    ::

        G(ℓ) = min(most, max(floor, ⌊B / (P ℓ)⌋))

    which is Eq. 27 of the design document with G_base · L_ref = B / P. All responses together are expected to take at most B
    tokens, unless `floor` of the longest take more than a share.

    Args:
        lengths: ℓ, expected tokens of a response to each of the P prompts, at least 1 each.
        budget: B, response tokens of all P prompts.
        most: the largest group. The document has no such limit, and would give 409 responses to a prompt of 10 tokens.
        floor: the smallest group; the document's 1 has no advantage, hence 2.

    Returns:
        `[P]`, responses.

    Raises:
        ValueError: whatever `rljax.ops.unpublished.length.adaptive_group_size` refuses, a `most` below `floor`, no prompts, or
            a budget that is less than a token a prompt.

    Example:
        >>> group_sizes(np.array([10.0, 100.0, 900.0]), budget=1200, most=16).tolist()
        [16, 4, 2]

    Source:
        Unpublished: Eq. 27 of the design document, under the budget T_max of its Algorithm 3.
    """
    if most < floor:
        raise ValueError(f"most must be at least floor={floor}, got {most}")
    if not len(lengths) or budget < len(lengths):
        raise ValueError(f"budget must be at least a token for each of 1 or more prompts, got {budget} for {len(lengths)}")
    share = budget // len(lengths)
    sizes = adaptive_group_size(jnp.asarray(lengths, jnp.float32), base=1, reference=share, floor=floor)
    return np.minimum(np.asarray(sizes, np.int64), most)
