"""Self-consistency: the consensus answer of several responses, used to select responses and to clean demonstrations."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rljax.data.diversity import choose_different
from rljax.data.problem import Problem
from rljax.evaluation.comparison import row_is_right
from rljax.rewards.votes import canonical_form

Row = Mapping[str, Any]
Keep = Literal["verifier", "votes"]
Vote = Callable[[str], str | None]


class KeptResponses(NamedTuple):
    """Responses kept as demonstrations, and counts of all responses."""

    rows: list[dict[str, Any]]
    """Rows of a dataset: `prompt`, `answer`, `demonstration`, and the other columns of the problem."""
    problems: int
    """Number of problems."""
    solved: int
    """Number of problems with a kept response."""
    responses: int
    """Number of responses."""
    accepted: int
    """Number of responses that the verifier or the votes accept, that are not truncated, and that have no false step."""
    right: int | None
    """Number of kept responses that a verifier accepts; None if no verifier judged any of them."""
    judged: int
    """Number of kept responses that a verifier judged."""
    false_steps: int = 0
    """Number of responses that were rejected only because of a false step."""
    dropped: int = 0
    """Number of problems, not counted in `problems`, that were dropped because their prompts are too long."""


class CleanedDemonstrations(NamedTuple):
    """Demonstrations that remain after a comparison with the consensus of a model's answers, and counts."""

    rows: list[dict[str, Any]]
    """The remaining rows, as in `KeptResponses`."""
    confirmed: int
    """Number of demonstrations whose answer matches the consensus."""
    contradicted: int
    """Number of demonstrations with a different answer, which were dropped or replaced."""
    undecided: int
    """Number of demonstrations kept because there is no consensus on their problem."""
    unparsed: int
    """Number of demonstrations kept because no answer can be extracted from them."""


def consensus(answers: Sequence[str | None], *, agreement: float | int) -> str | None:
    """Return the most frequent answer, if enough of the responses have it and no other answer is as frequent.

    Args:
        answers: answer of each response; a response without an answer (None) still counts as a response.
        agreement: minimum fraction of the responses that must have this answer.

    Returns:
        The answer; None if there is no consensus.

    Example:
        >>> consensus(["7", "7", "8", None], agreement=0.5), consensus(["7", "8"], agreement=0.5)
        ('7', None)
    """
    votes = Counter(answer for answer in answers if answer is not None).most_common(2)
    if not votes or (len(votes) > 1 and votes[1][1] == votes[0][1]):
        return None
    return votes[0][0] if votes[0][1] >= agreement * len(answers) else None


def by_problem(rows: Iterable[Row], count: int) -> list[list[Row]]:
    """Group rows by problem, each group in the order of its samples."""
    found: list[list[Row]] = [[] for _ in range(count)]
    for row in rows:
        found[row["problem"]].append(row)
    return [sorted(group, key=lambda row: row["sample"]) for group in found]


def keep_responses(
    rows: Iterable[Row],
    problems: Sequence[Problem],
    *,
    keep: Keep,
    most: int,
    threshold: float | int,
    agreement: float | int,
    false_steps: Collection[tuple[int, int]] = (),
) -> KeptResponses:
    """Keep responses that the verifier or the votes accept: at most `most` per problem, and no two that are similar.

    Args:
        rows: judged responses, as returned by `generate_rows`.
        problems: the problems that the responses answer.
        keep: `verifier` keeps right responses; `votes` keeps responses with the consensus answer, which then becomes the answer
            of the row and replaces any reference answer.
        most: maximum number of responses kept per problem.
        threshold: maximum Jaccard similarity of two kept responses to a problem; see `rljax.data.diversity.similarity`.
        agreement: for `votes`, minimum fraction of the responses that must have the consensus answer.
        false_steps: (problem, sample) of each response that is not kept because one of its steps is false.

    Returns:
        The rows to train on, and the counts.
    """
    groups = by_problem(rows, len(problems))
    found, solved, accepted, false = [], 0, 0, 0
    chosen_rows: list[Row] = []
    for problem, group in zip(problems, groups, strict=True):
        agreed = consensus([row["given"] for row in group], agreement=agreement) if keep == "votes" else None
        candidates = [row for row in group if not row["truncated"] and _is_accepted(row, keep, agreed)]
        sound = [row for row in candidates if (row["problem"], row["sample"]) not in false_steps]
        false, candidates = false + len(candidates) - len(sound), sound
        indices = choose_different([row["completion"] for row in candidates], most=most, threshold=threshold)
        chosen = [candidates[index] for index in indices]
        found += [row_of(problem, row["completion"], problem.answer if agreed is None else agreed) for row in chosen]
        chosen_rows += chosen
        solved, accepted = solved + bool(chosen), accepted + len(candidates)
    judged = [row["correct"] for row in chosen_rows if row["correct"] is not None]
    right = sum(judged) if judged else None
    return KeptResponses(found, len(problems), solved, sum(map(len, groups)), accepted, right, len(judged), false)


def _is_accepted(row: Row, keep: Keep, agreed: str | None) -> bool:
    if keep == "votes":
        return agreed is not None and row["given"] == agreed
    return row["reward"] is not None and row_is_right(row)


def row_of(problem: Problem, demonstration: str | None, answer: str) -> dict[str, Any]:
    """Make a dataset row for `rljax train --dataset`: the problem with this demonstration and answer.

    Example:
        >>> row_of(Problem("1+1=", "2", columns={"operands": 2}), "#2", "2")
        {'operands': 2, 'prompt': '1+1=', 'answer': '2', 'demonstration': '#2'}
    """
    prompt = problem.prompt if problem.messages is None else [dict(message) for message in problem.messages]
    row = {**problem.columns, "prompt": prompt, "answer": answer}
    return row if demonstration is None else row | {"demonstration": demonstration}


def clean_demonstrations(
    demonstrated: Sequence[Problem],
    rows: Iterable[Row],
    problems: Sequence[Problem],
    vote: Vote,
    *,
    agreement: float | int,
    replace: bool,
) -> CleanedDemonstrations:
    """Compare demonstrations with the consensus of a model's answers to the same problems.

    Args:
        demonstrated: the rows to clean; if a row has no demonstration, its answer is compared.
        rows: the model's judged responses, as returned by `generate_rows`.
        problems: the problems that these responses answer; a row of `demonstrated` whose prompt is not among them is undecided.
        vote: function that extracts the answer from a response or a demonstration.
        agreement: minimum fraction of the responses that must have the consensus answer.
        replace: whether to replace a contradicted demonstration by an untruncated response with the consensus answer, which
            becomes the row's answer. Otherwise, or if there is no such response, the row is dropped.

    Returns:
        The remaining rows, in their original order, and the counts.
    """
    groups = dict(zip((problem.prompt for problem in problems), by_problem(rows, len(problems)), strict=True))
    kept: list[dict[str, Any]] = []
    verdicts: Counter[str] = Counter()
    for problem in demonstrated:
        group = groups.get(problem.prompt, [])
        agreed = consensus([row["given"] for row in group], agreement=agreement) if group else None
        stated = canonical_form(problem.answer) if problem.demonstration is None else vote(problem.demonstration)
        better = next((r["completion"] for r in group if r["given"] == agreed and not r["truncated"]), None)
        verdict = _verdict(agreed, stated)
        verdicts[verdict] += 1
        if verdict != "contradicted":
            kept.append(row_of(problem, problem.demonstration, problem.answer))
        elif replace and agreed is not None and better is not None:
            kept.append(row_of(problem, better, agreed))
    return CleanedDemonstrations(kept, *(verdicts[name] for name in CleanedDemonstrations._fields[1:]))


def _verdict(agreed: str | None, stated: str | None) -> str:
    if stated is None:
        return "unparsed"
    if agreed is None:
        return "undecided"
    return "confirmed" if stated == agreed else "contradicted"
