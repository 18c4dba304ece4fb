"""What is descended: the policy's loss and the critic's, row by row and linear in the weights."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.algorithms.algorithm import Algorithm, Batch, Policy
from rljax.algorithms.value_head import ValueHead
from rljax.ops.categorical import categorical_cross_entropy
from rljax.ops.divergence import k3
from rljax.ops.masked import zero_outside


def _check_rows(batch: Batch, **arrays: Array | None) -> None:
    for name, value in arrays.items():
        if value is not None and value.shape != batch.mask.shape:
            raise ValueError(f"{name} must have the batch's shape {list(batch.mask.shape)}, got {list(value.shape)}")


def loss(
    algorithm: Algorithm, logp: Float[Array, "B T"], batch: Batch, *, entropy: Float[Array, "B T"] | None = None
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Loss of some rows of a batch, to be minimised; losses and metrics of all its rows add up.

    ::

        L = -Σ_bt w_bt · surrogate(log ρ_bt, A_bt) + Σ_k c_k Σ_bt w^k_bt · term^k_bt

    Args:
        algorithm: the record of functions that prepared the batch.
        logp: log-probabilities of the response tokens under the policy that is trained, `[B, T]`, nats.
        batch: all rows of a mini-batch, or some of them.
        entropy: entropy of the policy at each token, `[B, T]`, nats; for algorithms with an entropy term.

    Returns:
        The loss and its metrics: `kl` (k3 estimate of KL(sampling policy ‖ policy), nats a token), `clip_fraction` (share
        of tokens whose surrogate passes no gradient), `ratio` (mean importance ratio), one entry for every term, and
        `entropy` when it is given.

    Raises:
        ValueError: the shapes differ, a term needs what is not given, or another algorithm prepared the batch.

    Example:
        >>> import jax.numpy as jnp
        >>> from rljax.algorithms import BY_NAME, Rollout, loss, prepare
        >>> rollout = Rollout(
        ...     mask=jnp.ones((1, 2, 3), bool), behaviour_logp=jnp.zeros((1, 2, 3)), rewards=jnp.array([[1.0, 0.0]])
        ... )
        >>> algorithm = BY_NAME["dapo"]()
        >>> value, metrics = loss(algorithm, jnp.zeros((2, 3)), prepare(algorithm, rollout))
        >>> abs(round(float(value), 6)), float(metrics["ratio"])
        (0.0, 1.0)
    """
    _check_rows(batch, logp=logp, entropy=entropy)
    if len(batch.term_weights) != len(algorithm.terms):
        raise ValueError(
            f"batch must have weights for the algorithm's {len(algorithm.terms)} terms, got {len(batch.term_weights)}: "
            "it was prepared by another algorithm"
        )
    log_ratio = algorithm.log_ratio(logp, batch.denominator_logp, batch.mask)
    surrogate, slope = jax.jvp(lambda x: algorithm.surrogate(x, batch.advantage), (log_ratio,), (jnp.ones_like(log_ratio),))
    total = -(batch.weights * zero_outside(surrogate, batch.mask)).sum()
    metrics = {}
    policy = Policy(
        logp=zero_outside(logp, batch.mask),
        entropy=None if entropy is None else zero_outside(entropy, batch.mask),
        ref_logp=batch.ref_logp,
    )
    for term, weights in zip(algorithm.terms, batch.term_weights, strict=True):
        if policy._asdict()[term.needs] is None:
            raise ValueError(f"{term.needs} must be given: the algorithm's term {term.name!r} reads it; got None")
        value = (weights * zero_outside(term.per_token(policy), batch.mask)).sum()
        total = total + term.coefficient * value
        metrics[term.name] = value
    stopped = jax.lax.stop_gradient((slope == 0) & (batch.advantage != 0))
    metrics["clip_fraction"] = (batch.token_share * stopped).sum()
    metrics["kl"] = (batch.token_share * k3(zero_outside(batch.policy_logp, batch.mask), policy.logp)).sum()
    metrics["ratio"] = (batch.token_share * jnp.exp(log_ratio)).sum()
    if policy.entropy is not None:
        metrics["entropy"] = (batch.token_share * policy.entropy).sum()
    return total, {"loss": total, **metrics}


def value_loss(
    algorithm: Algorithm, values: Float[Array, "B T"], batch: Batch, *, outputs: Float[Array, "B T N"] | None = None
) -> tuple[Float[Array, ""], dict[str, Float[Array, ""]]]:
    """Critic's loss of some rows of a batch, to be minimised; losses and metrics of all its rows add up.

    ::

        L = Σ_bt w_bt · critic.loss(V_bt, V_old_bt, R_bt)
        L = -Σ_bt w_bt Σ_i distribution_i(R_bt) log softmax(outputs_bt)_i        for a categorical head

    Args:
        algorithm: the record of functions that prepared the batch; it has a critic.
        values: what the critic says before each token, carries the gradient, `[B, T]`, in the reward's unit.
        batch: all rows of a critic's mini-batch, or some of them.
        outputs: the numbers that a categorical head read the values from, carry the gradient, `[B, T, N]`; other heads do
            not need them.

    Returns:
        The loss and its metrics: `value_loss` itself, and five weighted sums of which `explained_variance_of` makes the
        explained variance once they are added up.

    Raises:
        ValueError: the shapes differ, the algorithm has no critic, one without a critic prepared the batch, or a categorical
            head's outputs are missing.

    Example:
        >>> import jax.numpy as jnp
        >>> from rljax.algorithms import BY_NAME, Rollout, prepare, value_loss
        >>> ones = jnp.ones((1, 2, 3))
        >>> rollout = Rollout(mask=ones, behaviour_logp=-ones, rewards=jnp.array([[1.0, 0.0]]), values=0.5 * ones)
        >>> algorithm = BY_NAME["vapo"]()
        >>> value, metrics = value_loss(algorithm, jnp.full((2, 3), 0.5), prepare(algorithm, rollout))
        >>> float(value), float(explained_variance_of(metrics))
        (0.125, 0.0)
    """
    if algorithm.critic is None:
        raise ValueError("algorithm must have a critic to have a value loss, got critic=None")
    if batch.value_target is None:
        raise ValueError("batch must hold value targets, got None: it was prepared by an algorithm without a critic")
    _check_rows(batch, values=values)
    if algorithm.critic.head.distribution is None:
        per_token = algorithm.critic.loss(values, batch.old_values, batch.value_target, batch.mask)
    else:
        per_token = _categorical_loss(algorithm.critic.head, outputs, batch)
    total = (batch.value_weights * per_token).sum()
    target = zero_outside(batch.value_target, batch.mask)
    error = jax.lax.stop_gradient(target - zero_outside(values, batch.mask))
    sums = {
        "value_weight": jnp.ones_like(target),
        "value_target_sum": target,
        "value_target_square": jnp.square(target),
        "value_error_sum": error,
        "value_error_square": jnp.square(error),
    }
    return total, {"value_loss": total} | {name: (batch.value_weights * x).sum() for name, x in sums.items()}


def _categorical_loss(head: ValueHead, outputs: Array | None, batch: Batch) -> Float[Array, "B T"]:
    """Cross-entropy of a categorical head with the distributions of its targets."""
    shape = (*batch.mask.shape, head.size)
    if outputs is None or outputs.shape != shape:
        given = None if outputs is None else list(outputs.shape)
        raise ValueError(f"outputs must be given for a categorical head, of shape {list(shape)}, got {given}")
    return categorical_cross_entropy(outputs, head.distribution(batch.value_target), batch.mask)


def explained_variance_of(metrics: Mapping[str, Float[Array, ""]]) -> Float[Array, ""]:
    """Explained variance from the sums that `value_loss` reports, added up over micro-batches.

    ::

        EV = 1 - Var[R - V] / Var[R]        Var[x] = Σ w x² / Σ w - (Σ w x / Σ w)²

    Args:
        metrics: what `value_loss` returned, added up; further entries are not read.

    Returns:
        One number, without unit, at most 1. 0 where the targets vary by no more than rounding, or there is no token.

    Example:
        >>> import jax.numpy as jnp
        >>> names = ["value_weight", "value_target_sum", "value_target_square", "value_error_sum", "value_error_square"]
        >>> explained_variance_of(dict(zip(names, jnp.array([1.0, 1.0, 2.0, 0.0, 0.25])))).item()
        0.75

    Source:
        `rljax.ops.value.explained_variance`, in sums; a convergence criterion of VC-PPO, arXiv:2503.01491.
    """
    weight = metrics["value_weight"]
    some = jnp.where(weight > 0, weight, 1.0)

    def variance(name: str) -> Array:
        return metrics[f"{name}_square"] / some - jnp.square(metrics[f"{name}_sum"] / some)

    total = variance("value_target")
    # A difference of two sums: what is left of a constant target is a few roundings of its square.
    rounding = 8 * jnp.finfo(total.dtype).eps * metrics["value_target_square"] / some
    constant = total <= rounding
    return jnp.where(constant, 0.0, 1 - variance("value_error") / jnp.where(constant, 1.0, total))
