"""Rewards of tasks that train on something other than the truth, each combined with the verifier that decides correctness.

The verifier has weight 0: it does not change the reward, and it alone decides the accuracy of training samples.
"""

from rljax.rewards.exact import exact
from rljax.rewards.protocol import Weighted
from rljax.tasks.exploit import judged
from rljax.tasks.outliers import noisy

EXPLOIT = Weighted({"learned": judged, "exact": exact}, {"learned": 1.0, "exact": 0.0}, name="exploit")
"""Reward of the task `exploit`: `judged`, with `exact` as the verifier."""
OUTLIERS = Weighted({"noisy": noisy, "exact": exact}, {"noisy": 1.0, "exact": 0.0}, name="outliers")
"""Reward of the task `outliers`: `noisy`, with `exact` as the verifier."""
