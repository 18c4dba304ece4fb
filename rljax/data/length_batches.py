"""Batches by length under a token budget: prompts sampled from length bins, and smaller groups for longer responses.

The budget limits the tokens of a rollout, not the number of its responses. `LengthStream` maps a position to a record, as every
`PromptStream` does, and `group_sizes` maps expected lengths to group sizes; neither has any other state.
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
    """An endless order of records: each position samples a length bin, then takes a record from that bin.

    The bins end at the 25th, 50th, 75th and 95th percentile of length. An epoch samples as many records as there are, and the
    order within a bin is shuffled again in each epoch. The record at a position depends only on the lengths, the weights and the
    seed.

    Args:
        records: the records, for instance `range(n)`.
        lengths: the length of each record, in any unit, at least 1.
        weights: p(ℓ), the relative probability of each of the five bins. Bins without records are ignored.
        seed: the seed of sampling and shuffling, 0 or more.

    Raises:
        InputError: there are no records, not one length per record, a length below 1, or a negative seed; or the weights are not
            five numbers of 0 or more, with one above 0 for a bin that has records.

    Example:
        >>> stream = LengthStream(range(5), [10, 20, 30, 40, 50], weights=[0, 0, 1, 0, 1], seed=0)
        >>> stream.indices(0, 8)
        [4, 3, 3, 3, 4, 4, 4, 4]

    Source:
        Unpublished: Algorithm 3 of the design document, steps 2, 4 and 5, which do not specify p(ℓ).
    """

    def __init__(self, records: Sequence, lengths: Sequence[int], *, weights: Sequence[float | int], seed: int):
        super().__init__(records, seed=seed)
        if len(lengths) != len(records) or min(lengths) < 1:
            raise InputError(
                f"batches by length need a length of 1 or more for each record; got {len(lengths)} lengths for "
                f"{len(records)} records, and the smallest length is {min(lengths, default=0)}."
            )
        bins = np.asarray(bins_of(lengths)[0])
        sizes = np.bincount(bins, minlength=BINS)
        shares = np.asarray(weights, float)
        valid = (
            shares.shape == (BINS,) and np.isfinite(shares).all() and (shares >= 0).all() and shares[sizes > 0].sum() > 0
        )
        if not valid:
            raise InputError(
                f"the weights of the length bins are {tuple(weights)}; give {BINS} numbers of 0 or more, with one above 0 for a "
                f"bin that has prompts (the bins have {sizes.tolist()} prompts)."
            )
        members = tuple(np.flatnonzero(bins == number) for number in range(BINS))
        self._order = _Order(members, np.where(sizes > 0, shares, 0.0), seed)


class _Order:
    """The record index at each position. The two most recently used epochs are cached."""

    def __init__(self, members: tuple[Int[np.ndarray, "_"], ...], weights: Float[np.ndarray, "K"], seed: int):
        self._size = sum(map(len, members))
        self._epoch = lru_cache(maxsize=2)(lambda epoch: _epoch_order(members, weights, (seed, epoch)))

    def __getitem__(self, position: int) -> int:
        epoch, offset = divmod(position, self._size)
        return int(self._epoch(epoch)[offset])


def _epoch_order(
    members: Sequence[Int[np.ndarray, "_"]], weights: Float[np.ndarray, "K"], seed: tuple[int, int]
) -> Int[np.ndarray, "N"]:
    """Sample a bin per position of one epoch, then take the bin's next shuffled record; a bin that runs out starts over."""
    random = np.random.default_rng(seed)
    sampled_bins = random.choice(len(members), size=sum(map(len, members)), p=weights / weights.sum())
    order = np.zeros(len(sampled_bins), np.int64)
    for number, bin_records in enumerate(members):
        positions = np.flatnonzero(sampled_bins == number)
        if len(positions):
            shuffled = random.permutation(bin_records)
            order[positions] = shuffled[np.arange(len(positions)) % len(bin_records)]
    return order


def group_sizes(lengths: Float[np.ndarray, "P"], *, budget: int, most: int, floor: int = 2) -> Int[np.ndarray, "P"]:
    """Compute the group size of each prompt in a rollout, so that all prompts use equal shares of a token budget.

    ::

        G(ℓ) = min(most, max(floor, ⌊B / (P ℓ)⌋))

    This is Eq. 27 of the design document with G_base · L_ref = B / P. The expected total is at most B tokens, unless `floor`
    responses to one prompt already exceed that prompt's share.

    Args:
        lengths: ℓ, the expected number of tokens of a response to each of the P prompts, at least 1.
        budget: B, the number of response tokens for all P prompts.
        most: the largest group size. Eq. 27 has no maximum, and would give 409 responses to a prompt whose ℓ is 10 tokens.
        floor: the smallest group size. Eq. 27 allows 1, but a group of one response has no advantage.

    Returns:
        `[P]`, group sizes.

    Raises:
        ValueError: `rljax.ops.unpublished.length.adaptive_group_size` rejects a value, `most` is below `floor`, there are no
            prompts, or the budget is less than one token per prompt.

    Example:
        >>> group_sizes(np.array([10.0, 100.0, 900.0]), budget=1200, most=16).tolist()
        [16, 4, 2]

    Source:
        Unpublished: Eq. 27 of the design document, under the budget T_max of its Algorithm 3.
    """
    if most < floor:
        raise ValueError(f"most must be at least floor={floor}, got {most}")
    if not len(lengths) or budget < len(lengths):
        raise ValueError(
            f"budget must be at least one token for each of 1 or more prompts, got {budget} for {len(lengths)} prompts"
        )
    share = budget // len(lengths)
    sizes = adaptive_group_size(jnp.asarray(lengths, jnp.float32), base=1, reference=share, floor=floor)
    return np.minimum(np.asarray(sizes, np.int64), most)
