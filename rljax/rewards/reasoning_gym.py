"""The reward for problems from the package reasoning-gym: the score, from 0 to 1, that the problem's generator assigns.

Some scorers evaluate the answer as a formula or even as Python. They therefore run in confined processes
(`rljax.rewards.pool.Pool`), with a time limit per answer; the processes return only a validated number or the reason for a
failure. An answer that runs code can still tamper with its scoring process, and thus with its own score and the scores of later
answers there.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from rljax.importing import check_optional, import_optional
from rljax.rewards.correctness import Failed, count_timeout_as_wrong, reads, right_from
from rljax.rewards.extract import tagged_text
from rljax.rewards.pool import shared_pool

PACKAGE = "reasoning_gym"
SECONDS = 10.0
"""Time limit per answer."""
MEMORY_BYTES = 4 * 2**30
"""Limit on the address space of each scoring process."""


def read_answer(completion: str) -> str:
    """Read the answer of a completion: the content of the last `<answer>...</answer>`, else the complete text.

    Example:
        >>> read_answer("3 and 4 make <answer> 7 </answer>."), read_answer(" 7 ")
        ('7', '7')
    """
    found = tagged_text(completion)
    return (completion if found is None else found).strip()


@reads("the last `<answer>...</answer>`, else the full response")
@right_from(1.0)
def reasoning_gym(
    prompts: Sequence[str],
    completions: Sequence[str],
    reasoning_gym: Sequence[Mapping[str, Any]],
    progress: Callable | None = None,
    **columns: Sequence,
) -> list[float | Failed | None]:
    """Return the score that the problem's own generator assigns: 1 for a correct answer, less for partial credit.

    Args:
        prompts: unused; every reward receives them.
        completions: the responses. The answer is read from the last `<answer>...</answer>`, or else is the full response.
        reasoning_gym: the problems, as the task `reasoning_gym:NAME` makes them; None for a problem of another kind.
        progress: called with the number of answers scored so far and the total; or None.
        columns: unused.

    Returns:
        The score of each completion, in [0, 1]; None if the problem is of another kind; `Failed` if scoring failed; `Unfinished`,
        which counts as 0, if scoring took too long.

    Raises:
        InputError: the package is not installed.
    """
    del prompts, columns
    check_optional(PACKAGE, "reasoning-gym")
    judged = [position for position, problem in enumerate(reasoning_gym) if problem is not None]
    items = [{"problem": reasoning_gym[position], "answer": read_answer(completions[position])} for position in judged]
    module = f"{__name__}:"
    pool = shared_pool(f"{module}score", seconds=SECONDS, memory=MEMORY_BYTES, initializer=f"{module}load", confined=True)
    scores: list[Any] = [None] * len(completions)
    for position, score_of_answer in zip(judged, pool.map(items, progress), strict=True):
        scores[position] = count_timeout_as_wrong(score_of_answer)
    return scores


def load() -> None:
    """Import the package, before the process drops the privileges that the import may need."""
    import_optional(PACKAGE, "reasoning-gym")


def score(problem: Mapping[str, Any], answer: str) -> float:
    """Score one answer; this runs in a confined process.

    Args:
        problem: the problem's entry in the column `reasoning_gym`.
        answer: the answer, without its tags.
    """
    generator = _make_generator(problem["generator"], pickle.dumps(problem["options"]))
    return float(generator.score_answer(answer, dict(problem["entry"])))


@cache
def _make_generator(name: str, options: bytes) -> Any:
    return import_optional(PACKAGE, "reasoning-gym").create_dataset(name, **pickle.loads(options))
