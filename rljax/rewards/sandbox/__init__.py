"""A sandbox for the programs that models write: a program runs confined, and a second process runs its tests.

`judge` runs one program's tests and `judge_all` those of many; `text_of` runs a program and returns what it says. `level` finds the
strongest confinement that this machine offers, and `unavailable` says why a stronger one does not work.
`rljax.rewards.sandbox.threats` contains the threat model.
"""

from rljax.lazy import lazy_names
from rljax.rewards.sandbox.judging import Limits, Output, Program, Verdict, judge, judge_all, level, text_of, unavailable
from rljax.rewards.sandbox.threats import LEVELS

__all__ = ["LEVELS", "Limits", "Output", "Program", "Verdict", "judge", "judge_all", "level", "text_of", "unavailable"]

__getattr__, __dir__ = lazy_names(__name__)
