"""Rollouts: requests to an engine, environments, judging, and dynamic sampling."""

from rljax.lazy import lazy_names
from rljax.rollout.engine import DecodingEngine
from rljax.rollout.engine_protocols import Dialogue, DialogueEngine, Engine, Request, Response, Sampling, StreamingEngine
from rljax.rollout.environment import Environment, Step
from rljax.rollout.groups import Collected, Groups, collect, for_algorithm, pad
from rljax.rollout.judging import Judge
from rljax.rollout.layout import (
    Layout,
    Sequences,
    lay_out,
    lay_out_examples,
    pack_one_per_row,
    sequences_of,
    sequences_of_demonstrations,
)
from rljax.rollout.worker import RolloutWorker

__all__ = [
    "Collected",
    "DecodingEngine",
    "Dialogue",
    "DialogueEngine",
    "Engine",
    "Environment",
    "Groups",
    "Judge",
    "Layout",
    "Request",
    "Response",
    "RolloutWorker",
    "Sampling",
    "Sequences",
    "Step",
    "StreamingEngine",
    "collect",
    "for_algorithm",
    "lay_out",
    "lay_out_examples",
    "pack_one_per_row",
    "pad",
    "sequences_of",
    "sequences_of_demonstrations",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    renamed={
        **{"demonstrated": "sequences_of_demonstrations", "pack": "pack_one_per_row"},
        **{"search": "beam_search", "stopping": "stop_strings", "dialogue": "cached_dialogue"},
    },
)
