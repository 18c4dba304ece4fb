"""Selection: which prompts are worth a gradient, and how many responses a prompt deserves.

Rewards are `[..., P, G]`; a function of a group returns one value a prompt, `[..., P]`. Nothing here carries a gradient.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rljax.ops.checks import (
    check_ascending,
    check_at_least,
    check_between,
    check_floating,
    check_lengths,
    check_positive,
    check_rank,
)
from rljax.ops.masked import Lengths, Mask, Number, group_members


def has_mixed_outcomes(rewards: Float[Array, "*P G"], *, valid: Mask | None = None) -> Bool[Array, "*P"]:
    """Whether the responses of a prompt differ in reward at all: dynamic sampling keeps these groups.

    The paper counts correct responses. For rewards of two values that is the same as "not all identical", which also
    covers graded rewards; equality is exact. Judge the outcome before any length shaping is added to it, or a group
    that is wrong throughout is kept for the lengths of its responses.

    ::

        keep = 0 < |{i : o_i is correct}| < G    ⟺    max_i r_i ≠ min_i r_i

    Args:
        rewards: one number a response, `[..., G]`.
        valid: responses that have a reward, bool or 0/1, `[..., G]`; all of them when absent.

    Returns:
        bool, `[...]`; False for a group with fewer than 2 valid responses. A NaN reward that counts as valid keeps its
        group, so that the fault shows in the loss instead of vanishing here.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2, or `valid` of another shape.

    Example:
        >>> import jax.numpy as jnp
        >>> has_mixed_outcomes(jnp.array([[1.0, -1.0, 1.0], [-1.0, -1.0, -1.0]])).tolist()
        [True, False]

    Source:
        DAPO, arXiv:2503.14476, Eq. 11.
    """
    member = group_members(rewards, valid)
    highest = jnp.where(member, rewards, -jnp.inf).max(-1)
    lowest = jnp.where(member, rewards, jnp.inf).min(-1)
    return member.any(-1) & (highest != lowest)


def pass_rate(rewards: Float[Array, "*P G"], *, threshold: Number = 0.0, valid: Mask | None = None) -> Float[Array, "*P"]:
    """Fraction of the responses of a prompt that are correct.

    ::

        p = (1/G) |{i : r_i > r_threshold}|

    Args:
        rewards: one number a response, `[..., G]`.
        threshold: reward above which a response is correct; 0 suits both 1 / -1 and 1 / 0.
        valid: responses that have a reward, bool or 0/1, `[..., G]`; all of them when absent.

    Returns:
        `[...]`, in [0, 1]; 0 for a group without a valid response.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2, `valid` of another shape, or `threshold` NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> pass_rate(jnp.array([[1.0, -1.0, -1.0, -1.0], [1.0, 0.0, 1.0, 1.0]])).tolist()
        [0.25, 0.75]

    Source:
        Bae et al., arXiv:2504.03380 (pass rate of a prompt under the current policy).
    """
    check_between(-jnp.inf, jnp.inf, threshold=threshold)
    member = group_members(rewards, valid)
    correct = (member & (rewards > threshold)).sum(-1)
    return correct.astype(rewards.dtype) / jnp.maximum(member.sum(-1), 1).astype(rewards.dtype)


def in_difficulty_window(
    rewards: Float[Array, "*P G"], *, low: Number, high: Number, threshold: Number = 0.0, valid: Mask | None = None
) -> Bool[Array, "*P"]:
    """Whether a prompt is neither too hard nor too easy for the policy of now.

    ::

        keep = p_low ≤ p ≤ p_high        p = pass rate of the group

    Args:
        rewards: one number a response, `[..., G]`.
        low: p_low, in [0, p_high]. No value of the paper could be confirmed, hence no default; a balanced window has
            low + high = 1.
        high: p_high, in [p_low, 1]. Both ends belong to the window.
        threshold: reward above which a response is correct.
        valid: responses that have a reward, bool or 0/1, `[..., G]`; all of them when absent.

    Returns:
        bool, `[...]`; False for a group with fewer than 2 valid responses.

    Raises:
        ValueError: integer or boolean rewards, groups of fewer than 2, `valid` of another shape, a window that is not inside
            [0, 1], or `threshold` NaN.

    Example:
        >>> import jax.numpy as jnp
        >>> rewards = jnp.array([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
        >>> in_difficulty_window(rewards, low=0.3, high=0.7).tolist()
        [False, True]

    Source:
        Bae et al., arXiv:2504.03380 (balanced online difficulty filtering).
    """
    check_between(0.0, 1.0, low=low, high=high)
    check_between(low, 1.0, high=high)
    rate = pass_rate(rewards, threshold=threshold, valid=valid)
    comparable = group_members(rewards, valid).sum(-1) > 1
    return comparable & (rate >= low) & (rate <= high)


def rl_kl_from_pass_rate(pass_rate: Float[Array, "..."], *, beta: Number) -> Float[Array, "..."]:
    """How far the optimum of KL-regularised RL lies from the policy that starts, for a reward of 0 or 1.

    The optimum is π*(y) = π_init(y) e^{r(y)/β} / Z. With one correct class of mass p, the divergence is exact. It is 0 at
    p = 0 and p = 1, where nothing can be learned, and ½ p(1-p)/β² to second order in 1/β. Its maximum lies at
    p = β - 1/(e^{1/β} - 1), which is ½ only in the limit of a large β: the smaller β, the harder the best prompt.

    ::

        KL(π_init ‖ π*) = log Z - p/β = log(1 - p + p e^{1/β}) - p/β

    Args:
        pass_rate: p, in [0, 1], any shape.
        beta: β, the weight of the KL term, positive, in the reward's unit a nat.

    Returns:
        the shape of `pass_rate`, nats, not negative.

    Raises:
        ValueError: integer or out-of-range pass rates, or `beta` not positive.

    Example:
        >>> import jax.numpy as jnp
        >>> [round(float(kl), 3) for kl in rl_kl_from_pass_rate(jnp.array([0.0, 0.5, 1.0]), beta=0.5)]
        [0.0, 0.434, 0.0]

    Source:
        Bae et al., arXiv:2504.03380; the identity follows from the optimum above for a binary reward.
    """
    check_floating(pass_rate=pass_rate)
    check_between(0.0, 1.0, pass_rate=pass_rate)
    check_positive(beta=beta)
    certain = (pass_rate <= 0) | (pass_rate >= 1)
    p = jnp.where(certain, 0.5, pass_rate)
    gain = jnp.asarray(1.0 / beta, p.dtype)
    # Two ways to write log Z: the first keeps its digits where log Z is small, the second cannot overflow.
    near = jnp.log1p(p * jnp.expm1(jnp.minimum(gain, 32.0)))
    far = jnp.logaddexp(jnp.log1p(-p), jnp.log(p) + gain)
    return jnp.where(certain, 0.0, jnp.where(gain < 32.0, near, far) - p * gain)


def adaptive_group_size(lengths: Lengths, *, base: int = 8, reference: int = 512, floor: int = 2) -> Int[Array, "..."]:
    """Number of responses for a prompt, fewer where they are long, so that a group costs about the same tokens.

    The document puts the floor at 1, which makes every prompt of more than `base · reference / 2` tokens a group of one,
    whose group-relative advantage is identically 0.

    ::

        G(ℓ) = max(floor, ⌊G_base L_ref / ℓ⌋)

    Args:
        lengths: ℓ, the length expected of a response, in tokens, integer or floating point, any shape.
        base: G_base, responses at the reference length, at least 1.
        reference: L_ref in tokens, at least 1.
        floor: the smallest group, at least 2.

    Returns:
        the shape of `lengths`, responses, int32.

    Raises:
        ValueError: boolean lengths or lengths that are not positive, `base` or `reference` below 1, `floor` below 2.

    Example:
        >>> import jax.numpy as jnp
        >>> adaptive_group_size(jnp.array([256, 512, 600, 4096])).tolist()
        [16, 8, 6, 2]

    Source:
        MF Eq. 27 with a floor of 2; it is not in the DAPO paper, whose dynamic sampling is `has_mixed_outcomes`.
    """
    check_lengths(lengths=lengths)
    check_positive(lengths=lengths)
    check_at_least(1, base=base, reference=reference)
    check_at_least(2, floor=floor)
    return jnp.maximum(floor, base * reference // lengths).astype(jnp.int32)


def length_percentiles(
    lengths: Lengths, *, percentiles: tuple[float | int, ...] = (25.0, 50.0, 75.0, 95.0)
) -> Float[Array, "K"]:
    """Percentiles of the lengths of a data set or batch, linear between neighbours.

    ::

        L_q = sorted(ℓ)[(n - 1) q / 100]

    Args:
        lengths: ℓ in tokens, integer or floating point, any shape; all entries count.
        percentiles: q in percent, in [0, 100].

    Returns:
        `[K]`, tokens, one for each q.

    Raises:
        ValueError: no length, boolean or negative lengths, or a percentile outside [0, 100].

    Example:
        >>> import jax.numpy as jnp
        >>> length_percentiles(jnp.array([10, 20, 30, 40, 50])).tolist()
        [20.0, 30.0, 40.0, 48.0]

    Source:
        MF Algorithm 3, step 2; it is not in the DAPO paper.
    """
    check_lengths(lengths=lengths)
    check_between(0.0, 100.0, percentiles=percentiles)
    if lengths.size == 0:
        raise ValueError(f"lengths must hold at least one length, got shape {list(lengths.shape)}")
    tokens = lengths.astype(jnp.result_type(lengths, float))
    return jnp.percentile(tokens.reshape(-1), jnp.asarray(percentiles, tokens.dtype))


def length_bins(lengths: Lengths, edges: Float[Array, "K"]) -> Int[Array, "..."]:
    """Bin of each length, counted from 0; a length that equals an edge lies in the bin below it.

    ::

        bin(ℓ) = |{k : edge_k < ℓ}|

    Args:
        lengths: ℓ in tokens, integer or floating point, any shape.
        edges: in tokens, ascending, `[K]`; `length_percentiles` gives them.

    Returns:
        the shape of `lengths`, int32, in [0, K].

    Raises:
        ValueError: boolean or negative lengths, integer edges, or edges that are not ascending on one axis.

    Example:
        >>> import jax.numpy as jnp
        >>> length_bins(jnp.array([5, 20, 21, 99]), jnp.array([20.0, 30.0])).tolist()
        [0, 0, 1, 2]

    Source:
        MF Algorithm 3, steps 4 and 6, which leave the ends of a bin open; it is not in the DAPO paper.
    """
    check_lengths(lengths=lengths)
    check_floating(edges=edges)
    check_rank(1, edges=edges)
    if edges.ndim > 1:
        raise ValueError(f"edges must have one axis, got shape {list(edges.shape)}")
    check_ascending(edges=edges)
    return jnp.searchsorted(edges, lengths.astype(edges.dtype), side="left").astype(jnp.int32)
