"""DPPO: divergence proximal policy optimization (arXiv:2602.04879)."""

from functools import partial

from jaxtyping import Array, Bool, Float

from rljax.algorithms.algorithm import Algorithm, TermInputs
from rljax.algorithms.corrections import sampling_denominator
from rljax.ops.arrays import Number, check_at_least, check_nonnegative
from rljax.ops.group import group_centered
from rljax.ops.off_policy import binary_total_variation, in_trust_region
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import cispo
from rljax.ops.weights import token_mean


def within_total_variation(
    inputs: TermInputs, advantage: Float[Array, "B T"], mask: Bool[Array, "B T"], *, threshold: Number
) -> Bool[Array, "B T"]:
    """Tokens whose total variation from the sampling policy is at most the threshold, or whose update reduces it."""
    log_ratio = token_log_ratio(inputs.logp, inputs.behaviour_logp, mask)
    divergence = binary_total_variation(inputs.logp, inputs.behaviour_logp)
    return in_trust_region(log_ratio, advantage, divergence, threshold=threshold)


def dppo(*, threshold: float = 0.15, cap: float = 5.0) -> Algorithm:
    """DPPO with binary total variation (arXiv:2602.04879): mask a token by how far its probability moved, not by its ratio.

    ::

        J = (1/Σ|o_i|) Σ_i Σ_t M_it sg[min(ρ_it, C)] A_i log π(o_it)      A_i = r_i - mean r      ρ_it = π(o_it) / μ(o_it)
        M_it = 0 if |π(o_it) - μ(o_it)| > δ and (A_i > 0 and ρ_it > 1, or A_i < 0 and ρ_it < 1), else 1

    Args:
        threshold: δ = 0.15, how far a token's probability may move (Appendix C.1); most of the paper's runs use 0.2.
        cap: C = 5, the largest ratio that scales a gradient; the paper uses 5 or no cap. The authors' code has
            10 by default, and verl has 20.

    μ is the sampling policy, with the log-probabilities that the sampler itself reported, because Section 5.2 warns against
    measuring the trust region from log-probabilities that the learner recomputes. So the ratio's denominator is
    `behaviour_logp`, even if the sampler has older parameters or is another engine. With top-k or top-p, μ is the probability
    after truncation.

    Deviations: the mean is over all tokens of the optimizer batch. The objective has log ρ in place of log π, which changes its
    value but not its gradient. `rljax.ops.off_policy.binary_kl` is the paper's other binary divergence; divergences over the K
    largest probabilities are left out, because they need logits that a rollout does not keep.
    """
    check_nonnegative(threshold=threshold)
    check_at_least(1, cap=cap)
    return Algorithm(
        advantage=group_centered,
        denominator=sampling_denominator,
        log_ratio=token_log_ratio,
        surrogate=partial(cispo, low=1.0, high=cap - 1),
        weights=token_mean,
        surrogate_mask=partial(within_total_variation, threshold=threshold),
    )
