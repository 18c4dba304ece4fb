"""A sandbox for the programs that models write: a program runs confined, and a second process runs its tests.

`judge` runs one program's tests and `judge_all` those of many; `level` finds the strongest confinement that this machine offers.
"""

from rljax.rewards.sandbox.judging import LEVELS, Limits, Program, Verdict, judge, judge_all, level

__all__ = ["LEVELS", "Limits", "Program", "Verdict", "judge", "judge_all", "level"]
