"""Summands of the loss that several algorithms share."""

from collections.abc import Callable

from jaxtyping import Array

from rljax.algorithms.algorithm import Term
from rljax.ops.checks import check_nonnegative
from rljax.ops.divergence import k3


def kl_to_reference(beta: float, *, estimator: Callable[[Array, Array], Array] = k3) -> tuple[Term, ...]:
    """KL penalty in the loss, `β Σ w · estimator(logp, ref_logp)`; no term at all when beta is 0."""
    check_nonnegative(beta=beta)
    if beta == 0:
        return ()
    return (Term("reference_kl", beta, lambda policy: estimator(policy.logp, policy.ref_logp), needs="ref_logp"),)


def entropy_bonus(coefficient: float) -> tuple[Term, ...]:
    """Entropy in the objective, `-c Σ w · H`; no term at all when the coefficient is 0."""
    check_nonnegative(coefficient=coefficient)
    if coefficient == 0:
        return ()
    return (Term("entropy_bonus", -coefficient, lambda policy: policy.entropy, needs="entropy"),)
