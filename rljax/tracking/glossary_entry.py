"""Entry of the glossary for one number."""

from typing import NamedTuple

from rljax.records import documented

RL, WARM, VALUE, HELD, PAIRS = "rl", "warm_start", "value", "eval", "pairs"


@documented
class Entry(NamedTuple):
    """One number of a run."""

    name: str
    """Name in `metrics.jsonl`."""
    phases: str
    """Phases whose rows have it; "pairs" stands for `reward_model` and `preference`."""
    unit: str
    """Unit in `metrics.jsonl`."""
    meaning: str
    """What it is."""
    formula: str
    """How it is computed."""
    source: str
    """Function or record that computes it, as a dotted name."""
    expect: str
    """What is usual."""
    act: str
    """What to do if it is not."""
