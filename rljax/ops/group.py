"""Group-relative advantages: a response is judged against the others of its prompt.

Rewards are `[..., P, G]`, the G responses of a prompt on the last axis.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.checks import check_floating, check_group, check_nonnegative


def group_centered(rewards: Float[Array, "*P G"]) -> Float[Array, "*P G"]:
    """Reward less the mean of its group.

    ::

        A_i = r_i - (1/G) Σ_j r_j

    A group of identical rewards gets exactly 0: what is averaged is the distance to the first reward, not the reward.

    Args:
        rewards: one number a response, `[..., G]`.

    Returns:
        `[..., G]`, in the rewards' unit; each group sums to 0.

    Raises:
        ValueError: integer or boolean rewards, or groups of fewer than 2.

    Example:
        >>> import jax.numpy as jnp
        >>> group_centered(jnp.array([[1.0, 0.0, 0.0, 0.0]])).tolist()
        [[0.75, -0.25, -0.25, -0.25]]

    Source:
        Dr.GRPO, arXiv:2503.20783, Section 3; MF Eqs. 34-35 and 38.
    """
    check_floating(rewards=rewards)
    check_group(rewards=rewards)
    offset = rewards - rewards[..., :1]
    return offset - offset.mean(-1, keepdims=True)


def group_normalized(rewards: Float[Array, "*P G"], *, eps: float = 1e-6, ddof: int = 1) -> Float[Array, "*P G"]:
    """Reward as a z-score within its group.

    ::

        A_i = (r_i - mean(r)) / (std(r) + ε)        std² = Σ_j (r_j - mean(r))² / (G - ddof)

    A group of identical rewards gets exactly 0, whatever ε.

    Args:
        rewards: one number a response, `[..., G]`.
        eps: ε, added to the standard deviation; not negative. 1e-6 is verl's, 1e-4 TRL's; the paper states none.
        ddof: delta degrees of freedom of the standard deviation, 0 or 1. The paper states none, its followers use 1.

    Returns:
        `[..., G]`, without unit.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2, negative `eps`, `ddof` other than 0 or 1.

    Example:
        >>> import jax.numpy as jnp
        >>> group_normalized(jnp.array([[1.0, 0.0, 1.0, 0.0]]), ddof=0, eps=0.0).tolist()
        [[1.0, -1.0, 1.0, -1.0]]

    Source:
        GRPO, arXiv:2402.03300, Section 4.1.2; DAPO, arXiv:2503.14476, Eq. 9.
    """
    check_nonnegative(eps=eps)
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 or 1, got {ddof}")
    centered = group_centered(rewards)
    variance = jnp.square(centered).sum(-1, keepdims=True) / (rewards.shape[-1] - ddof)
    constant = variance == 0
    std = jnp.sqrt(jnp.where(constant, 1.0, variance))
    return jnp.where(constant, 0.0, centered / (std + eps))


def leave_one_out(rewards: Float[Array, "*P G"]) -> Float[Array, "*P G"]:
    """Reward less the mean of the others.

    ::

        A_i = r_i - (1/(G-1)) Σ_{j≠i} r_j  =  G/(G-1) (r_i - mean(r))

    Args:
        rewards: one number a response, `[..., G]`.

    Returns:
        `[..., G]`, in the rewards' unit; each group sums to 0.

    Raises:
        ValueError: integer or boolean rewards, or groups of fewer than 2.

    Example:
        >>> import jax.numpy as jnp
        >>> leave_one_out(jnp.array([[3.0, 0.0, 0.0]])).tolist()
        [[3.0, -1.5, -1.5]]

    Source:
        RLOO, arXiv:2402.14740, Section 3.2.
    """
    check_group(rewards=rewards)
    size = rewards.shape[-1]
    return group_centered(rewards) * (size / (size - 1))
