"""Penalties and bonuses that several algorithms share; a coefficient of 0 leaves one out altogether."""

from collections.abc import Callable
from functools import partial

from jaxtyping import Array

from rljax.algorithms.algorithm import Term
from rljax.ops.checks import check_nonnegative
from rljax.ops.divergence import k3, kl_in_reward
from rljax.ops.regularise import positive_example_weights


def kl_to_reference(beta: float, *, estimator: Callable[[Array, Array], Array] = k3) -> tuple[Term, ...]:
    """KL penalty in the loss, `β Σ w · estimator(logp, ref_logp)`; no term at all when beta is 0."""
    check_nonnegative(beta=beta)
    if beta == 0:
        return ()
    return (Term("reference_kl", beta, lambda inputs: estimator(inputs.logp, inputs.ref_logp), needs="ref_logp"),)


def kl_penalty(beta: float) -> Callable[[Array, Array, Array, Array], Array] | None:
    """KL penalty in the reward, `r_t - β (log π - log π_ref)`; no slot, and no reference model, when beta is 0."""
    check_nonnegative(beta=beta)
    return None if beta == 0 else partial(kl_in_reward, beta=beta)


def entropy_bonus(coefficient: float) -> tuple[Term, ...]:
    """Entropy in the objective, `-c Σ w · H`; no term at all when the coefficient is 0."""
    check_nonnegative(coefficient=coefficient)
    if coefficient == 0:
        return ()
    return (Term("entropy_bonus", -coefficient, lambda inputs: inputs.entropy, needs="entropy"),)


def positive_examples(coefficient: float) -> tuple[Term, ...]:
    """Language-model loss on correct responses, `c · mean{-log π(o_it) : r_i > 0}`, every token of theirs counting the same.

    A response is correct when its unshaped reward is above 0. No term at all when the coefficient is 0.
    """
    check_nonnegative(coefficient=coefficient)
    if coefficient == 0:
        return ()
    term = Term(
        "positive_examples",
        coefficient,
        lambda inputs: -inputs.logp,
        weights=lambda part: positive_example_weights(part.rewards > 0, part.mask),
    )
    return (term,)
