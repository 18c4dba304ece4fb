"""A sandbox for the programs that models write: a program runs confined, and a second process runs its tests.

`judge` runs one program's tests, `judge_all` runs the tests of many programs, and `text_of` returns the text that a program's
function returns. `level` finds the strongest confinement that works on this machine, and `unavailable` explains why stronger
levels do not work. `rljax.rewards.sandbox.threats` contains the threat model.
"""

from rljax.lazy import lazy_names
from rljax.rewards.sandbox.judging import Limits, Output, Program, Verdict, judge, judge_all, level, text_of, unavailable
from rljax.rewards.sandbox.threats import LEVELS

__all__ = ["LEVELS", "Limits", "Output", "Program", "Verdict", "judge", "judge_all", "level", "text_of", "unavailable"]

__getattr__, __dir__ = lazy_names(__name__)
