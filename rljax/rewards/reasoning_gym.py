"""The reward of problems from the package reasoning-gym: the score of their generator, between 0 and 1.

Some scorers evaluate the answer as a formula or even as Python, so they run in confined processes (`rljax.rewards.pool.Pool`), each
answer under a time limit. Only a checked number or a reason is returned. Such an answer could still tamper with the process that
scores it and the answers after it, and thus with their scores.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from rljax.importing import check_optional, import_optional
from rljax.rewards.correctness import Failed, reads, right_from, wrong_if_late
from rljax.rewards.extract import tagged_text
from rljax.rewards.pool import shared_pool

PACKAGE = "reasoning_gym"
SECONDS = 10.0
"""Time limit of one answer."""
MEMORY_BYTES = 4 * 2**30
"""Address space of one process."""


def final_answer(completion: str) -> str:
    """Read the answer of a completion: the last `<answer>...</answer>`, else all of it.

    Example:
        >>> final_answer("3 and 4 make <answer> 7 </answer>."), final_answer(" 7 ")
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
    """Give the score of the problem's own generator: 1 for a correct answer, partial credit for others if it grants any.

    Args:
        prompts: unused; every reward receives them.
        completions: the responses. The last `<answer>...</answer>` is the answer; without one, the full response is.
        reasoning_gym: the problems, as the task `reasoning_gym:NAME` makes them.
        progress: called with the number of answers scored and the number of all; or None.
        columns: unused.

    Returns:
        The score of each completion, in [0, 1]; None if the problem is of another kind, `Failed` if scoring failed, `Unfinished`,
        which counts as 0, if it took too long.

    Raises:
        InputError: the package is not installed.
    """
    del prompts, columns
    check_optional(PACKAGE, "reasoning-gym")
    judged = [position for position, problem in enumerate(reasoning_gym) if problem is not None]
    items = [{"problem": reasoning_gym[position], "answer": final_answer(completions[position])} for position in judged]
    own = f"{__name__}:"
    pool = shared_pool(f"{own}score", seconds=SECONDS, memory=MEMORY_BYTES, begin=f"{own}load", confined=True)
    scores: list[Any] = [None] * len(completions)
    for position, score_of_answer in zip(judged, pool.map(items, progress), strict=True):
        scores[position] = wrong_if_late(score_of_answer)
    return scores


def load() -> None:
    """Import the package, before the process gives up what importing may need."""
    import_optional(PACKAGE, "reasoning-gym")


def score(problem: Mapping[str, Any], answer: str) -> float:
    """Score one answer in a separate process.

    Args:
        problem: the column of the problem.
        answer: the answer, without its tags.
    """
    generator = _generator(problem["generator"], pickle.dumps(problem["options"]))
    return float(generator.score_answer(answer, dict(problem["entry"])))


@cache
def _generator(name: str, options: bytes) -> Any:
    return import_optional(PACKAGE, "reasoning-gym").create_dataset(name, **pickle.loads(options))
