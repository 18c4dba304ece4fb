"""Labels, units and formats of the metrics and times of a run; shared by the displays and the plots."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.rewards.correctness import Failures
from rljax.text import counted
from rljax.tracking.run_folder import RunFolder

LONGEST_PROMPT = 40
"""Prompts with more characters than this are not shown in commands."""
BARS = "▁▂▃▄▅▆▇█"


class Metric(NamedTuple):
    """Label, unit and format of a metric on the display."""

    key: str
    """Name of the metric in `metrics.jsonl`."""
    label: str
    """Name on the display; for `accuracy` see `label_of`."""
    unit: str
    """Unit on the display; empty if there is none."""
    form: str
    """Format specification for `format`."""
    scale: float = 1.0
    """Factor that converts the value to the unit."""
    is_in_plain_lines: bool = False
    """Whether the plain lines that are written to a pipe include the metric."""
    is_count: bool = False
    """Whether the metric counts events; a count is hidden while all its values are 0, and summed instead of averaged."""

    def format_value(self, value: float) -> str:
        """Format a value in the metric's unit, without the unit's name."""
        return format(float(value) * self.scale, self.form)

    def with_unit(self, value: float) -> str:
        """Format a value with the unit's name."""
        return f"{self.format_value(value)} {self.unit}".rstrip()


ACCURACY_PREFIX = "accuracy_on_"
"""Prefix of the metric for the accuracy on an additional held-out set; the set's name follows."""


def accuracies_by_set(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the accuracy on each additional held-out set, by the set's name.

    Args:
        metrics: the metrics of an evaluation, or its row of `metrics.jsonl`.

    Example:
        >>> accuracies_by_set({"accuracy": 0.5, "accuracy_on_aime": 0.25, "reward_on_aime": 0.25})
        {'aime': 0.25}
    """
    return {key.removeprefix(ACCURACY_PREFIX): value for key, value in metrics.items() if key.startswith(ACCURACY_PREFIX)}


METRICS = (
    Metric("reward", "reward", "", ".3f", is_in_plain_lines=True),
    Metric("accuracy", "rewards above 0", "%", ".1f", 100.0, is_in_plain_lines=True),
    Metric("margin", "margin", "", ".3f", is_in_plain_lines=True),
    Metric("lead", "lead", "", ".3f", is_in_plain_lines=True),
    Metric("chosen_logp", "log p of preferred", "nats", ".2f"),
    Metric("rejected_logp", "log p of others", "nats", ".2f"),
    Metric("score", "score", "", ".3f"),
    Metric("entropy", "entropy", "nats/token", ".3f", is_in_plain_lines=True),
    Metric("kl", "KL", "nats/token", ".4f", is_in_plain_lines=True),
    Metric("clip_fraction", "clip fraction", "%", ".2f", 100.0),
    Metric("teacher_kl", "KL to the teacher", "nats/token", ".4f"),
    Metric("teacher_divergence", "teacher divergence", "nats/token", ".4f"),
    Metric("correction_cut", "cut by correction", "%", ".2f", 100.0),
    Metric("surrogate_masked", "off-policy masked", "%", ".2f", 100.0),
    Metric("explained_variance", "explained variance", "", ".3f", is_in_plain_lines=True),
    Metric("value_loss", "value loss", "", ".4f", is_in_plain_lines=True),
    Metric("advantage_correlation", "credit correlation", "", ".3f"),
    Metric("response_length", "response length", "tokens", ".1f", is_in_plain_lines=True),
    Metric("truncated_share", "truncated", "%", ".1f", 100.0),
    Metric("grad_norm", "gradient norm", "", ".3f"),
    Metric("judge_share", "time judging", "%", ".0f", 100.0, is_in_plain_lines=True),
    Metric("tokens_per_second", "speed", "tokens/s", ",.0f"),
    Metric("filtered_ratio", "filtered groups", "%", ".1f", 100.0),
    Metric("unfilled_groups", "unfilled groups", "", ".0f", is_in_plain_lines=True, is_count=True),
    Metric("unstated_share", "no answer stated", "%", ".1f", 100.0, is_in_plain_lines=True),
    Metric("unjudged", "unjudged responses", "", ".0f", is_in_plain_lines=True, is_count=True),
    Metric("skipped_updates", "skipped updates", "steps", ".3g", is_in_plain_lines=True, is_count=True),
    Metric("learning_rate", "learning rate", "", ".2e"),
    Metric("loss", "loss", "", ".4f", is_in_plain_lines=True),
    Metric("perplexity", "perplexity", "", ".4g", is_in_plain_lines=True),
)
CORRECT, POSITIVE, IN_ORDER, STEPS_RIGHT = "accuracy", "rewards above 0", "pairs in order", "steps that match their labels"
"""Labels of the metric `accuracy`: with a verifier, without one (the fraction of rewards above 0), for pairs, for steps."""
PHASE_NAMES = {
    "warm_start": "warm start",
    "value": "value pretraining",
    "rl": "RL",
    "eval": "evaluation",
    "reward_model": "reward model",
}
SHOWN_SAMPLES = 4
SHOWN_JUDGE_SHARE = 0.05
SAMPLE_CHARACTERS = 200


def with_judge_share(metrics: Mapping[str, float]) -> Mapping[str, float]:
    """Add `judge_share`, the fraction of the step's time spent on judging, if it is at least 5 %.

    Example:
        >>> with_judge_share({"seconds": 4.0, "judge_seconds": 1.0})
        {'seconds': 4.0, 'judge_seconds': 1.0, 'judge_share': 0.25}
    """
    seconds, judging = metrics.get("seconds"), metrics.get("judge_seconds")
    if not seconds or not judging or judging / seconds < SHOWN_JUDGE_SHARE:
        return metrics
    return {**metrics, "judge_share": judging / seconds}


def label_of(metric: Metric, accuracy: str) -> str:
    """Return the label of a metric on the display; the argument replaces the label of the metric `accuracy`."""
    return accuracy if metric.key == "accuracy" else metric.label


def verdict(reward: float, correct: bool | None) -> str:
    """Describe the judgment of an answer: right or wrong if a verifier judged it, else its reward.

    Example:
        >>> verdict(1.0, True), verdict(0.2, False), verdict(0.25, None), verdict(float("nan"), None)
        ('right', 'wrong', 'reward 0.25', 'not judged')
    """
    if math.isnan(reward):
        return "not judged"
    if correct is None:
        return f"reward {reward:g}"
    return "right" if correct else "wrong"


@dataclass(frozen=True)
class Progress:
    """Progress of a phase.

    Args:
        name: the phase.
        total: the step at which the phase ends.
        started: time at which the phase began, in seconds on any clock; all other times use the same clock.
        step: the last finished step.
        at: time at which `step` was finished.
        first_step: the first step that this process finished; None until then.
        first_at: time at which `first_step` was finished.
        compiled: seconds that compilation took.
    """

    name: str
    total: int
    started: float
    step: int = 0
    at: float = 0.0
    first_step: int | None = None
    first_at: float = 0.0
    compiled: float = 0.0

    @property
    def title(self) -> str:
        """Name of the phase on the display."""
        return PHASE_NAMES.get(self.name, self.name)

    def after_step(self, step: int, now: float) -> "Progress":
        """Return the phase after `step` has finished."""
        if self.first_step is None:
            return replace(self, step=step, at=now, first_step=step, first_at=now)
        return replace(self, step=step, at=now)

    def elapsed(self, now: float) -> str:
        """Format the time since the phase began."""
        return format_duration(now - self.started)

    def spent(self, now: float) -> str:
        """Format the time since the phase began, and how much of it was compilation, if that is a second or more."""
        return self.elapsed(now) + (f", {format_duration(self.compiled)} of it compiling" if self.compiled >= 1 else "")

    def completes_tenth(self, step: int) -> bool:
        """True if `step`, the next step, completes another tenth of the phase."""
        return step >= self.total or step * 10 // self.total > self.step * 10 // self.total

    def remaining(self, now: float) -> str | None:
        """Format the time left, estimated from this process's steps after the first one, which compiles; None if it is unknown."""
        if self.first_step is None or self.step <= self.first_step:
            return None
        seconds_per_step = (self.at - self.first_at) / (self.step - self.first_step)
        return format_duration(max(0.0, seconds_per_step * (self.total - self.step) - (now - self.at)))


def require_phase(progress: Progress | None) -> Progress:
    """Return the phase in progress.

    Raises:
        ValueError: no phase is in progress.
    """
    if progress is None:
        raise ValueError("update() was called before phase(); every step belongs to a phase")
    return progress


def format_duration(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds.

    Args:
        seconds: a duration of at least 0.

    Returns:
        `h:mm:ss`.

    Example:
        >>> format_duration(3725.4)
        '1:02:05'
    """
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def finite_mean(values: Sequence[float]) -> float:
    """Mean of the finite values; NaN if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw values as a row of bars, scaled from the smallest value to the largest.

    Args:
        values: numbers, oldest first.
        width: maximum number of characters; if there are more values, adjacent ones are averaged.

    Returns:
        One character per value or average; "×" if it is not finite. Equal values are drawn as the lowest bar.

    Example:
        >>> sparkline([0.0, 1.0, 2.0, float("nan"), 7.0], 10)
        '▁▂▃×█'
    """
    count = min(width, len(values))
    edges = [index * len(values) // max(count, 1) for index in range(count + 1)]
    means = [finite_mean(values[start:end]) for start, end in pairwise(edges)]
    finite = [mean for mean in means if math.isfinite(mean)]
    if not finite:
        return "×" * len(means)
    low, span = min(finite), max(finite) - min(finite)
    # Averages of equal values can differ in the last bits; that must not look like a change.
    is_flat = span <= 1e-9 * max(abs(mean) for mean in finite)
    heights = [0.0 if is_flat else (mean - low) / span for mean in means]
    return "".join(
        BARS[round(height * (len(BARS) - 1))] if math.isfinite(mean) else "×"
        for mean, height in zip(means, heights, strict=True)
    )


def describe_events(rows: Sequence[Mapping[str, Any]], *, prompts: int) -> list[str]:
    """Summarize unusual events during RL, one line per kind of event that occurred.

    Args:
        rows: the RL rows of metrics.jsonl.
        prompts: number of groups that a step should train on.

    Example:
        >>> steps = [{"trained_groups": 3, "unfilled_groups": 1, "unjudged": 2, "reward_raised": 2}, {"trained_groups": 4}]
        >>> describe_events(steps, prompts=4)[0]
        '1 of 2 steps found fewer than 4 groups with a signal (1 missing in total) and trained on the groups they did find.'
        >>> describe_events(steps, prompts=4)[1]
        'Excluded from training: 2 responses on which the reward failed (2 raised an exception).'
        >>> describe_events([{"skipped_updates": 0.5}, {"skipped_updates": 0.0}], prompts=4)
        ['1 of 2 steps skipped updates that were far too large or not finite.']
    """
    lines = []
    short = [row for row in rows if row.get("unfilled_groups")]
    if short:
        missing = sum(row["unfilled_groups"] for row in short)
        lines.append(
            f"{len(short)} of {len(rows)} steps found fewer than {prompts} groups with a signal ({missing:.0f} missing in total) "
            "and trained on the groups they did find."
        )
    empty = sum(row.get("trained_groups") == 0 for row in rows)
    if empty:
        lines.append(
            f"{empty} of {len(rows)} steps found no group with a signal and changed nothing: the problems are too hard or too easy."
        )
    failed = Failures(*(int(sum(row.get(f"reward_{kind}", 0) for row in rows)) for kind in Failures._fields))
    if failed.total:
        lines.append(f"Excluded from training: {counted(failed.total, 'response')} on which the reward failed ({failed}).")
    if failed.unfinished:
        lines.append(f"Counted as wrong: {counted(failed.unfinished, 'answer')} on which the verifier timed out.")
    skipped = sum(row.get("skipped_updates", 0) > 0 for row in rows)
    if skipped:
        lines.append(f"{skipped} of {len(rows)} steps skipped updates that were far too large or not finite.")
    return lines


def check_judged(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise an error if the reward judged no response of a run.

    Args:
        rows: the RL rows of metrics.jsonl.

    Raises:
        InputError: there are rows, but none of them has a reward.
    """
    if rows and all(row.get("reward") is None for row in rows):
        raise InputError(
            f"The reward abstained on every response in {counted(len(rows), 'RL step')}, so nothing was learned. Correct the "
            "reward, which always returned None, or the columns that it reads; then start a new run."
        )


def next_commands(
    folder: RunFolder, problems: Sequence[Problem], *, writes_model: bool = True, needs_trust: bool = False
) -> list[str]:
    """List commands for the user to copy, which evaluate the run, sample from it, and export its model.

    A command cannot pass the custom parts of a run, so commands that would need them are not listed.

    Args:
        folder: folder of the run.
        problems: held-out problems; the first short prompt appears in a command.
        writes_model: whether the policy can be written as a model folder.
        needs_trust: whether the settings name user code for judging responses, so that `rljax eval` needs `--trust`.
    """
    own_parts, path = set(folder.config.get("seams", ())), shlex.quote(str(folder.path))
    short = (
        problem.prompt for problem in problems if len(problem.prompt) <= LONGEST_PROMPT and problem.prompt.isprintable()
    )
    prompt = next(short, "...")
    export = [] if "policy" in own_parts or not writes_model else [f"rljax export {path} my-model"]
    if own_parts & {"policy", "engine", "environment", "problems", "dataset"}:
        return [f"rljax plot {path}", *export]
    judged = [f"rljax plot {path}"] if "reward" in own_parts else [f"rljax eval {path}{' --trust' * needs_trust}"]
    return [*judged, f"rljax sample {path} --prompt {shlex.quote(prompt)}", *export]
