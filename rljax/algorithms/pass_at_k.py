"""Pass@k training with analytical advantages (arXiv:2508.10751)."""

from functools import partial

from rljax.algorithms.algorithm import Algorithm
from rljax.ops.pass_at_k import pass_at_k_normalized
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import clipped
from rljax.ops.weights import sequence_mean


def pass_at_k(*, k: int = 2, clip: float = 0.2, eps: float = 1e-6) -> Algorithm:
    """Pass@k training (arXiv:2508.10751): GRPO on all subsets of k responses at once, each with its best response's reward.

    ::

        J = (1/G) Σ_i (1/|o_i|) Σ_t min(ρ_it A_i, clip(ρ_it, 1-ε, 1+ε) A_i)
        A_i = mean of (R_I - mean R) / std R over the subsets I of size k that contain i
        R_I = 1 if a response of I is right, else 0

    Args:
        k: number of responses in a subset, from 1 to G; 2 is possible with every group size; the paper varies k.
        clip: ε = 0.2, as in PPO.
        eps: added to the standard deviation; none in the paper, 1e-6 in the authors' code.

    Deviations: the advantage is the paper's closed form, inside GRPO's objective without KL. A response is right if its total
    reward is above 0, so if a verifier is only one of several rewards, set the weights of the others to 0.
    """
    return Algorithm(
        advantage=partial(pass_at_k_normalized, k=k, eps=eps),
        log_ratio=token_log_ratio,
        surrogate=partial(clipped, low=clip, high=clip),
        weights=sequence_mean,
    )
