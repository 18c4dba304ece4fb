"""Penalties and bonuses that several algorithms share; a coefficient of 0 removes the penalty or bonus entirely."""

from collections.abc import Callable
from functools import partial

from jaxtyping import Array

from rljax.algorithms.algorithm import Algorithm, Rollout, Term, TermInputs
from rljax.ops.arrays import Number, check_nonnegative, check_positive
from rljax.ops.divergence import importance_weighted_k3, k3, kl_in_reward
from rljax.ops.entropy_control import active_entropy_coefficient, adaptive_entropy_coefficient
from rljax.ops.regularization import positive_example_weights


def _entropy(inputs: TermInputs) -> Array:
    assert inputs.entropy is not None  # required by `needs`
    return inputs.entropy


def _teacher_divergence(inputs: TermInputs) -> Array:
    assert inputs.teacher_divergence is not None  # required by `needs`
    return inputs.teacher_divergence


def _negative_logp(inputs: TermInputs) -> Array:
    return -inputs.logp


def _correct_token_weights(rollout: Rollout[Array]) -> Array:
    right = rollout.rewards if rollout.correct is None else rollout.correct  # NaN, which means no verdict, is not above 0
    return positive_example_weights(right > 0, rollout.mask)


def kl_to_reference(beta: float, *, estimator: Callable[[Array, Array], Array] = k3) -> tuple[Term, ...]:
    """KL penalty in the loss, `β Σ w · estimator(logp, ref_logp)`; no term at all if beta is 0."""
    check_nonnegative(beta=beta)
    if not beta:
        return ()

    def per_token(inputs: TermInputs) -> Array:
        assert inputs.ref_logp is not None  # required by `needs`
        return estimator(inputs.logp, inputs.ref_logp)

    return (Term("reference_kl", beta, per_token, needs="ref_logp"),)


def kl_to_sampler(coefficient: float) -> tuple[Term, ...]:
    """KL penalty in the loss towards the sampling policy, `c Σ w · k3(logp, policy_logp)`; no term at all if c is 0.

    The sampler's log-probabilities are those before top-k or top-p truncation, if the rollout has them; with truncated ones, k3
    would not be 0 even for the sampler itself.
    """
    check_nonnegative(**{"coefficient of the KL to the sampler": coefficient})
    if not coefficient:
        return ()
    return (Term("sampler_kl", coefficient, lambda inputs: k3(inputs.logp, inputs.policy_logp)),)


def importance_weighted_kl(beta: float) -> tuple[Term, ...]:
    """DeepSeek-V3.2's KL penalty in the loss (arXiv:2512.02556, Eq. 7), `β Σ w · ρ k3`; no term at all if beta is 0.

    The denominator of ρ is the sampler's probability, because the estimate is unbiased only for tokens from that distribution.
    """
    check_nonnegative(beta=beta)
    if not beta:
        return ()

    def per_token(inputs: TermInputs) -> Array:
        assert inputs.ref_logp is not None  # required by `needs`
        return importance_weighted_k3(inputs.logp, inputs.behaviour_logp, inputs.ref_logp)

    return (Term("reference_kl", beta, per_token, needs="ref_logp"),)


def kl_penalty(beta: float) -> Callable[[Array, Array, Array, Array], Array] | None:
    """KL penalty in the reward, `r_t - β (log π - log π_ref)`; None if beta is 0, so that no reference model is needed."""
    check_nonnegative(beta=beta)
    return partial(kl_in_reward, beta=beta) if beta else None


def kl_coefficient(algorithm: Algorithm) -> Number:
    """β of the KL penalty towards the reference: from the term that reads `ref_logp`, or from the keyword of `reward_kl`.

    Raises:
        ValueError: the algorithm has no such penalty, or two; `reward_kl` has no keyword `beta`; or β is not positive.

    Example:
        >>> from rljax.algorithms import BY_NAME
        >>> kl_coefficient(BY_NAME["grpo"](beta=0.04)), kl_coefficient(BY_NAME["ppo"](beta=0.1))
        (0.04, 0.1)
    """
    coefficients = {f"the term {term.name!r}": term.coefficient for term in algorithm.terms if _reads_reference(term)}
    if algorithm.reward_kl is not None:
        keywords = algorithm.reward_kl.keywords if isinstance(algorithm.reward_kl, partial) else {}
        if "beta" not in keywords:
            raise ValueError(
                "algorithm.reward_kl must be a partial function with the keyword beta to have a coefficient that can change, "
                f"got {algorithm.reward_kl!r:.80}"
            )
        coefficients["reward_kl"] = keywords["beta"]
    if len(coefficients) != 1:
        raise ValueError(f"algorithm must have one KL penalty to the reference, got {' and '.join(coefficients) or 'none'}")
    (beta,) = coefficients.values()
    check_positive(**{"coefficient of the KL penalty": beta})
    return beta


def with_kl_coefficient(algorithm: Algorithm, coefficient: Number) -> Algorithm:
    """Replace β of the algorithm's KL penalty towards the reference (see `kl_coefficient`); the new β may be traced.

    Example:
        >>> from rljax.algorithms import BY_NAME
        >>> with_kl_coefficient(BY_NAME["grpo"](beta=0.04), 0.5).terms[0].coefficient
        0.5
    """
    terms = tuple(term._replace(coefficient=coefficient) if _reads_reference(term) else term for term in algorithm.terms)
    if algorithm.reward_kl is None:
        return algorithm._replace(terms=terms)
    subtract_kl: Callable[..., Array] = algorithm.reward_kl
    return algorithm._replace(terms=terms, reward_kl=partial(subtract_kl, beta=coefficient))


def _reads_reference(term: Term) -> bool:
    return term.needs == "ref_logp"


def entropy_bonus(coefficient: float) -> tuple[Term, ...]:
    """Entropy in the objective, `-c Σ w · H`; no term at all if c is 0."""
    check_nonnegative(**{"coefficient of the entropy bonus": coefficient})
    if not coefficient:
        return ()
    return (Term("entropy_bonus", -coefficient, _entropy, needs="entropy"),)


def adaptive_entropy_bonus(*, target: float, step: float, initial: float, high: float) -> tuple[Term, ...]:
    """Entropy in the objective, `-α_k Σ w · H`, with a coefficient that keeps the entropy above a target (Skywork-OR1, Eq. 3.2).

    The trainer adjusts the coefficient after each step, from the entropy in that step, as the authors' code does. In the paper's
    equation, the entropy of a step decides whether that same step has a bonus.
    """
    check_nonnegative(initial=initial, step=step)
    check_positive(target=target, high=high)

    def follow(coefficient: Number, entropy: Number) -> tuple[Number, Number]:
        after = adaptive_entropy_coefficient(coefficient, entropy, target=target, step=step, high=high)
        return after, active_entropy_coefficient(after, entropy, target=target)

    return (Term("entropy_bonus", -initial, _entropy, needs="entropy", follow=follow),)


def distance_from_teacher(coefficient: float) -> tuple[Term, ...]:
    """Divergence from the teacher in the loss, `c Σ w · D`, with D from `teacher_divergence`; no term at all if c is 0."""
    check_nonnegative(**{"coefficient of the divergence from the teacher": coefficient})
    if not coefficient:
        return ()
    return (Term("teacher_divergence", coefficient, _teacher_divergence, needs="teacher_divergence"),)


def positive_examples(coefficient: float) -> tuple[Term, ...]:
    """Language-model loss on correct responses, `c · mean{-log π(o_it) : r_i > 0}`, with equal weight on all their tokens.

    A response is correct if a verifier judges it correct or, without a verifier, if its unshaped reward is above 0. No term at all
    if c is 0.
    """
    check_nonnegative(**{"coefficient of the loss on correct responses": coefficient})
    if not coefficient:
        return ()
    return (Term("positive_examples", coefficient, _negative_logp, weights=_correct_token_weights),)
