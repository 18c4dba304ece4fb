"""Loss of a process reward model, which judges every step of a solution."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.arrays import Mask, check_floating, check_mask, check_same_shape, in_float32
from rljax.ops.masked import zero_outside


@in_float32
def process_reward_loss(
    logits: Float[Array, "*rows T"], labels: Float[Array, "*rows T"], step_end: Mask
) -> Float[Array, "*rows T"]:
    """Cross-entropy of the probability that a step is right, at the token where the step ends.

    ::

        L_t = -y_t log σ(z_t) - (1 - y_t) log(1 - σ(z_t))        at the last token t of each step, else 0

    A label between 0 and 1 is the fraction of continuations from the step that reach the right answer; the loss is then smallest
    at σ(z_t) = y_t. The loss is computed without overflow; its derivative with respect to z_t is σ(z_t) - y_t.

    Args:
        logits: z_t, output of the model at each token, carries the gradient, `[..., T]`.
        labels: y_t, from 0 (the step is wrong) to 1 (right), of the same shape; ignored except where a step ends.
        step_end: mask of the tokens at which a step ends, of the same shape.

    Returns:
        `[..., T]`, nats; a solution's loss is the sum over its steps. 0 outside the mask.

    Raises:
        ValueError: logits or labels that are not floating point, a malformed mask, or mismatched shapes.

    Example:
        >>> import jax.numpy as jnp
        >>> loss = process_reward_loss(jnp.array([5.0, 0.0, 200.0]), jnp.array([0.0, 1.0, 0.0]), jnp.array([0, 1, 1]))
        >>> [round(number, 4) for number in loss.tolist()]
        [0.0, 0.6931, 200.0]

    Source:
        Math-Shepherd, arXiv:2312.08935, Eq. 2, which omits the minus sign; labels of 0 and 1 are its hard estimation, fractions
        its soft estimation. The process reward model of arXiv:2305.20050 is trained in the same way, with human labels.
    """
    check_floating(logits=logits, labels=labels)
    check_mask(step_end=step_end)
    check_same_shape(logits=logits, labels=labels, step_end=step_end)
    logits, labels = zero_outside(logits, step_end), zero_outside(labels, step_end)
    return zero_outside(labels * jax.nn.softplus(-logits) + (1 - labels) * jax.nn.softplus(logits), jnp.asarray(step_end))
