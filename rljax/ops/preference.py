"""Loss of a reward model on pairs of responses: one preferred by a judge, one rejected."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from rljax.ops.arrays import check_floating, check_nonnegative, check_same_shape, in_float32

Margin = float | int | Num[Array, "*pairs"] | Num[Array, ""]


@in_float32
def bradley_terry_loss(
    chosen: Float[Array, "*pairs"], rejected: Float[Array, "*pairs"], *, margin: Margin = 0
) -> Float[Array, "*pairs"]:
    """Negative log-likelihood that a pair's preferred response wins, from the two responses' scores.

    ::

        L = -log σ(r_chosen - r_rejected - m)

    Only score differences matter: adding a constant to every score changes nothing, so a score's zero has no meaning.
    The loss is computed as log(1 + exp(-x)), x = r_chosen - r_rejected - m, without overflow: for very negative x it is -x, with
    slope -1.

    Args:
        chosen: r_chosen, score of the preferred response, carries the gradient, `[...]`.
        rejected: r_rejected, score of the other response, carries the gradient, of the same shape.
        margin: m, the required lead of the preferred response, in the scores' unit, not negative; one number, or one per pair.

    Returns:
        `[...]`, nats, to be minimized as a mean over the pairs; log 2 if the lead equals the margin.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, or a negative margin.

    Example:
        >>> import jax.numpy as jnp
        >>> loss = bradley_terry_loss(jnp.array([1.0, 0.0]), jnp.array([1.0, 200.0]))
        >>> [round(number, 4) for number in loss.tolist()]
        [0.6931, 200.0]

    Source:
        Bradley & Terry, Biometrika 39 (1952), 324-345; InstructGPT, arXiv:2203.02155, Eq. 1 (m = 0); the margin is from Llama 2,
        arXiv:2307.09288, Eq. 2.
    """
    check_floating(chosen=chosen, rejected=rejected)
    check_same_shape(chosen=chosen, rejected=rejected)
    if jnp.ndim(margin):
        check_same_shape(chosen=chosen, margin=margin)
    check_nonnegative(margin=margin)
    return jax.nn.softplus(rejected + margin - chosen)
