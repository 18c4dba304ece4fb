"""Records of the errata, and the documents that they are about."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rljax.records import documented

DESIGN = "The design document: the unpublished draft that this library was started from"
UNDERSTANDING = "Understanding GRPO, DAPO, and VAPO"
ADVANCED = "Advanced RL Algorithms for LLM Training"
REVIEW = "DAPO: A Revolutionary RL Algorithm from ByteDance"
TABLE = "Table of RL methods for reasoning, GRPO to Open-Reasoner-Zero"


@documented
@dataclass(frozen=True)
class Evidence:
    """Result of a counterexample."""

    numbers: str
    """The figures, in words."""
    holds: bool
    """The figures refute the claim."""


@documented
@dataclass(frozen=True)
class Erratum:
    """A wrong claim of a document, and its correction."""

    number: str
    """Order and label, such as `9b`; the letters are parts of one error."""
    document: str
    """Title."""
    where: str
    """Equation, theorem, table or section."""
    claim: str
    """The claim, in short."""
    correction: str
    """The right form."""
    source: str
    """Source of the right form: a paper, or arithmetic."""
    check: Callable[[], Evidence] | None = None
    """Computes the counterexample; None where there is nothing to compute."""
    kind: Literal["computed", "documentary"] = "computed"
    """`computed`, or `documentary` where a document is compared with the paper that it reports."""
