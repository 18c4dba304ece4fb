"""The records of errata, and the titles of the documents that they are about."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rljax.records import documented

DESIGN = "The design document: the unpublished draft from which this library started"
UNDERSTANDING = "Understanding GRPO, DAPO, and VAPO"
ADVANCED = "Advanced RL Algorithms for LLM Training"
REVIEW = "DAPO: A Revolutionary RL Algorithm from ByteDance"
TABLE = "Table of RL methods for reasoning, GRPO to Open-Reasoner-Zero"


@documented
@dataclass(frozen=True)
class Evidence:
    """Result of a counterexample."""

    numbers: str
    """The computed numbers, in words."""
    holds: bool
    """Whether the numbers refute the claim."""


@documented
@dataclass(frozen=True)
class Erratum:
    """A wrong claim of a document, and its correction."""

    number: str
    """Number, such as `9b`; entries that differ only in the letter are parts of one error."""
    document: str
    """Title of the document."""
    where: str
    """Equation, theorem, table or section of the document."""
    claim: str
    """The claim, in short."""
    correction: str
    """The correct statement."""
    source: str
    """Source of the correction: a paper, or arithmetic."""
    check: Callable[[], Evidence] | None = None
    """Function that computes the counterexample; None if there is nothing to compute."""
    kind: Literal["computed", "documentary"] = "computed"
    """`computed`, or `documentary` if the document is compared with the paper that it describes."""
