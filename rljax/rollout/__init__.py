"""Floor 4: sampling from a model, judging, and collecting groups."""

from rljax.rollout.collect import Collected, collect
from rljax.rollout.engine import Engine
from rljax.rollout.groups import Groups, pad
from rljax.rollout.sampling import Samples, Sampling, sample

__all__ = ["Collected", "Engine", "Groups", "Samples", "Sampling", "collect", "pad", "sample"]
