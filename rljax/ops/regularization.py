"""Regularizers that pull a policy towards correct answers or towards earlier tasks."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.ops.arrays import (
    FloatTree,
    Mask,
    Number,
    Tree,
    check_floating,
    check_mask,
    check_nonnegative,
    check_same_structure,
    common_dtype,
    in_float32,
)
from rljax.ops.masked import zero_outside
from rljax.ops.weights import token_mean


def positive_example_weights(correct: Bool[Array, "*rows"], mask: Mask) -> Float[Array, "*rows T"]:
    """Loss weights that give equal weight to every token of a correct response, and none to other responses.

    ::

        w_it = c_i m_it / Σ_jτ c_j m_jτ

    With nll from `negative_log_likelihood`, `sum(w * nll)` is the positive-example language-model loss.

    Args:
        correct: c, whether each response is correct, bool, `[...]`.
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, sums to 1 over the batch; all 0 if no response is correct.

    Raises:
        ValueError: `correct` is not boolean or does not have one entry per row, or a malformed mask.

    Example:
        >>> import jax.numpy as jnp
        >>> positive_example_weights(jnp.array([True, False]), jnp.array([[1, 1, 0], [1, 1, 1]])).tolist()
        [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]

    Source:
        VAPO, arXiv:2504.05118, Section 4.3 (added to the policy loss with weight 0.1).
    """
    check_mask(mask=mask)
    if not hasattr(correct, "dtype") or correct.dtype != jnp.bool_:
        raise ValueError(f"correct must be a boolean array (compare the reward with a threshold first), got {correct!r}")
    if correct.shape != mask.shape[:-1]:
        raise ValueError(f"correct must contain one value per row {list(mask.shape[:-1])}, got shape {list(correct.shape)}")
    return token_mean(mask.astype(bool) & correct[..., None])


def negative_log_likelihood(logp: Float[Array, "*rows T"], mask: Mask) -> Float[Array, "*rows T"]:
    """Negative log-likelihood of each token: the language-model loss.

    ::

        L_t = -log π(o_t | q, o_<t)

    Args:
        logp: log-probabilities of the tokens, carry the gradient, `[..., T]`, nats.
        mask: response tokens, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, nats, to be minimized; 0 outside the mask.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, or a malformed mask.

    Example:
        >>> import jax.numpy as jnp
        >>> negative_log_likelihood(jnp.array([-2.0, -9.0]), jnp.array([1, 0])).tolist()
        [2.0, 0.0]

    Source:
        VAPO, arXiv:2504.05118, Section 4.3.
    """
    check_floating(logp=logp)
    return zero_outside(-logp, mask)


@in_float32
def dynamic_fine_tuning_loss(logp: Float[Array, "*rows T"], mask: Mask) -> Float[Array, "*rows T"]:
    """Language-model loss of each token, weighted by the token's probability under the policy.

    The plain loss has the gradient -∇π/π, which is largest for the tokens that the policy finds least likely. Here the gradient
    is -∇π, so a token that contradicts the policy's knowledge changes the policy little.

    ::

        L_t = -sg[π(o_t | q, o_<t)] log π(o_t | q, o_<t)

    Args:
        logp: log-probabilities of a demonstration's tokens, carry the gradient, `[..., T]`, nats.
        mask: tokens to learn, bool or 0/1, `[..., T]`.

    Returns:
        `[..., T]`, nats, to be minimized; only its gradient is meaningful. 0 outside the mask.

    Raises:
        ValueError: an argument that is not floating point, mismatched shapes, or a malformed mask.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> logp = jnp.log(jnp.array([0.5, 0.125, 0.5]))
        >>> jax.grad(lambda x: dynamic_fine_tuning_loss(x, jnp.array([1, 1, 0])).sum())(logp).tolist()
        [-0.5, -0.125, 0.0]

    Source:
        DFT, arXiv:2508.05629, Eq. 9.
    """
    check_floating(logp=logp)
    inside = zero_outside(logp, mask)
    return -jax.lax.stop_gradient(jnp.exp(inside)) * inside


def _check_trees(**trees: Tree) -> None:
    """Refuse a tree without arrays, and trees that `check_same_structure` refuses."""
    name, tree = next(iter(trees.items()))
    if not jax.tree.leaves(tree):
        raise ValueError(f"{name} must contain at least one array, got {tree!r}")
    check_same_structure(**trees)


@in_float32
def fisher_anchor(
    params: FloatTree,
    anchor_params: FloatTree,
    fisher: FloatTree,
    *,
    coefficient: Number,
) -> Float[Array, ""]:
    """Quadratic penalty for moving away from an earlier task's parameters, weighted by their Fisher information (EWC).

    ::

        Ω(θ) = (λ/2) Σ_i F_i (θ_i - θ*_i)²

    The factor 1/2 is the paper's, so the gradient is λ F (θ - θ*).

    Args:
        params: θ, carries the gradient, a pytree of arrays.
        anchor_params: θ*, the parameters after the earlier task, a pytree of the same structure and shapes.
        fisher: F, see `diagonal_fisher`, not negative, a pytree of the same structure and shapes.
        coefficient: λ, not negative.

    Returns:
        One number, to be added to a loss; summed in float32 or wider.

    Raises:
        ValueError: trees without arrays, of different structure or shapes, or not floating point; or a negative
            `coefficient` or entry of `fisher`.

    Example:
        >>> import jax.numpy as jnp
        >>> theta, anchor, fisher = {"w": jnp.array([3.0, 1.0])}, {"w": jnp.array([1.0, 1.0])}, {"w": jnp.array([0.5, 8.0])}
        >>> fisher_anchor(theta, anchor, fisher, coefficient=2.0).item()
        2.0

    Source:
        Kirkpatrick et al., arXiv:1612.00796, Eq. 3; the Ω that Algorithm 10 of the design document leaves open.
    """
    _check_trees(params=params, anchor_params=anchor_params, fisher=fisher)
    check_nonnegative(coefficient=coefficient)
    leaves = cast(list[tuple[Any, Any]], jax.tree_util.tree_leaves_with_path(fisher))
    for path, leaf in leaves:
        check_nonnegative(**{f"fisher{jax.tree_util.keystr(path)}": leaf})

    dtype = common_dtype(jnp.zeros((), jnp.float32), *jax.tree.leaves((params, anchor_params, fisher)))

    def penalty(theta: Array, anchor: Array, information: Array) -> Array:
        return (information.astype(dtype) * jnp.square(theta.astype(dtype) - anchor.astype(dtype))).sum()

    penalties = jax.tree.leaves(jax.tree.map(penalty, params, anchor_params, fisher))
    return 0.5 * coefficient * jnp.stack(penalties).sum()


@in_float32
def diagonal_fisher(per_example_gradients: FloatTree) -> FloatTree:
    """Diagonal of the Fisher information, from the gradient of each example's log-likelihood.

    ::

        F_i = (1/N) Σ_n (∂ log p(y_n | x_n) / ∂θ_i)²

    If y is sampled from the model, this estimates the Fisher information; if y is from the data, it is the "empirical Fisher".
    Each example's gradient is squared *before* the mean: squaring the batch's gradient gives a different result.

    Args:
        per_example_gradients: a pytree of `[N, ...]`, with the N examples on the first axis (`jax.vmap` of `jax.grad`).

    Returns:
        A pytree of `[...]`, not negative, in the parameters' structure, for `fisher_anchor`.

    Raises:
        ValueError: a tree without arrays, arrays that are not floating point, or numbers of examples that differ or are 0.

    Example:
        >>> import jax.numpy as jnp
        >>> diagonal_fisher({"w": jnp.array([[1.0, 0.0], [3.0, -2.0]])})["w"].tolist()
        [5.0, 2.0]

    Source:
        Kirkpatrick et al., arXiv:1612.00796, Section 2.
    """
    _check_trees(per_example_gradients=per_example_gradients)
    sizes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(per_example_gradients)}
    first, *others = sizes
    if others or first in {(), (0,)}:
        raise ValueError(
            f"per_example_gradients must have the same number of examples on each first axis, at least 1, got {sorted(sizes)}"
        )
    return jax.tree.map(lambda gradient: jnp.square(gradient).mean(0), per_example_gradients)


SUPERVISED_LOSSES: Mapping[str | None, Callable[..., Array]] = {
    None: negative_log_likelihood,
    "dft": dynamic_fine_tuning_loss,
}
"""Value of `--warm-start-loss` -> function of log-probabilities and mask that computes each token's loss on demonstrations."""
