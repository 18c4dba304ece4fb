"""Rewards of tasks that train on something other than the truth, each beside the verifier that decides what is correct.

The verifier has the weight 0: it changes no reward, and it alone decides the accuracy of training samples.
"""

from rljax.rewards.exact import exact
from rljax.rewards.protocol import Weighted
from rljax.tasks.exploit import judged
from rljax.tasks.outliers import noisy

EXPLOIT = Weighted({"learned": judged, "exact": exact}, {"learned": 1.0, "exact": 0.0}, name="exploit")
"""Reward of the task `exploit`: `judged`, and as its part `exact` the share of right answers."""
OUTLIERS = Weighted({"noisy": noisy, "exact": exact}, {"noisy": 1.0, "exact": 0.0}, name="outliers")
"""Reward of the task `outliers`: `noisy`, and as its part `exact` the share of right answers."""
