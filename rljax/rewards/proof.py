"""Rewards for proofs: a checker decides whether a response proves the statement in the answer column of its problem.

A checker is a function `check(statement, proof)`. The one that comes with the library decides propositional logic and linear
arithmetic (`rljax.rewards.entailment`); any other, such as one that calls Lean, becomes a reward with `proves`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from rljax.errors import InputError
from rljax.importing import check_optional
from rljax.rewards.calling import Progress
from rljax.rewards.correctness import Failed, reads, right_from, wrong_if_late
from rljax.rewards.extract import after_thought
from rljax.rewards.pool import shared_pool
from rljax.text import one_line

Check = Callable[[str, str], bool]
"""(statement, response without its `<think>...</think>`) -> whether it proves the statement; it raises if it cannot decide."""
SECONDS = 10.0
"""Time limit of one proof; Z3's own limits end before."""
FAULTY = -1.0
"""What a process returns for a statement that cannot be read."""
MEMORY_BYTES = 2 * 2**30
"""Address space of a process that checks proofs."""


@reads("lines such as `3. (or p q) by 1, 2`")
@right_from(1.0)
def proof(
    completions: Sequence[str], answer: Sequence[str | None], progress: Progress | None = None, **columns: Sequence
) -> list[float | Failed | None]:
    """Give 1 for a right proof in propositional logic or linear arithmetic, else 0; see `rljax.rewards.entailment`.

    Args:
        completions: the responses; what is in `<think>...</think>` is not read.
        answer: the statements, with declarations, premises and a goal; None abstains.
        progress: called with the number of proofs checked and the number of all; or None.
        columns: unused; every reward receives the prompts and the columns of the data.

    Returns:
        1.0 or 0.0 for each completion; `Unfinished`, which counts as 0, if checking took too long.

    Raises:
        InputError: the package z3-solver is not installed, or a statement cannot be read.
    """
    del columns
    check_optional("z3", "z3-solver")
    judged = [place for place, one in enumerate(answer) if one is not None]
    items = [{"statement": answer[place], "proof": after_thought(completions[place])} for place in judged]
    own = f"{__name__}:"
    pool = shared_pool(f"{own}judge", seconds=SECONDS, memory=MEMORY_BYTES, begin=f"{own}load", confined=True)
    verdicts: list[Any] = [None] * len(completions)
    for place, found in zip(judged, pool.map(items, progress), strict=True):
        if found == FAULTY:
            raise InputError(_fault(str(answer[place])))
        verdicts[place] = wrong_if_late(found)
    return verdicts


def load() -> None:
    """Import Z3, before the process gives up what importing may need."""
    check_optional("z3", "z3-solver")
    __import__("z3")


def judge(statement: str, proof: str) -> float:
    """Check one proof in a separate process, which may return numbers only: 1, 0, or `FAULTY` if the statement cannot be read."""
    from rljax.rewards.entailment import check_proof  # noqa: PLC0415  the run's own process needs it only for a faulty statement

    try:
        return float(not check_proof(statement, proof))
    except ValueError:
        return FAULTY


def _fault(statement: str) -> str:
    """Say why a statement cannot be read."""
    from rljax.rewards.entailment import check_proof  # noqa: PLC0415  see `judge`

    try:
        check_proof(statement, "")
    except ValueError as error:
        return f"the statement {statement!r:.200} cannot be read: {error}."
    return f"the statement {statement!r:.200} cannot be read in a separate process."


def proves(check: Check) -> Callable:
    """Make a reward of a checker: 1 for a response that proves the statement in its problem's answer column, else 0.

    Args:
        check: called for each response as `check(statement, proof)`. If it raises, the response could not be judged: `Failed`.

    Returns:
        The reward, which is a verifier: `rljax eval` reports the share of right proofs as accuracy.

    Example:
        >>> reward = proves(lambda statement, proof: proof.endswith("qed"))
        >>> reward(completions=["trivial, qed", "<think>qed</think> unclear"], answer=["1 = 1"] * 2)
        [1.0, 0.0]
    """

    @reads("the response after `</think>`")
    @right_from(1.0)
    def proven(
        completions: Sequence[str], answer: Sequence[str | None], **columns: Sequence
    ) -> list[float | Failed | None]:
        del columns
        return [
            None if one is None else _verdict(check, one, after_thought(completion))
            for one, completion in zip(answer, completions, strict=True)
        ]

    return proven


def _verdict(check: Check, statement: str, proof: str) -> float | Failed:
    """Ask a checker."""
    try:
        return float(bool(check(statement, proof)))
    except Exception as error:  # a person's function; the failure is counted and shown
        return Failed("raised", one_line(error))
