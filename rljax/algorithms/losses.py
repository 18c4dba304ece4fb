"""Losses of the policy and the critic: computed row by row, and linear in the weights of the tokens."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from rljax.algorithms.algorithm import Algorithm, Batch, Term, TermInputs
from rljax.algorithms.metrics import LossMetrics, ValueMetrics
from rljax.ops.arrays import in_float32
from rljax.ops.categorical import categorical_cross_entropy
from rljax.ops.divergence import k3
from rljax.ops.masked import zero_outside


def _check_rows(batch: Batch[Array], **arrays: Array | None) -> None:
    for name, value in arrays.items():
        if value is not None and value.shape != batch.mask.shape:
            raise ValueError(f"{name} must have the batch's shape {list(batch.mask.shape)}, got {list(value.shape)}")


def _check_terms(algorithm: Algorithm, batch: Batch[Array]) -> None:
    """Refuse a batch with the weights of more or fewer terms than the algorithm has, and terms with the same name."""
    if len(batch.term_weights) != len(algorithm.terms):
        raise ValueError(
            f"batch must have weights for the algorithm's {len(algorithm.terms)} terms, got {len(batch.term_weights)}: "
            "prepare it with this algorithm"
        )
    names = [term.name for term in algorithm.terms]
    for name in names:
        if names.count(name) > 1 or name in LossMetrics._fields:
            raise ValueError(
                f"every term of the algorithm must have a unique name, got {name!r}, which another term or a metric also has"
            )


def term_inputs(
    logp: Float[Array, "B T"],
    batch: Batch[Array],
    entropy: Float[Array, "B T"] | None,
    teacher_divergence: Float[Array, "B T"] | None,
) -> TermInputs:
    """Build the inputs of the loss terms, which `TermInputs` defines; the arguments are those of `loss`."""

    def zero_if_present(values: Array | None) -> Array | None:
        return None if values is None else zero_outside(values, batch.mask)

    return TermInputs(
        logp=zero_outside(logp, batch.mask),
        entropy=zero_if_present(entropy),
        ref_logp=batch.ref_logp,
        policy_logp=zero_outside(batch.policy_logp, batch.mask),
        old_logp=zero_outside(batch.old_logp, batch.mask),
        behaviour_logp=zero_outside(batch.behaviour_logp, batch.mask),
        teacher_divergence=zero_if_present(teacher_divergence),
    )


def _term_sum(term: Term, weights: Array, inputs: TermInputs, mask: Array) -> Float[Array, ""]:
    """Return the weighted sum of a term over the tokens in `mask`."""
    if inputs._asdict()[term.needs] is None:
        raise ValueError(f"pass {term.needs}= to the loss: the algorithm's term {term.name!r} reads it, got None")
    return (weights * zero_outside(term.per_token(inputs), mask)).sum()


def _select_trained(algorithm: Algorithm, inputs: TermInputs, batch: Batch[Array]) -> Bool[Array, "B T"]:
    """Return the tokens whose surrogate enters the loss."""
    if algorithm.surrogate_mask is None:
        return batch.mask
    return batch.mask & algorithm.surrogate_mask(jax.lax.stop_gradient(inputs), batch.advantage, batch.mask)


@in_float32
def loss(
    algorithm: Algorithm,
    logp: Float[Array, "B T"],
    batch: Batch[Array],
    *,
    entropy: Float[Array, "B T"] | None = None,
    teacher_divergence: Float[Array, "B T"] | None = None,
) -> tuple[Float[Array, ""], LossMetrics]:
    """Policy loss of some rows of a batch, to be minimized; losses and metrics of separate rows add up to the batch's.

    ::

        L = -Σ_bt w_bt M_bt · surrogate(log ρ_bt, A_bt) + Σ_k c_k Σ_bt w^k_bt · term^k_bt        M = surrogate_mask, or 1

    Args:
        algorithm: the algorithm that prepared the batch.
        logp: log-probabilities of the response tokens under the policy being trained, `[B, T]`, nats.
        batch: all or some rows of a mini-batch.
        entropy: entropy of the policy at each token, `[B, T]`, nats; for algorithms with an entropy term.
        teacher_divergence: `algorithm.teacher_divergence` of each token, `[B, T]`; for algorithms with a term that reads it.
            Gradients flow through this argument.

    Returns:
        The loss and its metrics.

    Raises:
        ValueError: the shapes differ, a term reads a missing value, two terms share a name, or another algorithm
            prepared the batch.

    Example:
        >>> import jax.numpy as jnp
        >>> from rljax.algorithms import BY_NAME, Rollout, loss, prepare
        >>> rollout = Rollout(
        ...     mask=jnp.ones((1, 2, 3), bool), behaviour_logp=jnp.zeros((1, 2, 3)), rewards=jnp.array([[1.0, 0.0]])
        ... )
        >>> algorithm = BY_NAME["dapo"]()
        >>> value, metrics = loss(algorithm, jnp.zeros((2, 3)), prepare(algorithm, rollout))
        >>> abs(round(float(value), 6)), metrics.numbers()["ratio"]
        (0.0, 1.0)
    """
    _check_rows(batch, logp=logp, entropy=entropy, teacher_divergence=teacher_divergence)
    _check_terms(algorithm, batch)
    log_ratio = algorithm.log_ratio(logp, batch.old_logp, batch.mask)
    surrogate, slope = jax.jvp(lambda x: algorithm.surrogate(x, batch.advantage), (log_ratio,), (jnp.ones_like(log_ratio),))
    inputs = term_inputs(logp, batch, entropy, teacher_divergence)
    trained = _select_trained(algorithm, inputs, batch)
    total = -(batch.weights * zero_outside(surrogate, trained)).sum()
    terms: dict[str, Float[Array, ""]] = {}
    for term, weights in zip(algorithm.terms, batch.term_weights, strict=True):
        terms[term.name] = _term_sum(term, weights, inputs, batch.mask)
        total = total + term.coefficient * terms[term.name]
    clipped = jax.lax.stop_gradient((slope == 0) & (batch.advantage != 0))
    share_clipped_high = jnp.where(clipped & (batch.advantage > 0), batch.token_share, 0.0)
    return total, LossMetrics(
        loss=total,
        share=batch.token_share.sum(),
        clip_fraction=jnp.where(clipped, batch.token_share, 0.0).sum(),
        kl=(batch.token_share * k3(inputs.policy_logp, inputs.logp)).sum(),
        ratio=(batch.token_share * jnp.exp(log_ratio)).sum(),
        entropy=None if inputs.entropy is None else (batch.token_share * inputs.entropy).sum(),
        terms=terms,
        surrogate_masked=None
        if algorithm.surrogate_mask is None
        else jnp.where(batch.mask & ~trained, batch.token_share, 0.0).sum(),
        clip_fraction_low=jnp.where(clipped & (batch.advantage < 0), batch.token_share, 0.0).sum(),
        clip_fraction_high=share_clipped_high.sum(),
        up_clipped=(share_clipped_high * jnp.exp(inputs.policy_logp)).sum(),
    )


@in_float32
def value_loss(
    algorithm: Algorithm, values: Float[Array, "B T"], batch: Batch[Array], *, outputs: Float[Array, "B T N"] | None = None
) -> tuple[Float[Array, ""], ValueMetrics]:
    """Critic's loss of some rows of a batch, to be minimized; losses and metrics of separate rows add up to the batch's.

    ::

        L = Σ_bt w_bt · critic.loss(V_bt, V_old_bt, R_bt)
        L = -Σ_bt w_bt Σ_i distribution_i(R_bt) log softmax(outputs_bt)_i        for a categorical head

    Args:
        algorithm: the algorithm that prepared the batch; it must have a critic.
        values: the critic's estimates before each token, `[B, T]`, in the reward's unit. Gradients flow through
            these values or, for a categorical head, through `outputs`.
        batch: all or some rows of a critic's mini-batch.
        outputs: the logits of a categorical head, `[B, T, N]`. Other heads do not need them.

    Returns:
        The loss and its metrics, from which `explained_variance_of` computes the explained variance.

    Raises:
        ValueError: the shapes differ, the algorithm has no critic, the batch was prepared without a critic, or a categorical
            head's outputs are missing.

    Example:
        >>> import jax.numpy as jnp
        >>> from rljax.algorithms import BY_NAME, Rollout, prepare, value_loss
        >>> ones = jnp.ones((1, 2, 3))
        >>> rollout = Rollout(mask=ones, behaviour_logp=-ones, rewards=jnp.array([[1.0, 0.0]]), values=0.5 * ones)
        >>> algorithm = BY_NAME["vapo"]()
        >>> value, metrics = value_loss(algorithm, jnp.full((2, 3), 0.5), prepare(algorithm, rollout))
        >>> float(value), metrics.numbers()["value_explained_variance"]
        (0.125, 0.0)
    """
    if algorithm.critic is None:
        raise ValueError("algorithm must have a critic to have a value loss, got critic=None")
    old_values, target, weights = batch.old_values, batch.value_target, batch.value_weights
    if old_values is None or target is None or weights is None:
        raise ValueError("batch must have value targets, got None: prepare it with an algorithm that has a critic")
    _check_rows(batch, values=values)
    head = algorithm.critic.head
    if head.distribution is None:
        per_token = algorithm.critic.loss(values, old_values, target, batch.mask)
    else:
        per_token = _categorical_loss(head.distribution(target), outputs, batch.mask)
    total = (weights * per_token).sum()
    target = zero_outside(target, batch.mask)
    error = jax.lax.stop_gradient(target - zero_outside(values, batch.mask))
    return total, ValueMetrics(
        loss=total,
        weight=weights.sum(),
        target_sum=(weights * target).sum(),
        target_square=(weights * jnp.square(target)).sum(),
        error_sum=(weights * error).sum(),
        error_square=(weights * jnp.square(error)).sum(),
    )


def _categorical_loss(distribution: Float[Array, "B T N"], outputs: Array | None, mask: Array) -> Float[Array, "B T"]:
    """Cross-entropy between a categorical head and its target distributions."""
    if outputs is None or outputs.shape != distribution.shape:
        shown = None if outputs is None else list(outputs.shape)
        raise ValueError(
            f"outputs must be the logits of the categorical head, of shape {list(distribution.shape)}, got {shown}"
        )
    return categorical_cross_entropy(outputs, distribution, mask)
