"""Temporal groups: compare a prompt's responses with its responses from earlier steps.

The history is a pytree with a ring buffer of rewards per prompt; store it in the training state and its checkpoints.
Earlier responses come from earlier policies. A past reward does not depend on the present response, so the baseline does
not bias the gradient. But the baseline lags behind an improving policy, so all advantages of a prompt are too high by the same
amount.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rljax.ops.arrays import (
    Mask,
    check_between,
    check_count,
    check_floating,
    check_integer,
    check_mask,
    check_one_per_row,
    check_rank,
    check_same_shape,
    in_float32,
)
from rljax.ops.group import group_centered


class RewardHistory(NamedTuple):
    """The last C rewards of each of N prompts; row i belongs to the prompt with id i."""

    rewards: Float[Array, "N C"]
    """A ring buffer of rewards per prompt."""
    next_slot: Int[Array, "N"]
    """The slot of the ring where the next reward goes."""
    size: Int[Array, "N"]
    """How many slots of the ring contain a reward."""


def empty_history(prompts: int, capacity: int) -> RewardHistory:
    """Create an empty history.

    ::

        H(x) = ()        for every prompt x

    Args:
        prompts: N, the number of prompts; their ids run from 0 to N - 1.
        capacity: C, rewards kept per prompt, at least 1. For groups of K responses, G of them new in each step, use K - G.

    Returns:
        The empty history.

    Raises:
        ValueError: `prompts` or `capacity` is below 1.

    Example:
        >>> empty_history(3, 2).size.tolist()
        [0, 0, 0]

    Source:
        unpublished: a design document (not a paper), Algorithm 5, history buffer 𝓗. Published alternative:
        more responses per prompt, `rljax.ops.group.leave_one_out`.
    """
    check_count(1, prompts=prompts, capacity=capacity)
    return RewardHistory(jnp.zeros((prompts, capacity)), jnp.zeros(prompts, jnp.int32), jnp.zeros(prompts, jnp.int32))


def _check_entries(
    history: RewardHistory, prompt_ids: Int[Array, "P"], rewards: Float[Array, "P G"], valid: Mask | None
) -> tuple[Int[Array, "P"], Bool[Array, "P G"]]:
    """Check the arguments; return the ids (negative ids moved past the end, so that JAX drops them) and which rewards are valid."""
    check_floating(rewards=rewards)
    check_rank(2, rewards=rewards)
    check_integer(prompt_ids=prompt_ids)
    check_one_per_row(rewards=rewards, prompt_ids=prompt_ids)
    prompts = history.rewards.shape[0]
    check_between(0, prompts - 1, prompt_ids=prompt_ids)
    if rewards.dtype != history.rewards.dtype:
        raise ValueError(f"rewards must have the history's dtype {history.rewards.dtype}, got {rewards.dtype}")
    ids = jnp.where(prompt_ids < 0, prompts, prompt_ids)
    if valid is None:
        return ids, jnp.ones(rewards.shape, bool)
    check_mask(valid=valid)
    check_same_shape(rewards=rewards, valid=valid)
    return ids, valid.astype(bool)


def _push_prompt(history: RewardHistory, entry: tuple[Array, Array, Array]) -> tuple[RewardHistory, None]:
    """Add one prompt's rewards to the history. Because all calls use this one function, the scan over prompts is compiled once."""
    prompt, row, counted = entry
    capacity = history.rewards.shape[1]
    order = jnp.cumsum(counted, dtype=jnp.int32) - 1
    total = counted.sum(dtype=jnp.int32)
    start = history.next_slot[prompt]
    kept = counted & (order >= total - capacity)
    slot = jnp.where(kept, (start + order) % capacity, capacity)
    filled = jnp.minimum(history.size[prompt] + total, capacity)
    return RewardHistory(
        history.rewards.at[prompt, slot].set(row, mode="drop"),
        history.next_slot.at[prompt].set((start + total) % capacity, mode="drop"),
        history.size.at[prompt].set(filled, mode="drop"),
    ), None


@in_float32
def push_history(
    history: RewardHistory, prompt_ids: Int[Array, "P"], rewards: Float[Array, "P G"], *, valid: Mask | None = None
) -> RewardHistory:
    """Add a step's rewards to the history, dropping a prompt's oldest rewards when its buffer is full.

    ::

        H(x) ← last C of (H(x), r_1, …, r_G)

    Args:
        history: H, the rewards of earlier steps.
        prompt_ids: id x of each prompt, `[P]`, in [0, N). If an id occurs more than once, its rewards are added in order. An
            out-of-range id is refused if its value is known; a traced one is ignored.
        rewards: one number per response, `[P, G]`, of the history's dtype.
        valid: which responses have a reward, bool or 0/1, `[P, G]`; the others are not stored. None: all of them.

    Returns:
        The new history.

    Raises:
        ValueError: `rewards` are integers or not of the history's dtype, `prompt_ids` are not integers, are out of range or are
            not one per prompt, or `valid` has a different shape.

    Example:
        >>> import jax.numpy as jnp
        >>> history = push_history(empty_history(2, 2), jnp.array([1]), jnp.array([[1.0, 2.0, 3.0]]))
        >>> sorted(history.rewards[1].tolist()), history.size.tolist()
        ([2.0, 3.0], [0, 2])

    Source:
        unpublished: a design document (not a paper), Algorithm 5, line 6. Published alternative: more
        responses per prompt, `rljax.ops.group.leave_one_out`.
    """
    ids, counts = _check_entries(history, prompt_ids, rewards, valid)
    return jax.lax.scan(_push_prompt, history, (ids, rewards, counts))[0]


@in_float32
def join_history(
    history: RewardHistory, prompt_ids: Int[Array, "P"], rewards: Float[Array, "P G"], *, valid: Mask | None = None
) -> tuple[Float[Array, "P K"], Bool[Array, "P K"]]:
    """Join each prompt's rewards of this step with its earlier rewards.

    ::

        group(x) = (r_1, …, r_G, H(x))

    Args:
        history: H, before this step's rewards are pushed.
        prompt_ids: id x of each prompt, `[P]`, in [0, N); a traced out-of-range id has no earlier rewards.
        rewards: one number per response, `[P, G]`, of the history's dtype; G may be 1 here.
        valid: which responses have a reward, bool or 0/1, `[P, G]`; None: all of them.

    Returns:
        Rewards `[P, K]` with K = G + C, this step's first, and which of them exist, bool, `[P, K]`: pass them to the functions in
        `rljax.ops.group` as `rewards` and `valid`.

    Raises:
        ValueError: under the same conditions as `push_history`.

    Example:
        >>> import jax.numpy as jnp
        >>> history = push_history(empty_history(2, 2), jnp.array([1]), jnp.array([[5.0]]))
        >>> rewards, valid = join_history(history, jnp.array([1, 0]), jnp.array([[1.0], [2.0]]))
        >>> rewards[0].tolist(), valid.tolist()
        ([1.0, 5.0, 0.0], [[True, True, False], [True, False, False]])

    Source:
        unpublished: a design document (not a paper), Algorithm 5, lines 2 to 4. Published alternative: more
        responses per prompt, `rljax.ops.group.leave_one_out`.
    """
    ids, counts = _check_entries(history, prompt_ids, rewards, valid)
    size = history.size.at[ids].get(mode="fill", fill_value=0)
    known = jnp.arange(history.rewards.shape[1], dtype=jnp.int32)[None, :] < size[:, None]
    past = history.rewards.at[ids].get(mode="fill", fill_value=0.0)
    return jnp.concatenate([rewards, past], axis=-1), jnp.concatenate([counts, known], axis=-1)


def temporal_advantage(
    history: RewardHistory,
    prompt_ids: Int[Array, "P"],
    rewards: Float[Array, "P G"],
    *,
    advantage: Callable[..., Float[Array, "P K"]] = group_centered,
    valid: Mask | None = None,
) -> Float[Array, "P G"]:
    """Advantage of this step's responses within the group that they form together with past responses.

    ::

        A_i = advantage(r_1, …, r_G, H(x))_i        i = 1 … G

    Args:
        history: H; push this step's rewards afterwards, not before.
        prompt_ids: id x of each prompt, `[P]`, in [0, N).
        rewards: one number per response, `[P, G]`, of the history's dtype.
        advantage: a function of `(rewards, *, valid)`, such as `group_centered`, `group_normalized`, `leave_one_out` or
            `rank_based`.
        valid: which responses have a reward, bool or 0/1, `[P, G]`; None: all of them.

    Returns:
        The advantages, `[P, G]`. They need not sum to 0 over this step's responses, because past rewards enter the baseline. A
        prompt's only response gets 0 if no past reward is stored.

    Raises:
        ValueError: under the same conditions as `push_history`.

    Example:
        >>> import jax.numpy as jnp
        >>> history = push_history(empty_history(1, 2), jnp.array([0]), jnp.array([[0.0, 0.0]]))
        >>> temporal_advantage(history, jnp.array([0]), jnp.array([[1.0, 1.0]])).tolist()
        [[0.5, 0.5]]

    Source:
        unpublished: a design document (not a paper), Algorithm 5, line 5. Published alternative: more
        responses per prompt, `rljax.ops.group.leave_one_out`.
    """
    combined, counts = join_history(history, prompt_ids, rewards, valid=valid)
    return advantage(combined, valid=counts)[:, : rewards.shape[-1]]
