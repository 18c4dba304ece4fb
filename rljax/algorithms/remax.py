"""ReMax: the greedy response's reward as the baseline (arXiv:2310.10505)."""

from rljax.algorithms.algorithm import Algorithm, Credit
from rljax.ops.baseline import greedy_centered
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import reinforce
from rljax.ops.weights import sequence_sum


def remax() -> Algorithm:
    """ReMax (arXiv:2310.10505): REINFORCE with one response per prompt; the baseline is the greedy response's reward.

    ::

        ∇J = (1/B) Σ_i (r_i - r(greedy)) ∇ log π(o_i | q)      greedy_t = argmax π(· | q, greedy_<t)

    Deviations: the paper's KL penalty in the reward is left out. A penalty that you add with `_replace(reward_kl=...)` or
    `shape_reward` applies to the rewards of the sampled responses but not to the greedy one's. The greedy response is generated
    and scored along with the others but not trained on; a prompt is left out if the reward abstains on its greedy response. ReMax
    is on-policy, so take one update per rollout. The objective has log(π/π_old) in place of log π, which changes its value but
    not its gradient.
    """
    return Algorithm(
        advantage=Credit(greedy_centered, needs=("rewards", "greedy_rewards")),
        log_ratio=token_log_ratio,
        surrogate=reinforce,
        weights=sequence_sum,
        group_size=1,
    )
