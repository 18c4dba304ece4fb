"""Metrics of the losses: sums over tokens, so that they add up over rows and micro-batches."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from rljax.ops.arrays import in_float32


class LossMetrics(NamedTuple):
    """Metrics of the policy's loss. Each is a sum, so the metrics of a batch's micro-batches add up: `jax.tree.map(add)`."""

    loss: Float[Array, ""]
    """The loss itself."""
    share: Float[Array, ""]
    """Fraction of the optimizer batch's trained tokens that are in these rows: 1 over all rows, 0 if the batch has none."""
    clip_fraction: Float[Array, ""]
    """Fraction of tokens at which the surrogate does not change with the log-ratio, although the advantage is not 0."""
    kl: Float[Array, ""]
    """k3 estimate of KL(policy before the update ‖ policy being trained), nats per token."""
    ratio: Float[Array, ""]
    """Mean importance ratio."""
    entropy: Float[Array, ""] | None
    """Mean entropy, nats per token; None if the loss was called without entropies."""
    terms: dict[str, Float[Array, ""]]
    """Weighted sum of each extra term of the loss, before its coefficient, by the term's name."""
    surrogate_masked: Float[Array, ""] | None = None
    """Fraction of tokens whose surrogate `Algorithm.surrogate_mask` removes; None if there is no such mask."""
    clip_fraction_low: Float[Array, ""] | None = None
    """The part of `clip_fraction` from tokens with a negative advantage."""
    clip_fraction_high: Float[Array, ""] | None = None
    """The part of `clip_fraction` from tokens with a positive advantage."""
    up_clipped: Float[Array, ""] | None = None
    """Probabilities before the update, summed over the tokens of `clip_fraction_high` and divided by the number of all tokens."""

    def numbers(self) -> dict[str, float]:
        """Return the metrics as Python floats by name, including the terms; empty for a batch without trained tokens.

        Example:
            >>> import jax.numpy as jnp
            >>> one, zero = jnp.ones(()), jnp.zeros(())
            >>> LossMetrics(one, one, zero, zero, one, None, {"reference_kl": zero}).numbers()
            {'loss': 1.0, 'clip_fraction': 0.0, 'kl': 0.0, 'ratio': 1.0, 'reference_kl': 0.0}
            >>> LossMetrics(zero, zero, zero, zero, zero, None, {}).numbers()
            {}
        """
        if not float(self.share):
            return {}
        fields = self._asdict()
        del fields["share"], fields["up_clipped"], fields["terms"]
        values = {name: float(value) for name, value in (fields | self.terms).items() if value is not None}
        if self.up_clipped is not None and values["clip_fraction_high"]:
            values["up_clipped_probability"] = float(self.up_clipped) / values["clip_fraction_high"]
        return values


class ValueMetrics(NamedTuple):
    """Metrics of the critic's loss. Each is a sum, so the metrics of a batch's micro-batches add up: `jax.tree.map(add)`."""

    loss: Float[Array, ""]
    """The loss itself."""
    weight: Float[Array, ""]
    """Σ w, with the token weights w of the critic's loss; 0 for a batch without trained tokens."""
    target_sum: Float[Array, ""]
    """Σ w R, with the value targets R."""
    target_square: Float[Array, ""]
    """Σ w R²."""
    error_sum: Float[Array, ""]
    """Σ w (R - V), with the critic's errors R - V."""
    error_square: Float[Array, ""]
    """Σ w (R - V)²."""

    def numbers(self) -> dict[str, float]:
        """Return `value_loss` and `value_explained_variance` as Python floats; empty for a batch without trained tokens.

        Example:
            >>> import jax.numpy as jnp
            >>> ValueMetrics(*jnp.array([0.5, 1.0, 1.0, 2.0, 0.0, 0.25])).numbers()
            {'value_loss': 0.5, 'value_explained_variance': 0.75}
            >>> ValueMetrics(*jnp.zeros(6)).numbers()
            {}
        """
        if not float(self.weight):
            return {}
        return {"value_loss": float(self.loss), "value_explained_variance": float(explained_variance_of(self))}


@in_float32
def explained_variance_of(metrics: ValueMetrics) -> Float[Array, ""]:
    """Explained variance from the sums returned by `value_loss`, added up over micro-batches.

    ::

        EV = 1 - Var[R - V] / Var[R]        Var[x] = Σ w x² / Σ w - (Σ w x / Σ w)²

    Args:
        metrics: the sums, from one batch or from all its micro-batches added up.

    Returns:
        A dimensionless scalar, at most 1; 0 if the targets vary by no more than rounding error, or if there are no tokens.

    Example:
        >>> import jax.numpy as jnp
        >>> explained_variance_of(ValueMetrics(*jnp.array([0.5, 1.0, 1.0, 2.0, 0.0, 0.25]))).item()
        0.75

    Source:
        `rljax.ops.value.explained_variance`, computed from sums; a convergence criterion of VC-PPO, arXiv:2503.01491.
    """
    weight = jnp.where(metrics.weight > 0, metrics.weight, 1.0)

    def variance(total: Array, square: Array) -> Array:
        return square / weight - jnp.square(total / weight)

    target = variance(metrics.target_sum, metrics.target_square)
    residual = variance(metrics.error_sum, metrics.error_square)
    # The variance is a difference of two sums: for a constant target, it is a few rounding errors of the target's square. Each
    # target is itself a sum that includes the critic's values, so even equal outcomes leave rounding errors of those values.
    eps = float(jnp.finfo(target.dtype).eps)
    rounding = 8 * eps * metrics.target_square + jnp.square(64 * eps) * (metrics.target_square + metrics.error_square)
    constant = target <= rounding / weight
    return jnp.where(constant, 0.0, 1 - residual / jnp.where(constant, 1.0, target))
