"""GRPO: group relative policy optimization (arXiv:2402.03300), with outcome, process or turn supervision."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm, Credit
from rljax.algorithms.terms import kl_to_reference
from rljax.ops.group import group_normalized, process_normalized, turn_normalized
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import clipped
from rljax.ops.weights import sequence_mean


def grpo(*, clip: float = 0.2, beta: float = 0.04, eps: float = 1e-6, ddof: int = 1) -> Algorithm:
    """GRPO with outcome supervision (arXiv:2402.03300, Eq. 3).

    ::

        J = (1/G) Σ_i (1/|o_i|) Σ_t [min(ρ_it A_i, clip(ρ_it, 1-ε, 1+ε) A_i) - β k3_it]      A_i = (r_i - mean r) / std r

    Args:
        clip: ε = 0.2, as in PPO; the paper states no value.
        beta: β = 0.04 (Section 4.2), weight of the KL to the reference policy; 0 removes the term and the reference model.
        eps: added to the standard deviation (not stated in the paper).
        ddof: delta degrees of freedom of the standard deviation (not stated in the paper).

    Deviations: none known. Other settings of the paper: learning rate 1e-6, 64 responses per prompt, at most 1024 tokens,
    batches of 1024, one update per rollout.
    """
    return Algorithm(
        advantage=partial(group_normalized, eps=eps, ddof=ddof),
        log_ratio=token_log_ratio,
        surrogate=partial(clipped, low=clip, high=clip),
        weights=sequence_mean,
        terms=kl_to_reference(beta),
        group_size=64,
    )


def grpo_process(*, clip: float = 0.2, beta: float = 0.04, eps: float = 1e-6, ddof: int = 1) -> Algorithm:
    """GRPO with process supervision (arXiv:2402.03300, Section 4.1.3).

    ::

        J of `grpo` with  A_it = Σ_{steps j of i : end(j) ≥ t} (r_ij - mean R) / std R      R = step rewards of the group

    Args:
        clip: ε = 0.2, as in PPO; the paper states no value.
        beta: β = 0.04 (Section 4.2), weight of the KL to the reference policy; 0 removes the term and the reference model.
        eps: added to the standard deviation (not stated in the paper).
        ddof: delta degrees of freedom of the standard deviation (not stated in the paper).

    Deviations: none known. The outcome reward is not read; pass it as the reward of the last step.
    """
    process = partial(process_normalized, eps=eps, ddof=ddof)
    return grpo(clip=clip, beta=beta)._replace(advantage=Credit(process, needs=("step_rewards", "step_end")))


def mt_grpo(
    *, clip: float = 0.2, beta: float = 0.04, turn_discount: float = 1.0, eps: float = 1e-6, ddof: int = 1
) -> Algorithm:
    """MT-GRPO: GRPO with credit for each turn of an agent (arXiv:2505.11821, Section 4).

    ::

        J of `grpo` with  A_it = Σ_{turns j ≥ k} λ^{j-k} (r_ij - mean_i r_ij) / std_i r_ij      k = turn of token t

    Args:
        clip: ε = 0.2, as in PPO.
        beta: β = 0.04 (GRPO's), weight of the KL to the reference policy; 0 removes the term and the reference model.
        turn_discount: λ, weight of the next turn's advantage; in the paper, weight of the outcome in the first turn.
        eps: added to the standard deviation (not stated in the paper).
        ddof: delta degrees of freedom of the standard deviation (not stated in the paper).

    Deviations: the paper has two turns, the second of which earns the reward of the outcome; here a response may have any number
    of turns, each compared with the same turn of the other responses. The turns are the steps of the environment or, without
    an environment, the steps that a step reward scores.
    """
    credit = partial(turn_normalized, discount=turn_discount, eps=eps, ddof=ddof)
    return grpo(clip=clip, beta=beta)._replace(advantage=Credit(credit, needs=("step_rewards", "step_end")))
