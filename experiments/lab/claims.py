"""Claims of papers about algorithms, each tested by its own experiment.

A claim is a file in experiments/claims/ that defines `CLAIM`. Its results, the metrics of every arm and seed, are in the JSON
file next to it. A claim's statistic has one value per seed; higher values support the claim more. Seeds are paired, because all
arms train on the same worlds. The 95 % interval of the statistic decides the claim, by the same rule for all claims
(`verdict_of`).
"""

import importlib.util
import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import stats

from rljax.book.claims import Interval, Verdict, claims_folder
from rljax.errors import InputError
from rljax.text import did_you_mean, one_line

ArmMetrics = Mapping[str, np.ndarray]
"""Metrics of one arm by name, each with a leading axis over seeds."""
Arms = Mapping[str, ArmMetrics]
"""Metrics of every arm, for the same seeds in the same order."""
FEWEST_SEEDS = 5
"""A claim with fewer seeds is not decided."""

RATES_AFTER_PILOT = (
    "The verifier's errors and how often the first policy is right were chosen after a pilot run, in which the largest of the four "
    "learning rates was the best in every arm."
)
"""Text for the `pilot` of several claims."""

ERRORS_AFTER_PILOT = (
    "The verifier's errors were added after a pilot run without them, in which the largest learning rate was the best in most "
    "arms, and these ended alike."
)
"""Text for the `pilot` of several claims."""


@dataclass(frozen=True)
class Claim:
    """A claim, and the experiment that decides it."""

    paper: str
    """Source of the claim, such as `DAPO, arXiv:2503.14476`."""
    place: str
    """Section, equation or table."""
    text: str
    """The claim, in this project's words."""
    arms: Mapping[str, Any]
    """Name of an arm -> its settings."""
    measure: Callable[[Any, Sequence[int]], ArmMetrics]
    """(settings of an arm, seeds) -> metrics of the arm."""
    statistic: Callable[[Arms], np.ndarray]
    """Metrics of every arm -> the statistic, one value per seed."""
    unit: str
    """Description of the statistic, with its unit."""
    margin: float = 0.0
    """Smallest size of the statistic that would matter."""
    kind: Literal["above", "equal"] = "above"
    """What the claim says: the statistic is above the margin (`above`), or it is within the margin of 0 (`equal`)."""
    seeds: int = 16
    """Number of seeds, starting at `first_seed`, or after the seeds of `first_look`."""
    first_seed: int = 0
    """First seed; smaller seeds were used while the experiment was designed, see `pilot`. Must be 0 with a `first_look`."""
    first_look: Interval | None = None
    """Undecided result of the first seeds, if other seeds decide the claim."""
    figures: Mapping[str, Callable[[Arms], np.ndarray]] | None = None
    """Other statistics that the page shows, by name; they do not decide the claim."""
    condition: tuple[str, Callable[[Arms], np.ndarray]] | None = None
    """Condition for a fair test of the claim: its description, and a statistic whose interval must be above 0. Otherwise
    the claim is not decided."""
    budget: str = ""
    """Description of the arms' updates, responses and learning rates, if `lab.results.budget_of` cannot derive it."""
    pilot: str = ""
    """Sentences that state what was chosen after seeing results of this experiment; empty if nothing was chosen so."""

    def __post_init__(self) -> None:
        if self.first_seed and self.first_look is not None:
            raise ValueError("first_seed must be 0 with a first_look, which used the first seeds")

    @property
    def seed_range(self) -> range:
        """Seeds that decide the claim."""
        first = self.first_seed if self.first_look is None else self.first_look.seeds
        return range(first, first + self.seeds)

    def first_look_text(self) -> str:
        """Describe the result of the first look, and the seeds of the final result; empty without a first look.

        Example:
            >>> claim = Claim("", "", "", {}, dict, len, "", seeds=64, first_look=Interval(0.12, -0.1, 0.34, 16))
            >>> claim.first_look_text()
            '0.12 (-0.1 to 0.34) with 16 seeds, which did not decide it; the result is of 64 other seeds'
        """
        if self.first_look is None:
            return ""
        seen = f"{self.first_look.text()} with {self.first_look.seeds} seeds"
        return f"{seen}, which did not decide it; the result is of {self.seeds} other seeds"


def difference(metric: str, arm: str, baseline: str) -> Callable[[Arms], np.ndarray]:
    """Return the statistic that subtracts a metric of `baseline` from the same metric of `arm`, per seed.

    Example:
        >>> arms = {"with": {"success": np.array([0.5, 0.75])}, "without": {"success": np.array([0.25, 0.25])}}
        >>> difference("success", "with", "without")(arms).tolist()
        [0.25, 0.5]
    """
    return lambda arms: arms[arm][metric] - arms[baseline][metric]


def difference_at_equal_success(metric: str, arm: str, baseline: str) -> Callable[[Arms], np.ndarray]:
    """Return the statistic that subtracts a metric of `baseline` from the metric of `arm` at the same pass rate, per seed.

    This pass rate is 80 % of the way from the initial pass rate to the lower of the two arms' highest pass rates. Values between
    two points of a curve are interpolated; if a pass rate falls, its highest value so far counts.

    Args:
        metric: name of a metric that is a curve, with as many points as `curve`, the pass rate.
        arm: name of the first arm.
        baseline: name of the arm to subtract, with the same initial policies.

    Example:
        >>> rate = np.array([[0.0, 0.5, 1.0]])
        >>> arms = {"slow": {"curve": rate / 2, "entropy": 1 - rate / 4}, "fast": {"curve": rate, "entropy": 1 - rate}}
        >>> difference_at_equal_success("entropy", "slow", "fast")(arms).round(3).tolist()
        [0.2]
    """

    def statistic(arms: Arms) -> np.ndarray:
        rates = {name: np.maximum.accumulate(arms[name]["curve"], axis=-1) for name in (arm, baseline)}
        first = rates[arm][:, 0]
        level = first + 0.8 * (np.minimum(rates[arm][:, -1], rates[baseline][:, -1]) - first)

        def at(name: str) -> np.ndarray:
            rows = zip(level, rates[name], arms[name][metric], strict=True)
            return np.array([np.interp(x, rate, values) for x, rate, values in rows])

        return at(arm) - at(baseline)

    return statistic


STILL_LEARNING = 0.01
"""Smallest gain of the pass rate in the last fifth of training that counts as still learning."""


def still_learning(*arms: str) -> tuple[str, Callable[[Arms], np.ndarray]]:
    """Return the condition for comparing final pass rates: the mean pass rate of the arms still rises.

    If the mean no longer rises, each prompt is permanently solved or lost, and final pass rates do not show how well an arm
    learns.

    Args:
        arms: names of arms; each has a `curve`, whose number of points after the first is a multiple of 5.

    Example:
        >>> words, gain = still_learning("one")
        >>> bool(gain({"one": {"curve": np.array([[0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]])}}).item() > 0)
        False
    """

    def gain(metrics: Arms) -> np.ndarray:
        curve = np.mean([metrics[arm]["curve"] for arm in arms], axis=0)
        fifth = (curve.shape[1] - 1) // 5
        return curve[:, -1] - curve[:, -1 - fifth] - STILL_LEARNING

    return f"gain of the pass rate in the last fifth of training, minus {STILL_LEARNING:g}", gain


def at_rest(*arms: str) -> tuple[str, Callable[[Arms], np.ndarray]]:
    """Return the condition that final pass rates are the limits of training: no arm is still learning.

    If an arm is still learning, a final difference is only a difference in speed.

    Args:
        arms: names of arms, with curves as for `still_learning`.

    Example:
        >>> words, rest = at_rest("one")
        >>> bool(rest({"one": {"curve": np.linspace(0, 1, 11)[None]}}).item() > 0)
        False
    """

    def rest(metrics: Arms) -> np.ndarray:
        gains = [still_learning(arm)[1](metrics) for arm in arms]
        return -np.max(gains, axis=0)

    return f"{STILL_LEARNING:g} minus the largest gain of an arm's pass rate in the last fifth of training", rest


def agreement(metric: str, order: Sequence[str], *, tie: float) -> Callable[[Arms], np.ndarray]:
    """Return the statistic that is Kendall's rank correlation of an order of arms with a metric; small differences are ties.

    ::

        (pairs in the order - pairs against it) / all pairs

    Args:
        metric: name of the metric.
        order: names of the arms, from the lowest to the highest metric according to the claim.
        tie: largest difference that counts as a tie; a tied pair is neither in the order nor against it.

    Example:
        >>> arms = {name: {"area": np.array([value])} for name, value in (("a", 0.1), ("b", 0.5), ("c", 0.5001))}
        >>> agreement("area", ["a", "b", "c"], tie=0.01)(arms).round(2).tolist()
        [0.67]
    """

    def statistic(arms: Arms) -> np.ndarray:
        rises = [arms[high][metric] - arms[low][metric] for low, high in itertools.combinations(order, 2)]
        return np.mean([np.sign(rise) * (np.abs(rise) > tie) for rise in rises], axis=0)

    return statistic


def over_seeds(values: Sequence[float] | np.ndarray, *, fewest: int = FEWEST_SEEDS) -> Interval:
    """Compute the mean over seeds with its 95 % t interval; NaN limits with fewer than `fewest` seeds.

    Example:
        >>> over_seeds([1.0, 2.0, 3.0, 4.0, 5.0]).text(), over_seeds([1.0, 2.0]).text()
        ('3 (1.04 to 4.96)', '1.5')
    """
    seeds = [float(value) for value in values]
    if not seeds:
        return Interval(math.nan, math.nan, math.nan, 0)
    if len(seeds) < fewest:
        return Interval(mean(seeds), math.nan, math.nan, len(seeds))
    half = float(stats.t.ppf(0.975, len(seeds) - 1)) * stdev(seeds) / math.sqrt(len(seeds))
    return Interval(mean(seeds), mean(seeds) - half, mean(seeds) + half, len(seeds))


def verdict_of(interval: Interval, *, kind: Literal["above", "equal"], margin: float) -> Verdict:
    """Decide a claim from an interval.

    ::

        above:  holds here if low > m             contradicted if high < -m             not seen at this scale if high ≤ m
        equal:  holds here if -m < low, high < m  contradicted if low > m or high < -m
        else not decided

    Args:
        interval: the statistic over seeds.
        kind: what the claim says about the statistic, as in `Claim.kind`.
        margin: m, not negative.

    Returns:
        The verdict; "not decided" with fewer than `FEWEST_SEEDS` seeds, or if a limit is not finite.

    Example:
        >>> verdict_of(Interval(0.12, 0.1, 0.14, 8), kind="above", margin=0.05)
        'holds here'
        >>> verdict_of(Interval(0.12, 0.1, 0.14, 4), kind="above", margin=0.05)
        'not decided'
    """
    _, low, high, seeds = interval
    if seeds < FEWEST_SEEDS or not math.isfinite(low + high):
        return "not decided"
    if kind == "equal":
        if -margin < low and high < margin:
            return "holds here"
        return "contradicted" if low > margin or high < -margin else "not decided"
    if low > margin:
        return "holds here"
    if high < -margin:
        return "contradicted"
    return "not seen at this scale" if high <= margin else "not decided"


def claim_files() -> dict[str, Path]:
    """Return the file of each claim by name, in alphabetical order."""
    return {file.stem: file for file in sorted(claims_folder().glob("*.py"))}


class ClaimFile(NamedTuple):
    """A file of experiments/claims/."""

    name: str
    """Name of the claim."""
    file: Path
    """The file."""
    text: str
    """The file's docstring: question, setting, deviations from the paper, command."""
    claim: Claim
    """The claim that the file defines."""
    constants: Mapping[str, Any] = MappingProxyType({})
    """The file's numeric constants, which the file's functions may read."""


def read_claim_file(file: Path) -> ClaimFile:
    """Run the file of an experiment on a claim, and return what it defines.

    Raises:
        InputError: the file cannot be run, has no docstring, or does not define `CLAIM`.
    """
    spec = importlib.util.spec_from_file_location(f"rljax_claim_{file.stem}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise InputError(f"{file} is not a Python file; pass the path of a file in experiments/claims.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # like an import; dataclasses need it
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # an experiment is user code
        raise InputError(f"{file} cannot be run ({one_line(error)}); correct it.") from error
    claim, text = vars(module).get("CLAIM"), module.__doc__
    if not isinstance(claim, Claim):
        raise InputError(
            f"{file} does not define CLAIM as a lab.claims.Claim; write CLAIM = Claim(...), as in add_a_claim.md."
        )
    if not text:
        raise InputError(f"{file} has no docstring; write one: it is the claim's page.")
    constants = {name: value for name, value in vars(module).items() if name.isupper() and is_plain(value)}
    return ClaimFile(file.stem, file, text.strip(), claim, constants)


def is_plain(value: Any) -> bool:
    """True if a value is a number or a tuple of such values.

    Example:
        >>> is_plain((0.1, 3)), is_plain("words")
        (True, False)
    """
    return isinstance(value, bool | int | float) or (type(value) is tuple and all(map(is_plain, value)))


def find_claim_file(name: str) -> ClaimFile:
    """Find the file of a claim by the claim's name, and read it.

    Raises:
        InputError: there is no such claim.
    """
    files = claim_files()
    if name not in files:
        raise InputError(f"There is no claim {name!r}{did_you_mean(name, files)} The claims are {', '.join(files)}.")
    return read_claim_file(files[name])
