"""Rewards for proofs: a checker decides whether a response proves the statement in its problem's answer column.

A checker is a function `check(statement, proof)`. The one that comes with the library decides propositional logic and linear
arithmetic (`rljax.rewards.smt_proof`); `proves` turns any other checker, such as one that calls Lean, into a reward.
"""

from collections.abc import Callable, Sequence
from typing import Any

from rljax.errors import InputError
from rljax.importing import check_optional
from rljax.rewards.correctness import Failed, count_timeout_as_wrong, reads, right_from
from rljax.rewards.extract import skip_reasoning
from rljax.rewards.pool import shared_pool
from rljax.rewards.reward_call import Progress
from rljax.text import one_line

Check = Callable[[str, str], bool]
"""(statement, response without its `<think>...</think>`) -> whether the response proves the statement. A check that cannot decide
raises an exception."""
SECONDS = 10.0
"""Time limit for checking one proof. Z3's own limit on a step is reached earlier."""
UNREADABLE_STATEMENT = -1.0
"""The result of a worker process for a statement that cannot be read."""
MEMORY_BYTES = 2 * 2**30
"""Limit on the address space of a process that checks proofs."""


@reads("lines such as `3. (or p q) by 1, 2`")
@right_from(1.0)
def proof(
    completions: Sequence[str], answer: Sequence[str | None], progress: Progress | None = None, **columns: Sequence
) -> list[float | Failed | None]:
    """Give 1 for a right proof in propositional logic or linear arithmetic, else 0; see `rljax.rewards.smt_proof`.

    Args:
        completions: the responses; their `<think>...</think>` is not read.
        answer: the statements, each with declarations, premises and a goal; for None the reward abstains.
        progress: called with the number of proofs checked and the total number of proofs; or None.
        columns: unused; every reward receives the prompts and the columns of the data.

    Returns:
        For each completion 1.0 or 0.0; None if there is no statement; `Unfinished`, which counts as 0, if checking took too long.

    Raises:
        InputError: the package z3-solver is not installed, or a statement cannot be read.
    """
    del columns
    check_optional("z3", "z3-solver")
    positions = [position for position, statement in enumerate(answer) if statement is not None]
    items = [{"statement": answer[position], "proof": skip_reasoning(completions[position])} for position in positions]
    module = f"{__name__}:"
    pool = shared_pool(f"{module}judge", seconds=SECONDS, memory=MEMORY_BYTES, initializer=f"{module}load", confined=True)
    verdicts: list[Any] = [None] * len(completions)
    for position, verdict in zip(positions, pool.map(items, progress), strict=True):
        if verdict == UNREADABLE_STATEMENT:
            raise InputError(_explain_fault(str(answer[position])))
        verdicts[position] = count_timeout_as_wrong(verdict)
    return verdicts


def load() -> None:
    """Import Z3 before the process drops the privileges that the import may need."""
    check_optional("z3", "z3-solver")
    __import__("z3")


def judge(statement: str, proof: str) -> float:
    """Check one proof in a worker process, which can return only numbers: 1, 0 or `UNREADABLE_STATEMENT`."""
    from rljax.rewards.smt_proof import find_proof_fault  # noqa: PLC0415  the run's process needs it only for a faulty statement

    try:
        return float(not find_proof_fault(statement, proof))
    except ValueError:
        return UNREADABLE_STATEMENT


def _explain_fault(statement: str) -> str:
    from rljax.rewards.smt_proof import find_proof_fault  # noqa: PLC0415  see `judge`

    try:
        find_proof_fault(statement, "")
    except ValueError as error:
        return f"the statement {statement!r:.200} cannot be read: {error}."
    return f"the statement {statement!r:.200} cannot be read in a separate process."


def proves(check: Check) -> Callable:
    """Make a reward from a checker: 1 for a response that proves the statement in its problem's answer column, else 0.

    Args:
        check: called for each response as `check(statement, proof)`. If it raises, the entry of the response is `Failed`.

    Returns:
        The reward, which is a verifier: `rljax eval` reports the fraction of correct proofs as accuracy.

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
            None if statement is None else _call_checker(check, statement, skip_reasoning(completion))
            for statement, completion in zip(answer, completions, strict=True)
        ]

    return proven


def _call_checker(check: Check, statement: str, proof: str) -> float | Failed:
    """Call a checker; return 1.0, 0.0, or `Failed` if it raises."""
    try:
        return float(bool(check(statement, proof)))
    except Exception as error:  # user code may raise anything; the failure is counted and shown
        return Failed("raised", one_line(error))
