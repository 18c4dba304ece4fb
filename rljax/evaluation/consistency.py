"""Self-consistency: what the answers to a problem agree on, which of them to keep, and which demonstrations they contradict."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rljax.data.diversity import different
from rljax.data.problem import Problem
from rljax.evaluation.comparison import row_is_right
from rljax.records import documented
from rljax.rewards.ballot import same_form

Row = Mapping[str, Any]
Keep = Literal["verifier", "votes"]
Vote = Callable[[str], str | None]


@documented
class Kept(NamedTuple):
    """Responses kept as demonstrations, and the counts of the others."""

    rows: list[dict[str, Any]]
    """Rows of a dataset: `prompt`, `answer`, `demonstration`, and the other columns of the problem."""
    problems: int
    """Number of problems."""
    solved: int
    """Problems with a kept response."""
    responses: int
    """Number of responses."""
    accepted: int
    """Those that the verifier or the votes accept, cut-off ones aside."""
    right: int | None
    """Kept ones that a verifier finds correct; None where no verifier decided on any."""
    judged: int
    """Kept ones that a verifier decided on."""
    dropped: int = 0
    """Number of further problems that were left out because their prompts are too long."""


@documented
class Cleaned(NamedTuple):
    """Demonstrations after a comparison with what a model's answers agree on."""

    rows: list[dict[str, Any]]
    """The rows that are left, as in `Kept`."""
    confirmed: int
    """Demonstrations with the answer that the model's answers agree on."""
    contradicted: int
    """Demonstrations with another answer, which were dropped or replaced."""
    undecided: int
    """Demonstrations of problems on which the model's answers do not agree; they stay."""
    unread: int
    """Demonstrations without an answer that can be read; they stay."""


def consensus(answers: Sequence[str | None], *, agreement: float | int) -> str | None:
    """The most frequent answer, if its share of all responses is large enough and no other answer is as frequent.

    Args:
        answers: what each response answers; None for no answer, which counts as a response.
        agreement: smallest share of the responses.

    Returns:
        The answer; None if there is none.

    Example:
        >>> consensus(["7", "7", "8", None], agreement=0.5), consensus(["7", "8"], agreement=0.5)
        ('7', None)
    """
    votes = Counter(answer for answer in answers if answer is not None).most_common(2)
    if not votes or (len(votes) > 1 and votes[1][1] == votes[0][1]):
        return None
    return votes[0][0] if votes[0][1] >= agreement * len(answers) else None


def by_problem(rows: Iterable[Row], count: int) -> list[list[Row]]:
    """The rows of each problem, in the order of their numbers."""
    found: list[list[Row]] = [[] for _ in range(count)]
    for row in rows:
        found[row["problem"]].append(row)
    return [sorted(part, key=lambda row: row["sample"]) for part in found]


def kept_responses(
    rows: Iterable[Row],
    problems: Sequence[Problem],
    *,
    keep: Keep,
    most: int,
    threshold: float | int,
    agreement: float | int,
) -> Kept:
    """Keep the responses that the verifier or the votes accept, at most `most` a problem, and no two that are alike.

    Args:
        rows: judged responses, as `answered_rows` returns them.
        problems: the problems that they answer.
        keep: `verifier` keeps responses that are right; `votes` those with the answer that the responses agree on, which is
            then the answer of the row, in place of any reference.
        most: K, kept responses of a problem.
        threshold: largest Jaccard similarity of two kept responses of a problem; see `rljax.data.diversity.similarity`.
        agreement: for `votes`, smallest share of the responses that have the answer.

    Returns:
        The rows to train on, and the counts.
    """
    groups = by_problem(rows, len(problems))
    found, solved, accepted = [], 0, 0
    chosen_rows: list[Row] = []
    for problem, group in zip(problems, groups, strict=True):
        agreed = consensus([row["given"] for row in group], agreement=agreement) if keep == "votes" else None
        fitting = [row for row in group if not row["truncated"] and _is_accepted(row, keep, agreed)]
        places = different([row["completion"] for row in fitting], most=most, threshold=threshold)
        chosen = [fitting[place] for place in places]
        found += [row_of(problem, row["completion"], problem.answer if agreed is None else agreed) for row in chosen]
        chosen_rows += chosen
        solved, accepted = solved + bool(chosen), accepted + len(fitting)
    judged = [row["correct"] for row in chosen_rows if row["correct"] is not None]
    right = sum(judged) if judged else None
    return Kept(found, len(problems), solved, sum(map(len, groups)), accepted, right, len(judged))


def _is_accepted(row: Row, keep: Keep, agreed: str | None) -> bool:
    if keep == "votes":
        return agreed is not None and row["given"] == agreed
    return row["reward"] is not None and row_is_right(row)


def row_of(problem: Problem, demonstration: str | None, answer: str) -> dict[str, Any]:
    """A row of a dataset that `rljax train --dataset` reads: the problem with this demonstration and answer.

    Example:
        >>> row_of(Problem("1+1=", "2", columns={"operands": 2}), "#2", "2")
        {'operands': 2, 'prompt': '1+1=', 'answer': '2', 'demonstration': '#2'}
    """
    prompt = problem.prompt if problem.messages is None else [dict(message) for message in problem.messages]
    row = {**problem.columns, "prompt": prompt, "answer": answer}
    return row if demonstration is None else row | {"demonstration": demonstration}


def cleaned_demonstrations(
    demonstrated: Sequence[Problem],
    rows: Iterable[Row],
    problems: Sequence[Problem],
    vote: Vote,
    *,
    agreement: float | int,
    replace: bool,
) -> Cleaned:
    """Compare demonstrations with what a model's answers to the same problems agree on.

    Args:
        demonstrated: the rows to clean; a row without a demonstration is compared by its answer.
        rows: the model's judged responses, as `answered_rows` returns them.
        problems: the problems that they answer; a prompt of `demonstrated` that is not among them is undecided.
        vote: reads the answer out of a response or a demonstration.
        agreement: smallest share of the responses that have the answer.
        replace: whether a contradicted demonstration is replaced by a response that has the answer of the votes, which becomes
            the row's answer; otherwise the row is dropped.

    Returns:
        The rows that are left, in their order, and the counts.
    """
    groups = dict(zip((problem.prompt for problem in problems), by_problem(rows, len(problems)), strict=True))
    kept: list[dict[str, Any]] = []
    verdicts: Counter[str] = Counter()
    for problem in demonstrated:
        group = groups.get(problem.prompt, [])
        agreed = consensus([row["given"] for row in group], agreement=agreement) if group else None
        stated = same_form(problem.answer) if problem.demonstration is None else vote(problem.demonstration)
        better = next((r["completion"] for r in group if r["given"] == agreed and not r["truncated"]), None)
        verdict = _verdict(agreed, stated)
        verdicts[verdict] += 1
        if verdict != "contradicted":
            kept.append(row_of(problem, problem.demonstration, problem.answer))
        elif replace and agreed is not None and better is not None:
            kept.append(row_of(problem, better, agreed))
    return Cleaned(kept, *(verdicts[name] for name in Cleaned._fields[1:]))


def _verdict(agreed: str | None, stated: str | None) -> str:
    if stated is None:
        return "unread"
    if agreed is None:
        return "undecided"
    return "confirmed" if stated == agreed else "contradicted"
