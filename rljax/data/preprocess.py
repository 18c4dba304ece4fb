"""Preprocessing of a raw dataset for training. Each stage is a function that returns the rows it keeps and the rows it drops.

The stages check the following, in this order: identical rows, answers, repeated prompts, near-duplicates, leaks, and lengths (in
each wording). Answers are checked before repeated prompts, so that a row is dropped as a repetition only if the other row passed.
Length bins and complexity are computed from the remaining rows.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32

from rljax.data.duplicates import find_leaks, near_duplicates
from rljax.data.measure import bins_of, complexity_of, response_length, reword, summarize
from rljax.data.preprocess_options import Preprocess
from rljax.data.problem import Problem
from rljax.data.problem_datasets import LoadedProblems
from rljax.data.prompts import prompt_tokens
from rljax.data.tokenizer import Tokenizer
from rljax.errors import InputError

Verify = Callable[
    [Sequence[Problem], Sequence[str]],
    tuple[Sequence[float] | Float32[np.ndarray, "N"], *tuple[Sequence[bool] | Bool[np.ndarray, "N"], ...]],
]
"""`(problems, completions) -> (rewards, is_judged)` or `(rewards, is_judged, is_unread)`.

A completion with a reward above 0 is right. `is_judged`: whether there is a verdict. `is_unread`: whether the completion states no
answer in the form that the reward reads."""

Progress = Callable[[Sequence, str], Iterable]
"""`(items, description) -> the same items`, while a progress bar is shown."""

BATCH = 512  # the maximum number of answers judged in one call
ADDED_COLUMNS = ("prompt_tokens", "response_tokens", "length_bin", "complexity", "source_row", "wording")
"""The columns that preprocessing adds to every row."""

REASONS = {
    "bad row": "the row cannot be used",
    "identical": "the same prompt, answer and demonstration occur earlier",
    "unread answer": "no answer in the form that the reward reads",
    "wrong answer": "the answer was not confirmed",
    "not judged": "the verifier failed on it",
    "ambiguous": "the prompt occurs with different answers",
    "duplicate": "the prompt occurs earlier",
    "near-duplicate": "nearly the same prompt, with the same answer, occurs earlier",
    "leak": "contains a held-out prompt",
    "not tokenizable": "the tokenizer cannot encode it",
    "long prompt": "the prompt is too long",
    "long response": "the demonstration is too long",
}
"""Reason for dropping a row -> its explanation."""


class Example(NamedTuple):
    """A problem and its location, as passed from one stage to the next."""

    problem: Problem
    """The problem."""
    place: str
    """Location of the problem's row in the input, such as `line 3`."""


class MeasuredProblem(NamedTuple):
    """A problem in one wording, with its lengths in tokens."""

    problem: Problem
    """The problem with the reworded prompt."""
    place: str
    """Location of its row in the input."""
    wording: int
    """Index of the wording in the recipe's `wordings`."""
    prompt_tokens: int
    """Number of tokens in the prompt."""
    response_tokens: int | None
    """Number of tokens in the demonstration, including its end token; None if there is no demonstration."""


class DroppedRow(NamedTuple):
    """A row that was dropped."""

    place: str
    """Location of the row in the input."""
    reason: str
    """One of `REASONS`."""
    detail: str
    """What exactly is wrong with the row, in words."""


class Verdict(NamedTuple):
    """The result of verifying one row."""

    is_judged: bool
    """Whether the verifier returned a verdict."""
    reason: str | None = None
    """One of `REASONS`; None if the row passes."""
    detail: str = ""
    """What exactly is wrong, in words; empty if the row passes."""


class Prepared(NamedTuple):
    """A dataset after all stages."""

    rows: list[dict]
    """The rows of the output, one JSON object per line."""
    dropped: list[DroppedRow]
    """The rows that were dropped, stage by stage."""
    report: dict
    """Counts, lengths and bin edges, as JSON."""


def _no_progress(items: Sequence, what: str) -> Iterable:
    """Return the items and show no progress."""
    del what
    return items


def prepare_rows(
    loaded: LoadedProblems,
    recipe: Preprocess,
    tokenizer: Tokenizer,
    verify: Verify,
    heldout: Sequence[Problem] = (),
    *,
    watch: Progress = _no_progress,
) -> Prepared:
    """Run a dataset through all stages.

    Args:
        loaded: the dataset, as read.
        recipe: limits, thresholds and wordings.
        tokenizer: the tokenizer that measures lengths.
        verify: the function that judges completions.
        heldout: problems that must not leak into the training data.
        watch: a function that wraps the items of slow stages, to show progress.

    Returns:
        The rows, the dropped rows, and the report. With several wordings, a row may be kept in some and dropped in others.

    Raises:
        InputError: no row is left, or the verifier raises and `recipe.on_error` is `fatal`.

    Example:
        >>> from pathlib import Path
        >>> from rljax.data.tokenizer import ByteTokenizer
        >>> loaded = LoadedProblems([Problem("1+1=", "2")] * 2, ["line 1", "line 2"], [], 2, "sums.jsonl", "plain")
        >>> agrees = lambda problems, completions: ([1.0] * len(problems), [True] * len(problems))
        >>> prepared = prepare_rows(loaded, Preprocess("sums.jsonl", Path("out")), ByteTokenizer(), agrees)
        >>> [row["prompt"] for row in prepared.rows], [item.reason for item in prepared.dropped]
        (['1+1='], ['identical'])

    Source:
        Unpublished: Algorithm 11 of the design document; the checks for duplicates and leaks are an addition of this library.
    """
    dropped = [DroppedRow(fault.place, "bad row", str(fault)) for fault in loaded.faults if not fault.kept]
    examples = [Example(problem, place) for problem, place in zip(loaded.problems, loaded.places, strict=True)]
    examples, identical = _drop_identical(examples)
    kept_faults = {fault.place for fault in loaded.faults if fault.kept}
    to_check = [  # if the user named a reward, every row without a fault; otherwise only those that also have an answer
        example.place not in kept_faults and (recipe.reward is not None or example.problem.answer != "")
        for example in examples
    ]
    examples, wrong, checked = _drop_wrong(examples, to_check, verify, fatal=recipe.on_error == "fatal", watch=watch)
    examples, repeated = _drop_repeated(examples)
    examples, alike = _drop_near_duplicates(examples, recipe.near_duplicates)
    examples, leaked = _drop_leaks(examples, heldout, recipe.leak)
    measured, unfit = _measure(watch(examples, "Counting tokens"), recipe, tokenizer)
    dropped += [*identical, *wrong, *repeated, *alike, *leaked, *unfit]
    if not measured:
        first = dropped[0]
        raise InputError(
            f"nothing is left of the {loaded.rows} rows of {loaded.source}; the first dropped row is {first.place}: "
            f"{REASONS[first.reason]} ({first.detail}). Change the options that drop rows."
        )
    rows, bins = _make_rows(measured)
    counts = {
        "rows_in": loaded.rows,
        "rows_out": len(rows),
        "answers_checked": checked,
        "kept_with_faults": len(kept_faults),
    }
    return Prepared(rows, dropped, _report(loaded, rows, dropped, counts, bins))


def _drop_identical(examples: Sequence[Example]) -> tuple[list[Example], list[DroppedRow]]:
    """Drop rows whose prompt, answer and demonstration all occur in an earlier row."""
    first: dict[tuple, str] = {}
    kept, dropped = [], []
    for example in examples:
        key = (_key(example.problem), example.problem.answer, example.problem.demonstration)
        if key in first:
            dropped.append(DroppedRow(example.place, "identical", f"same as {first[key]}"))
        else:
            first[key] = example.place
            kept.append(example)
    return kept, dropped


def _drop_wrong(
    examples: Sequence[Example], to_check: Sequence[bool], verify: Verify, *, fatal: bool, watch: Progress = _no_progress
) -> tuple[list[Example], list[DroppedRow], int]:
    r"""Drop rows whose demonstration is judged wrong, or whose answer is not recognized in `\boxed{answer}`.

    Args:
        examples: the rows.
        to_check: whether to verify each row; the other rows pass.
        verify: the function that judges completions.
        fatal: whether to raise an `InputError` of the verifier; otherwise the rows that cause it are found and dropped.
        watch: a function that wraps the batches, to show progress.

    Returns:
        The rows that pass, the dropped rows, and the number of rows on which the verifier returned a verdict.

    Raises:
        InputError: the verifier's own error, if `fatal`.
    """
    judged = [example for example, check in zip(examples, to_check, strict=True) if check]
    verdicts: list[Verdict] = []
    for start in watch(range(0, len(judged), BATCH), "Checking answers"):
        verdicts += _judge_batch(judged[start : start + BATCH], verify, fatal=fatal)
    dropped = [
        DroppedRow(example.place, verdict.reason, verdict.detail)
        for example, verdict in zip(judged, verdicts, strict=True)
        if verdict.reason is not None
    ]
    wrong = {item.place for item in dropped}
    kept = [example for example in examples if example.place not in wrong]
    return kept, dropped, sum(verdict.is_judged for verdict in verdicts)


def _judge_batch(batch: Sequence[Example], verify: Verify, *, fatal: bool) -> list[Verdict]:
    """Judge a batch. If the verifier fails, judge the halves of the batch, down to the rows that cause the failure."""
    problems = [example.problem for example in batch]
    completions = [_completion(problem) for problem in problems]
    try:
        rewards, judged, *unread = verify(problems, completions)
    except InputError as error:
        if fatal:
            raise
        if len(batch) == 1:
            return [Verdict(False, "not judged", str(error))]
        middle = len(batch) // 2
        return [verdict for half in (batch[:middle], batch[middle:]) for verdict in _judge_batch(half, verify, fatal=False)]
    unread_flags = unread[0] if unread else [False] * len(problems)
    return [
        _rejection(problem, is_unread=bool(is_unread)) if is_judged and not reward > 0 else Verdict(bool(is_judged))
        for problem, reward, is_judged, is_unread in zip(problems, rewards, judged, unread_flags, strict=True)
    ]


def _completion(problem: Problem) -> str:
    return rf"\boxed{{{problem.answer}}}" if problem.demonstration is None else problem.demonstration


def _rejection(problem: Problem, *, is_unread: bool) -> Verdict:
    judged = "the chosen reward (--reward; by default exact, which reads the answer after the last '#' or in a box)"
    if problem.demonstration is None:
        what = f"the answer {problem.answer[:60]!r}, given as a response, is not recognized by {judged}"
        return Verdict(True, "unread answer" if is_unread else "wrong answer", what)
    ends = f"the demonstration, which ends in {problem.demonstration[-40:]!r},"
    if is_unread:
        what = f"{ends} states no answer in the form read by {judged}; math_or_last_number also accepts the last number"
        return Verdict(True, "unread answer", what)
    against = f" against the answer {problem.answer[:60]!r}" if problem.answer else ""
    return Verdict(True, "wrong answer", f"{ends} is judged wrong{against} by {judged}")


def _drop_repeated(examples: Sequence[Example]) -> tuple[list[Example], list[DroppedRow]]:
    """Drop rows with the same prompt: all but one if their answers agree, all if their answers differ."""
    groups: dict[tuple, list[Example]] = defaultdict(list)
    for example in examples:
        groups[_key(example.problem)].append(example)
    kept, dropped = [], []
    for example in examples:
        group = groups[_key(example.problem)]
        answered = [other for other in group if other.problem.answer.strip()]
        first = (answered if answered else group)[0]
        if len({other.problem.answer.strip() for other in answered}) > 1:
            places = ", ".join(other.place for other in group[:4])
            dropped.append(DroppedRow(example.place, "ambiguous", f"different answers in {places}"))
        elif example is first:
            kept.append(example)
        else:
            dropped.append(DroppedRow(example.place, "duplicate", f"same as {first.place}"))
    return kept, dropped


def _drop_near_duplicates(examples: Sequence[Example], threshold: float | None) -> tuple[list[Example], list[DroppedRow]]:
    """Drop rows that nearly repeat an earlier prompt with the same answer; without a threshold, drop none."""
    if threshold is None:
        return list(examples), []
    texts = [example.problem.prompt for example in examples]
    found = near_duplicates(texts, [example.problem.answer.strip() for example in examples], threshold=threshold)
    return _split(examples, found, "near-duplicate", lambda other: f"like {examples[other].place}")


def _drop_leaks(
    examples: Sequence[Example], heldout: Sequence[Problem], threshold: float
) -> tuple[list[Example], list[DroppedRow]]:
    """Drop rows that leak a held-out problem."""
    if not heldout:
        return list(examples), []
    found = find_leaks(
        [example.problem.prompt for example in examples], [problem.prompt for problem in heldout], threshold=threshold
    )
    return _split(examples, found, "leak", lambda other: f"held out: {heldout[other].prompt[:60]!r}")


def _split(
    examples: Sequence[Example], found: Sequence[int | None], reason: str, detail: Callable[[int], str]
) -> tuple[list[Example], list[DroppedRow]]:
    pairs = list(zip(examples, found, strict=True))
    kept = [example for example, other in pairs if other is None]
    return kept, [DroppedRow(example.place, reason, detail(other)) for example, other in pairs if other is not None]


def _measure(
    examples: Iterable[Example], recipe: Preprocess, tokenizer: Tokenizer
) -> tuple[list[MeasuredProblem], list[DroppedRow]]:
    """Write every prompt in every wording, count the tokens, and drop problems that are too long or not tokenizable."""
    kept, dropped = [], []
    wordings = recipe.wordings if recipe.wordings else ("{prompt}",)
    for problem, place in examples:
        for number, wording in enumerate(wordings):
            reworded = reword(problem, wording)
            try:
                prompt_length = len(prompt_tokens(reworded, tokenizer, chat=recipe.chat))
                length = response_length(reworded, tokenizer)
            except InputError as error:
                dropped.append(DroppedRow(place, "not tokenizable", str(error)))
                continue
            if _exceeds(prompt_length, recipe.max_prompt_tokens):
                dropped.append(DroppedRow(place, "long prompt", f"{prompt_length} tokens"))
            elif _exceeds(length, recipe.max_response_tokens):
                dropped.append(DroppedRow(place, "long response", f"{length} tokens"))
            else:
                kept.append(MeasuredProblem(reworded, place, number, prompt_length, length))
    return kept, dropped


def _exceeds(length: int | None, limit: int | None) -> bool:
    return length is not None and limit is not None and length > limit


def _make_rows(measured: Sequence[MeasuredProblem]) -> tuple[list[dict], list[dict]]:
    """Turn problems into output rows, and count the rows in each length bin."""
    problems = [item.problem for item in measured]
    lengths = [item.prompt_tokens + (0 if item.response_tokens is None else item.response_tokens) for item in measured]
    bin_indices, edges = bins_of(lengths)
    complexity = complexity_of(problems, [item.prompt_tokens for item in measured]).tolist()
    rows = []
    for (problem, place, wording, prompt_length, length), bin_index, score in zip(
        measured, bin_indices, complexity, strict=True
    ):
        row: dict = {"prompt": problem.prompt if problem.messages is None else list(problem.messages)}
        row["answer"] = problem.answer
        if problem.demonstration is not None:
            row["demonstration"] = problem.demonstration if problem.turns is None else list(problem.turns)
        row |= {name: value for name, value in problem.columns.items() if name not in (*row, *ADDED_COLUMNS)}
        row |= dict(zip(ADDED_COLUMNS, (prompt_length, length, bin_index, score, place, wording), strict=True))
        rows.append(row)
    bins = [
        {"up_to_tokens": round(edge, 2), "rows": bin_indices.count(bin_index)}
        for bin_index, edge in enumerate([*edges, max(lengths)])
    ]
    return rows, bins


def _report(
    loaded: LoadedProblems,
    rows: Sequence[dict],
    dropped: Sequence[DroppedRow],
    counts: dict[str, int],
    bins: Sequence[dict],
) -> dict:
    response_lengths = [row["response_tokens"] for row in rows if row["response_tokens"] is not None]
    return {
        "source": loaded.source,
        "format": loaded.format,
        **counts,
        "dropped": _count_reasons(dropped),
        "prompt_tokens": summarize([row["prompt_tokens"] for row in rows]),
        "response_tokens": summarize(response_lengths),
        "length_bins": bins,
    }


def _key(problem: Problem) -> tuple:
    """Return the key by which prompts are compared: the words, and the roles of a chat."""
    roles = () if problem.messages is None else tuple(message["role"] for message in problem.messages)
    return roles, " ".join(problem.prompt.split())


def _count_reasons(dropped: Sequence[DroppedRow]) -> dict[str, dict]:
    """Count the dropped rows per reason, with the first row and what is wrong with it."""
    rows_by_reason = {reason: [item for item in dropped if item.reason == reason] for reason in REASONS}
    return {
        reason: {"rows": len(items), "first": items[0].place, "detail": items[0].detail}
        for reason, items in rows_by_reason.items()
        if items
    }
