"""ReMax: the reward of the greedy response as baseline (arXiv:2310.10505)."""

from rljax.algorithms.algorithm import Algorithm, Credit
from rljax.ops.baseline import greedy_centered
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import reinforce
from rljax.ops.weights import sequence_sum


def remax() -> Algorithm:
    """ReMax (arXiv:2310.10505): REINFORCE with one response a prompt; the baseline is the reward of the greedy response.

    ::

        ∇J = (1/B) Σ_i (r_i - r(greedy)) ∇ log π(o_i | q)      greedy_t = argmax π(· | q, greedy_<t)

    Args:
        no options.

    Deviations: no KL penalty, which the paper puts into the reward. With `_replace(reward_kl=...)` or `shape_reward` the penalty is
    in the rewards of the sampled responses but not in the greedy response's. The greedy response is generated and judged together
    with the others but not trained on; a prompt whose greedy response the reward cannot judge is left out. It is on-policy: take
    one update per rollout. The value of the objective is relative to the sampling policy's (log ρ in place of log π); the
    gradient is the same.
    """
    return Algorithm(
        advantage=Credit(greedy_centered, needs=("rewards", "greedy_rewards")),
        log_ratio=token_log_ratio,
        surrogate=reinforce,
        weights=sequence_sum,
        group_size=1,
    )
