"""Statistics of a whole optimiser batch: normalised advantages and rewards, and GPG's scale.

Unlike a group's, they see all prompts of the batch: compute them once, before it is split.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.arrays import Mask, Number, in_float32
from rljax.ops.checks import (
    check_floating,
    check_mask,
    check_same_shape,
)
from rljax.ops.masked import group_members, masked_normalized
from rljax.ops.selection import has_mixed_outcomes


@in_float32
def batch_normalized(
    advantage: Float[Array, "*rows T"], mask: Mask, *, eps: Number = 1e-8, ddof: int = 0
) -> Float[Array, "*rows T"]:
    """Per-token advantage as a z-score over all tokens of the batch.

    ::

        A'_it = (A_it - μ) / (σ + ε)        μ, σ over all (i, t) with m_it = 1

    Args:
        advantage: any per-token advantage, `[..., T]`.
        mask: response tokens, bool or 0/1, `[..., T]`.
        eps: ε, added to the standard deviation; not negative. REINFORCE++ prints it without a number (version 9,
            Eqs. 5 and 7), Open-Reasoner-Zero states none; their code bounds σ² from below by 1e-8 instead, verl adds 1e-8 to it.
        ddof: delta degrees of freedom of the standard deviation, 0 (REINFORCE++, Open-Reasoner-Zero) or 1 (verl).

    Returns:
        `[..., T]`, without unit; 0 outside the mask. A batch of identical advantages, or of one token, gets exactly 0.

    Raises:
        ValueError: shapes that differ, integer advantages, negative `eps`, `ddof` other than 0 or 1.

    Example:
        >>> import jax.numpy as jnp
        >>> batch_normalized(jnp.array([[3.0, 3.0], [1.0, 9.0]]), jnp.array([[1, 0], [1, 0]]), eps=0.0).tolist()
        [[1.0, 0.0], [-1.0, 0.0]]

    Source:
        REINFORCE++, arXiv:2501.03262 (advantage normalisation); Open-Reasoner-Zero, arXiv:2503.24290; Eq. 56
        of the design document.
    """
    check_floating(advantage=advantage)
    check_mask(mask=mask)
    check_same_shape(advantage=advantage, mask=mask)
    flat = masked_normalized(advantage.reshape(-1), mask.reshape(-1), eps=eps, ddof=ddof)
    return flat.reshape(advantage.shape)


@in_float32
def batch_normalized_rewards(
    rewards: Float[Array, "..."], *, eps: Number = 1e-8, ddof: int = 0, valid: Mask | None = None
) -> Float[Array, "..."]:
    """Reward of a response as a z-score over all responses of the batch.

    Every response counts once here, where `batch_normalized` counts it once a token. After `group_centered` it is the
    baseline variant of REINFORCE++; alone it also serves one response a prompt.

    ::

        A_i = (r_i - μ) / (σ + ε)        μ, σ over all responses

    Args:
        rewards: one number a response, any shape with at least 2 entries.
        eps: ε, added to the standard deviation; not negative.
        ddof: delta degrees of freedom of the standard deviation, 0 or 1.
        valid: responses that have a reward, bool or 0/1, of the same shape; all of them when absent.

    Returns:
        the shape of `rewards`, without unit; 0 for responses without a reward, and throughout identical rewards.

    Raises:
        ValueError: integer rewards, a batch of fewer than 2, `valid` of another shape, negative `eps`, `ddof` not 0 or 1.

    Example:
        >>> import jax.numpy as jnp
        >>> batch_normalized_rewards(jnp.array([[1.0, 1.0], [3.0, 3.0]]), eps=0.0).tolist()
        [[-1.0, -1.0], [1.0, 1.0]]

    Source:
        REINFORCE++, arXiv:2501.03262; Eq. 56 of the design document.
    """
    check_floating(rewards=rewards)
    flat = rewards.reshape(-1)
    if valid is not None:
        check_mask(valid=valid)
        check_same_shape(rewards=rewards, valid=valid)
    member = group_members(flat, None if valid is None else valid.reshape(-1))
    return masked_normalized(flat, member, eps=eps, ddof=ddof).reshape(rewards.shape)


@in_float32
def gpg_scale(rewards: Float[Array, "*P G"], *, valid: Mask | None = None) -> Float[Array, ""]:
    """Factor that restores the gradient of a mean over groups of which some have no signal.

    ::

        α = B / (B - M)        B groups with a valid response, of which M are right throughout or wrong throughout

    Args:
        rewards: one number a response, `[..., G]`; the batch is all of them.
        valid: responses that have a reward, bool or 0/1, `[..., G]`; all of them when absent. A group without one has no
            token in the mean that α restores, so B leaves it out.

    Returns:
        a number, at least 1; 0 when no group has a signal, because every advantage is 0 then and the step is void.

    Raises:
        ValueError: integer rewards, groups of fewer than 2, or `valid` of another shape.

    Example:
        >>> import jax.numpy as jnp
        >>> gpg_scale(jnp.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, 0.0]])).item()
        2.0

    Source:
        GPG, arXiv:2504.02546 (accurate gradient estimation). As in `has_mixed_outcomes`, "right or wrong throughout" is
        "identical". bsz / count_nonzero(scores), which some code calls by this name, is another quantity.
    """
    mixed = has_mixed_outcomes(rewards, valid=valid)
    kept = mixed.sum().astype(rewards.dtype)
    groups = group_members(rewards, valid).any(-1).sum().astype(rewards.dtype)
    return jnp.where(kept > 0, groups / jnp.maximum(kept, 1), 0.0)
