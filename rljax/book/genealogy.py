"""Family tree of the algorithms: every record next to the earlier record from which it differs least.

The parent of an algorithm is computed, not declared: of all algorithms with an older paper, it is the one with the same function in
the most slots; an advantage that reads other parts of a rollout counts twice. Ties go to an algorithm of the same paper, then to
the oldest. An algorithm that learns from a teacher is never the parent of one that learns from rewards. A paper may name another
ancestor. Numbers do not count, nor do loss terms, which a coefficient of 0 removes; they are listed among the changes. Papers are
ordered by the first arXiv id in the algorithm's docstring. The hybrids of the design document, which has no date, come last.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from rljax.algorithms import BY_NAME, Algorithm
from rljax.book.equations import read_algorithm
from rljax.book.slots import SIZES, Filling, fillings

UNDATED = "no paper"
NOTHING = Filling("nothing", "")


class Change(NamedTuple):
    """A slot in which an algorithm differs from its parent."""

    slot: str
    """Name of the slot."""
    before: Filling
    """The parent's content of the slot."""
    after: Filling
    """The algorithm's content of the slot."""

    def text(self) -> str:
        """`weights: sequence_mean -> token_mean`, `+ bonus: only_high_entropy`, `- terms.reference_kl`."""
        if self.before is NOTHING:
            return f"+ {self.slot}: {self.after.text()}"
        if self.after is NOTHING:
            return f"- {self.slot}"
        if self.before.function == self.after.function:
            return f"{self.slot}: {self.before.numbers or '-'} → {self.after.numbers or '-'}"
        return f"{self.slot}: {self.before.function} → {self.after.text()}"


class Descent(NamedTuple):
    """An algorithm and its computed parent."""

    name: str
    """Name of the algorithm."""
    paper: str
    """arXiv id of its paper, or "no paper"."""
    parent: str | None
    """Name of the parent; None for the oldest."""
    changes: tuple[Change, ...]
    """Slots that differ from the parent's, in the order of the record; empty for the oldest."""


def paper_of(name: str) -> str:
    """The first arXiv id in the source of an algorithm, or "no paper".

    Example:
        >>> paper_of("dapo"), paper_of("vapo_grpo")
        ('2503.14476', 'no paper')
    """
    found = re.search(r"arXiv:(\d{4}\.\d{4,5})", read_algorithm(name, BY_NAME[name]).source)
    return UNDATED if found is None else found[1]


def changes(before: Mapping[str, Filling], after: Mapping[str, Filling]) -> tuple[Change, ...]:
    """Slots in which two records differ; sizes, such as the number of responses, do not count.

    Args:
        before: the parent's slots, from `rljax.book.slots.fillings`.
        after: the child's slots.

    Returns:
        One entry per differing slot.

    Example:
        >>> plain, other = Filling("clipped", "low=0.2 high=0.2"), Filling("clipped", "low=0.2 high=0.28")
        >>> [change.text() for change in changes({"surrogate": plain}, {"surrogate": other})]
        ['surrogate: low=0.2 high=0.2 → low=0.2 high=0.28']
    """
    before, after = _without_lone_critic(before, after), _without_lone_critic(after, before)
    names = [name for name in dict.fromkeys((*before, *after)) if name not in SIZES]
    pairs = (Change(name, before.get(name, NOTHING), after.get(name, NOTHING)) for name in names)
    return tuple(change for change in pairs if change.before != change.after)


def _without_lone_critic(record: Mapping[str, Filling], other: Mapping[str, Filling]) -> dict[str, Filling]:
    """Treat the critic as a single slot if the other record has no critic to compare it with."""
    if any(slot.startswith("critic.") for slot in other):
        return dict(record)
    rest = {slot: held for slot, held in record.items() if not slot.startswith("critic.")}
    return rest if len(rest) == len(record) else rest | {"critic": record["critic.advantage"]}


def learns_from_teacher(algorithm: Algorithm) -> bool:
    """True if the algorithm learns from another model's distribution instead of rewards."""
    return algorithm.needs("teacher_logp") or algorithm.needs("teacher_divergence")


def what_advantage_reads(algorithm: Algorithm) -> tuple[str, ...] | None:
    """Names of what the slot `advantage` reads; None if it is empty."""
    return None if algorithm.advantage is None else algorithm.credits[-1].needs


def genealogy() -> tuple[Descent, ...]:
    """Every algorithm with its parent, from the oldest paper to the newest.

    Example:
        >>> {entry.name: entry.parent for entry in genealogy()}["forking_tokens"]
        'dapo'
    """
    held = {name: fillings(BY_NAME[name]()) for name in BY_NAME}
    taught = {name: learns_from_teacher(BY_NAME[name]()) for name in BY_NAME}
    reads = {name: what_advantage_reads(BY_NAME[name]()) for name in BY_NAME}
    papers = {name: paper_of(name) for name in BY_NAME}
    order = sorted(
        BY_NAME, key=lambda name: (papers[name], name)
    )  # ids begin with year and month; letters come after digits
    found = [Descent(order[0], papers[order[0]], None, ())]
    for place, name in enumerate(order[1:], 1):
        ways = {other: changes(held[other], held[name]) for other in order[:place]}
        # `min` takes the first of equal candidates, which is the oldest.
        parent = min(
            ways,
            key=lambda other: (
                taught[other] != taught[name],
                _other_functions(ways[other]) + (None not in (pair := {reads[other], reads[name]}) and len(pair) > 1),
                papers[other] != papers[name],
            ),
        )
        found.append(Descent(name, papers[name], parent, ways[parent]))
    return tuple(found)


def _other_functions(found: tuple[Change, ...]) -> int:
    """Number of slots with a different function; a loss term counts as its coefficient, which is a number."""
    return sum(change.before.function != change.after.function and "terms." not in change.slot for change in found)


def genealogy_text() -> str:
    """The genealogy as lines: an algorithm, its paper, its parent, then one line per change."""
    blocks = []
    for entry in genealogy():
        head = f"{entry.name} ({entry.paper})" + (f", from {entry.parent}" if entry.parent else "")
        blocks.append("\n".join([head, *(f"    {change.text()}" for change in entry.changes)]))
    return "\n".join(blocks)
