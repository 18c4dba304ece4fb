"""Records of the errata, and the documents that they are about."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

DESIGN = "The design document: the unpublished draft that this library was started from"
UNDERSTANDING = "Understanding GRPO, DAPO, and VAPO"
ADVANCED = "Advanced RL Algorithms for LLM Training"
REVIEW = "DAPO: A Revolutionary RL Algorithm from ByteDance"
TABLE = "Table of RL methods for reasoning, GRPO to Open-Reasoner-Zero"
BAE = "Online Difficulty Filtering (Bae et al., arXiv:2504.03380), as quoted"


@dataclass(frozen=True)
class Evidence:
    """What a counterexample came to.

    Args:
        numbers: the figures, for a person.
        holds: whether they refute the claim.
    """

    numbers: str
    holds: bool


@dataclass(frozen=True)
class Erratum:
    """A claim of a document, and why it is wrong.

    Args:
        number: order and label, such as `9b`; the letters are parts of one error.
        document: title.
        where: equation, theorem, table or section.
        claim: what the document says.
        correction: what is right.
        source: where the right form is from, a paper or arithmetic.
        check: computes the counterexample; None where there is nothing to compute.
        kind: `computed`, or `documentary` where a document is compared with the paper that it reports.
    """

    number: str
    document: str
    where: str
    claim: str
    correction: str
    source: str
    check: Callable[[], Evidence] | None = None
    kind: Literal["computed", "documentary"] = "computed"
