"""Rows of `rollouts.jsonl`: reading, checking and filtering them. `rljax.rollout.transcripts` writes them.

If a run does not have this file, its `samples.jsonl` is read instead; responses are then texts without turns or values per token.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rljax.errors import InputError
from rljax.rewards.correctness import is_right
from rljax.tracking.rows import Row, check_sample, check_step, field_fault, is_number, is_number_or_null, read_rows
from rljax.tracking.run_folder import RunFolder

VALUES = ("logp", "advantage", "ratio")
"""Names of the values per token."""
KINDS = "tso"
"""Kinds of tokens: trained on (t), sampled but not trained on (s), observed but not sampled (o)."""
Outcome = Literal["right", "wrong", "unjudged", "failed", "cut_off", "tool_error"]
"""An outcome of a rollout; a rollout may have several."""
NO_ROLLOUTS_NOTE = (
    "This run has no rollouts.jsonl (it was written with logged_rollouts=0, or by an earlier version), so its samples are shown: "
    "text without turns, log-probabilities, advantages and ratios."
)


class Rollouts(NamedTuple):
    """The logged rollouts of a run."""

    rows: list[Row]
    """Rows in the order of the file."""
    note: str | None
    """A message to the user about what the rows lack; None if they are complete."""


class Filter(NamedTuple):
    """Conditions that a rollout must meet; a condition that is None is always met."""

    step: int | None = None
    """RL step."""
    reward: tuple[float, float] | None = None
    """Smallest and largest reward; a rollout without a reward does not meet this condition."""
    length: tuple[int, int] | None = None
    """Smallest and largest number of tokens."""
    outcome: Outcome | None = None
    """An outcome that the rollout must have."""

    def accepts(self, row: Mapping[str, Any]) -> bool:
        """Return whether a rollout meets all conditions."""
        return (
            (self.step is None or row["step"] == self.step)
            and (self.reward is None or _is_between(row["reward"], *self.reward))
            and (self.length is None or _is_between(row["length"], *self.length))
            and (self.outcome is None or self.outcome in outcomes_of(row))
        )


def _is_between(value: float | None, low: float, high: float) -> bool:
    return value is not None and low <= value <= high


def outcomes_of(row: Mapping[str, Any]) -> list[Outcome]:
    """Return the outcomes of a rollout.

    If `correct` is None, a reward above 0 counts as right. A failure of the reward or of the environment is not a wrong answer.
    A tool error is a call that failed or was malformed.

    Example:
        >>> outcomes_of({"reward": 0.0, "correct": None, "failure": None, "truncated": True, "metrics": {"tool_errors": 2.0}})
        ['wrong', 'cut_off', 'tool_error']
    """
    found: list[Outcome] = []
    if row["failure"] is not None:
        found.append("failed")
    elif row["reward"] is None:
        found.append("unjudged")
    else:
        found.append("right" if is_right(row["reward"], row["correct"]) else "wrong")
    if row["truncated"]:
        found.append("cut_off")
    if any(row["metrics"].get(name) for name in ("tool_errors", "malformed_calls")):
        found.append("tool_error")
    return found


def read_rollouts(folder: RunFolder) -> Rollouts:
    """Read the logged rollouts of a run; a row that is still being written is skipped.

    Raises:
        InputError: there are no rollouts, or a row cannot be read (the message names the file and the line).
    """
    rows = read_rows(folder.rollouts, check_rollout)
    if rows:
        return Rollouts(rows, None)
    samples = read_rows(folder.samples, check_sample)
    if not samples:
        raise InputError(
            f"the run {str(folder.path)!r} has logged no rollouts yet: they are written after its first RL step, and then every "
            "sample_every steps; if sample_every or logged_rollouts is 0, or in supervised fine-tuning, none are written."
        )
    return Rollouts([_from_sample(sample, number) for number, sample in enumerate(samples)], NO_ROLLOUTS_NOTE)


def _from_sample(sample: Row, number: int) -> Row:
    """Convert a row of `samples.jsonl` to a rollout with one turn, one piece of text, and no values per token."""
    answer = sample["answer"]
    return {
        "step": sample["step"],
        "problem": None,
        "member": number,
        "sampled_at": None,
        "trained": None,
        "prompt": sample["prompt"],
        "question": sample["prompt"],
        "answer": None if answer is None else str(answer),
        "reward": sample["reward"],
        "correct": sample.get("correct"),
        "failure": None,
        "remark": None,
        "truncated": False,
        "turns": 1,
        "length": None,
        "parts": {},
        "metrics": {},
        "spans": [{"role": "policy", "start": 0, "end": 1}],
        "tokens": [sample["completion"]],
        "kinds": "s",
        **{name: [None] for name in VALUES},
    }


def check_rollout(row: Row) -> str | None:
    """Describe what is wrong with a row of `rollouts.jsonl`; None if nothing is."""
    return check_step(row) or _entry_fault(row) or _token_fault(row) or _span_fault(row)


def _entry_fault(row: Row) -> str | None:
    """Describe what is wrong with the entries that are not per token."""
    checks = (
        (("prompt", "question"), lambda value: isinstance(value, str), "text"),
        (("answer", "failure", "remark"), lambda value: value is None or isinstance(value, str), "text or null"),
        (("reward",), is_number_or_null, "a number or null"),
        (("correct",), lambda value: value is None or isinstance(value, bool), "true, false or null"),
        (("trained", "truncated"), lambda value: isinstance(value, bool), "true or false"),
        (("problem", "member", "sampled_at", "turns", "length"), lambda value: type(value) is int, "a whole number"),
        (("parts", "metrics"), _are_numbers, "an object of numbers"),
    )
    if wrong := next(filter(None, (field_fault(row, *check) for check in checks)), None):
        return wrong
    left_out = row.get("left_out", {"at": 0, "tokens": 0})
    is_valid = isinstance(left_out, dict) and all(type(left_out.get(name)) is int for name in ("at", "tokens"))
    return None if is_valid else 'must have whole numbers "at" and "tokens" in "left_out"'


def _are_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(map(is_number, value.values()))


def _token_fault(row: Row) -> str | None:
    """Describe what is wrong with the entries per token."""
    tokens, kinds = row.get("tokens"), row.get("kinds")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        return 'must have a list of strings as "tokens"'
    if not isinstance(kinds, str) or len(kinds) != len(tokens) or not set(kinds) <= set(KINDS):
        return f'must have one of the letters {", ".join(KINDS)} per token as "kinds"'
    for name in VALUES:
        values = row.get(name)
        if not isinstance(values, list) or len(values) != len(tokens):
            return f'must have a number or null per token as "{name}"'
        if not all(map(is_number_or_null, values)):
            return f'must have a number or null per token as "{name}"'
    return None


def _span_fault(row: Row) -> str | None:
    """Describe what is wrong with the turns: in order, they must cover all tokens without gaps or overlaps."""
    end = 0
    spans: Sequence[Any] = row["spans"] if isinstance(row.get("spans"), list) else (None,)
    for span in spans:
        if not isinstance(span, dict) or not isinstance(span.get("role"), str) or span.get("start") != end:
            return 'must have turns as "spans" that divide the tokens'
        if type(span.get("end")) is not int or not end < span["end"]:
            return 'must have turns as "spans" that divide the tokens'
        calls, malformed = span.get("calls", []), span.get("malformed", [])
        if not _are_calls(calls) or not (isinstance(malformed, list) and all(isinstance(text, str) for text in malformed)):
            return 'must have the tool calls of each turn as "calls" and "malformed"'
        end = span["end"]
    return None if end == len(row["tokens"]) else 'must have turns as "spans" that divide the tokens'


def _are_calls(calls: object) -> bool:
    return isinstance(calls, list) and all(
        isinstance(call, dict) and all(isinstance(call.get(name), str) for name in ("name", "arguments")) for call in calls
    )


def evenly_spaced(rows: Sequence[Row], sizes: Iterable[int], most: int) -> list[Row]:
    """Choose the rollouts of evenly spaced steps, including the last step, so that their sizes add up to at most `most`.

    Args:
        rows: all rollouts.
        sizes: size of each rollout.
        most: maximum total size; the last step is kept even if it alone is larger.

    Example:
        >>> rows = [{"step": step} for step in range(1, 8)]
        >>> [row["step"] for row in evenly_spaced(rows, [10] * 7, 40)]
        [1, 3, 5, 7]
    """
    by_step: dict[int, int] = {}
    for row, size in zip(rows, sizes, strict=True):
        by_step[row["step"]] = by_step.get(row["step"], 0) + size
    steps, stride = sorted(by_step, reverse=True), 1
    while stride < len(steps) and sum(by_step[step] for step in steps[::stride]) > most:
        stride += 1
    kept = set(steps[::stride])
    return [row for row in rows if row["step"] in kept]
