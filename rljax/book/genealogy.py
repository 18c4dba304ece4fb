"""Family tree of the algorithms: each algorithm's parent is the earlier algorithm from which its record differs least.

The parent is computed, not declared: it is the older algorithm that has the same function in the most slots. If two advantages
read different fields of a rollout, that counts as one more difference. Ties go to an algorithm of the same paper, then to the
oldest. An algorithm that learns from a teacher becomes the parent of one that learns from rewards (or the reverse) only if there
is no other candidate. The paper itself may name a different ancestor. Numeric arguments do not count as differences, and neither
do loss terms, because a coefficient of 0 removes them; but both are listed among the changes. Algorithms are ordered by the first
arXiv id in their docstring; those without a paper (the hybrids from an unpublished design document) come last.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from rljax.algorithms import BY_NAME, Algorithm
from rljax.book.equations import read_algorithm
from rljax.book.slots import SIZES, SlotContent, slot_contents

UNDATED = "no paper"
NOTHING = SlotContent("nothing", "")


class Change(NamedTuple):
    """A slot in which an algorithm differs from its parent."""

    slot: str
    """Name of the slot."""
    before: SlotContent
    """The parent's content of the slot."""
    after: SlotContent
    """The algorithm's content of the slot."""

    def text(self) -> str:
        """Format the change: `weights: sequence_mean → token_mean`, `+ bonus: only_high_entropy`, `- terms.reference_kl`."""
        if self.before is NOTHING:
            return f"+ {self.slot}: {self.after.text()}"
        if self.after is NOTHING:
            return f"- {self.slot}"
        if self.before.function == self.after.function:
            return f"{self.slot}: {self.before.numbers or '-'} → {self.after.numbers or '-'}"
        return f"{self.slot}: {self.before.function} → {self.after.text()}"


class GenealogyEntry(NamedTuple):
    """An algorithm and its computed parent."""

    name: str
    """Name of the algorithm."""
    paper: str
    """arXiv id of its paper, or "no paper"."""
    parent: str | None
    """Name of the parent; None for the oldest algorithm."""
    changes: tuple[Change, ...]
    """Slots that differ from the parent's, in the order of the record; empty for the oldest algorithm."""


def paper_of(name: str) -> str:
    """Return the first arXiv id in the first line of an algorithm's docstring, or "no paper".

    Example:
        >>> paper_of("dapo"), paper_of("vapo_grpo")
        ('2503.14476', 'no paper')
    """
    found = re.search(r"arXiv:(\d{4}\.\d{4,5})", read_algorithm(name, BY_NAME[name]).source)
    return UNDATED if found is None else found[1]


def changes(before: Mapping[str, SlotContent], after: Mapping[str, SlotContent]) -> tuple[Change, ...]:
    """Return the slots in which two records differ; sizes, such as the number of responses, are ignored.

    Args:
        before: the parent's slots, from `rljax.book.slots.slot_contents`.
        after: the child's slots.

    Returns:
        One entry per differing slot.

    Example:
        >>> plain, other = SlotContent("clipped", "low=0.2 high=0.2"), SlotContent("clipped", "low=0.2 high=0.28")
        >>> [change.text() for change in changes({"surrogate": plain}, {"surrogate": other})]
        ['surrogate: low=0.2 high=0.2 → low=0.2 high=0.28']
    """
    before, after = _collapse_lone_critic(before, after), _collapse_lone_critic(after, before)
    names = [name for name in dict.fromkeys((*before, *after)) if name not in SIZES]
    pairs = (Change(name, before.get(name, NOTHING), after.get(name, NOTHING)) for name in names)
    return tuple(change for change in pairs if change.before != change.after)


def _collapse_lone_critic(record: Mapping[str, SlotContent], other: Mapping[str, SlotContent]) -> dict[str, SlotContent]:
    """Treat the critic as a single slot if the other record has no critic to compare it with."""
    if any(slot.startswith("critic.") for slot in other):
        return dict(record)
    rest = {slot: content for slot, content in record.items() if not slot.startswith("critic.")}
    return rest if len(rest) == len(record) else rest | {"critic": record["critic.advantage"]}


def learns_from_teacher(algorithm: Algorithm) -> bool:
    """Return True if an algorithm learns from another model's distribution instead of rewards."""
    return algorithm.needs("teacher_logp") or algorithm.needs("teacher_divergence")


def advantage_inputs(algorithm: Algorithm) -> tuple[str, ...] | None:
    """Return the names of the rollout fields that the slot `advantage` reads; None if the slot is empty."""
    return None if algorithm.advantage is None else algorithm.credits[-1].needs


def genealogy() -> tuple[GenealogyEntry, ...]:
    """Return every algorithm with its parent, from the oldest paper to the newest.

    Example:
        >>> {entry.name: entry.parent for entry in genealogy()}["forking_tokens"]
        'dapo'
    """
    contents = {name: slot_contents(BY_NAME[name]()) for name in BY_NAME}
    has_teacher = {name: learns_from_teacher(BY_NAME[name]()) for name in BY_NAME}
    reads = {name: advantage_inputs(BY_NAME[name]()) for name in BY_NAME}
    papers = {name: paper_of(name) for name in BY_NAME}
    # Ids begin with year and month; "no paper" sorts last because letters come after digits.
    order = sorted(BY_NAME, key=lambda name: (papers[name], name))
    entries = [GenealogyEntry(order[0], papers[order[0]], None, ())]
    for index, name in enumerate(order[1:], 1):
        candidates = {other: changes(contents[other], contents[name]) for other in order[:index]}
        # `min` returns the first of equal candidates, which is the oldest.
        parent = min(
            candidates,
            key=lambda other: (
                has_teacher[other] != has_teacher[name],
                _count_other_functions(candidates[other])
                + (None not in (pair := {reads[other], reads[name]}) and len(pair) > 1),
                papers[other] != papers[name],
            ),
        )
        entries.append(GenealogyEntry(name, papers[name], parent, candidates[parent]))
    return tuple(entries)


def _count_other_functions(differences: tuple[Change, ...]) -> int:
    """Count the slots with a different function; loss terms are ignored, because a coefficient of 0 removes them."""
    return sum(change.before.function != change.after.function and "terms." not in change.slot for change in differences)


def genealogy_text() -> str:
    """Format the genealogy as text: an algorithm, its paper and its parent, then one line per change."""
    blocks = []
    for entry in genealogy():
        head = f"{entry.name} ({entry.paper})" + (f", from {entry.parent}" if entry.parent else "")
        blocks.append("\n".join([head, *(f"    {change.text()}" for change in entry.changes)]))
    return "\n".join(blocks)
