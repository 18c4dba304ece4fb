"""Rewards of tasks that train on something other than correctness, each combined with the verifier that decides correctness.

The verifier has weight 0, so it does not change the reward; the accuracy of training samples is computed from it alone.
"""

from rljax.rewards.exact import exact
from rljax.rewards.reward_scores import Weighted
from rljax.tasks.exploit import exploitable_reward
from rljax.tasks.outliers import noisy_reward

EXPLOIT = Weighted({"learned": exploitable_reward, "exact": exact}, {"learned": 1.0, "exact": 0.0}, name="exploit")
"""Reward of the task `exploit`: `exploitable_reward`, with `exact` as the verifier."""
OUTLIERS = Weighted({"noisy": noisy_reward, "exact": exact}, {"noisy": 1.0, "exact": 0.0}, name="outliers")
"""Reward of the task `outliers`: `noisy_reward`, with `exact` as the verifier."""
