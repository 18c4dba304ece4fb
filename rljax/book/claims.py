"""Committed results of the experiments on the papers' claims: verdicts, statistics and budgets, read from JSON.

Nothing here trains a model. The experiments are in experiments/claims, the rule for their verdicts is in experiments/lab, and
`rljax claims --rerun` runs the experiments and writes these results.
"""

import ast
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rljax.errors import InputError
from rljax.files import experiments_folder
from rljax.text import did_you_mean

Verdict = Literal["holds here", "contradicted", "not seen at this scale", "not decided"]
VERDICTS: tuple[Verdict, ...] = ("holds here", "contradicted", "not seen at this scale", "not decided")
"""All verdicts, in the order of tables."""


class Interval(NamedTuple):
    """A mean over seeds, with its 95 % interval."""

    value: float
    """The mean; NaN if there are no seeds."""
    low: float
    """Lower end; NaN with fewer than 5 seeds."""
    high: float
    """Upper end; NaN with fewer than 5 seeds."""
    seeds: int
    """Number of seeds."""

    @property
    def has_width(self) -> bool:
        """Whether there are enough seeds for an interval, and their values differ: equal values say nothing about the spread."""
        return self.high - self.low > 1e-9

    def text(self) -> str:
        """Format the mean, with its interval if it has a width.

        Example:
            >>> Interval(0.12, 0.1, 0.14, 8).text(), Interval(0.12, math.nan, math.nan, 1).text(), Interval(1.0, 1.0, 1.0, 8).text()
            ('0.12 (0.1 to 0.14)', '0.12', '1')
        """
        if math.isnan(self.value):
            return "-"
        interval = f" ({self.low:.3g} to {self.high:.3g})" if self.has_width else ""
        return f"{self.value:.3g}{interval}"


class ClaimResult(NamedTuple):
    """A claim and the committed result of its experiment."""

    name: str
    """Name of the claim and of its files."""
    page: str
    """Question, setting, deviations from the paper, and command: the docstring of the experiment."""
    paper: str
    """Source of the claim, such as `DAPO, arXiv:2503.14476`."""
    place: str
    """Section, equation or table of the paper that makes the claim."""
    text: str
    """The claim, in our words."""
    verdict: Verdict
    """Verdict of the experiment."""
    statistic: Interval
    """The statistic that decides the verdict, over seeds; a larger one supports the claim more."""
    unit: str
    """Description of the statistic, with its unit."""
    kind: Literal["above", "equal"]
    """`above`: the claim is that the statistic is above the margin; `equal`: that it differs from 0 by at most the margin."""
    margin: float
    """Smallest absolute value of the statistic that would matter in practice."""
    budget: str
    """What all arms of the experiment have in common, and whether their learning rates were tuned; empty if no arm is trained."""
    condition: str
    """Description of the premise that the experiment needs; empty if it needs none."""
    condition_statistic: Interval | None
    """A statistic whose interval must be above 0 for the premise to be met; None if there is no premise."""
    figures: dict[str, Interval]
    """Other statistics, by name; they do not affect the verdict."""
    first_look: str
    """The undecided result of an earlier experiment with other seeds; empty if there was none."""
    pilot: str
    """Choices made after seeing results; empty if there were none."""
    means: dict[str, dict[str, float]]
    """Arm -> name of a metric -> its mean over the seeds."""
    date: str
    """Date of the last run, `YYYY-MM-DD`."""
    minutes: float
    """Duration of the experiment on two cores, in minutes."""

    @property
    def has_one_rate(self) -> bool:
        """True if all arms were trained at the same learning rate, which may suit some arms better than others."""
        return "one fixed learning rate" in self.budget

    @property
    def command(self) -> str:
        """Command that runs the experiment again."""
        return f"rljax claims --rerun {self.name}"


def claims_folder() -> Path:
    """Return the folder of the claim experiments, in a wheel or a checkout.

    Raises:
        InputError: this installation does not contain the experiments.
    """
    return experiments_folder() / "claims"


def claim_names() -> list[str]:
    """Return the names of the claims with committed results, in alphabetical order."""
    return sorted(file.stem for file in claims_folder().glob("*.json"))


def read_claim(name: str) -> ClaimResult:
    """Read the committed result of a claim.

    Raises:
        InputError: there is no such claim.
    """
    names = claim_names()
    if name not in names:
        raise InputError(f"There is no claim {name!r}{did_you_mean(name, names)} The claims are {', '.join(names)}.")
    file = claims_folder() / f"{name}.json"
    stored = json.loads(file.read_text(encoding="utf-8"))
    claim = stored["claim"]
    condition = claim["condition_statistic"]
    return ClaimResult(
        name=name,
        page=ast.get_docstring(ast.parse(file.with_suffix(".py").read_text(encoding="utf-8"))) or "",
        date=stored["date"],
        minutes=stored["seconds"] / 60,
        **claim
        | {
            "statistic": read_interval(claim["statistic"]),
            "condition_statistic": None if condition is None else read_interval(condition),
            "figures": {words: read_interval(found) for words, found in claim["figures"].items()},
        },
    )


def read_interval(stored: Mapping[str, Any]) -> Interval:
    """Read an interval from JSON, where null means NaN."""
    value, low, high = (math.nan if stored[end] is None else stored[end] for end in ("value", "low", "high"))
    return Interval(value, low, high, stored["seeds"])
