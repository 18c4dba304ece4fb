"""The end of a run: the curves, the outcome in words, answers that changed, what happened on the way, and what to type next."""

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.evaluation.comparison import Comparison, compare
from rljax.evaluation.kinds import describe_progress, kinds_of
from rljax.parallel import on_first
from rljax.records import required
from rljax.rewards.failure import Failures
from rljax.rollout import RolloutWorker
from rljax.tracking.alarms import watch_rows
from rljax.tracking.display_text import CORRECT, POSITIVE
from rljax.tracking.rows import read_metrics
from rljax.tracking.run_folder import RunFolder
from rljax.training.checkpoints.checkpoint import BEST, Checkpoint, Quality
from rljax.training.config import TrainConfig
from rljax.training.lifecycle.resume import schedules
from rljax.training.run import Run, resume_command

LONGEST_PROMPT = 40
"""Characters of a prompt that is shown in a command."""


def accuracy_name(worker: RolloutWorker) -> str:
    """Name of the number `accuracy`: "accuracy" if a verifier decides what is right, else "rewards above 0"."""
    return CORRECT if worker.verifies else POSITIVE


def finish(run: Run, checkpoint: Checkpoint, models: Sequence[Path] = ()) -> None:
    """Plot the curves, and show the outcome, the paths of the files, and the next commands; all processes call it together.

    Args:
        run: the run.
        checkpoint: its end.
        models: folders of models that were written.

    Raises:
        InputError: the reward judged no response.
    """
    run.saver.wait()
    run.write("the curves", lambda: draw_curves(run.folder, run.config))
    on_first(lambda: show_end(run, checkpoint, models))


def draw_curves(folder: RunFolder, config: TrainConfig) -> None:
    """Draw the metrics of a run in its folder."""
    from rljax.tracking.plots import plot_curves  # noqa: PLC0415  the first step need not wait for matplotlib

    plot_curves(folder.metrics, folder.curves, title=f"{config.run.name}: {config.algorithm.name}")


def show_end(run: Run, checkpoint: Checkpoint, models: Sequence[Path]) -> None:
    """Show what `finish` shows, on this process alone."""
    folder, notes, config = run.folder, checkpoint.notes, run.config
    own_parts, heldout = folder.config.get("seams", ()), run.setup.heldout
    accuracy = accuracy_name(heldout)
    before, after = required(notes.quality_before, "notes.quality_before"), required(notes.quality, "notes.quality")
    answers, problems = folder.read_heldout(), heldout.prompts.problems
    comparison = compare(answers)
    rows = [row for row in read_metrics(folder.metrics) if row["phase"] == "rl"]
    run.display.finish(
        [
            *outcome(before, after, comparison, accuracy=accuracy, count=len(problems)),
            *describe_progress(kinds_of(answers, problems)),
            *events(rows, prompts=config.sampling.prompts),
            *alarms_raised(folder),
            f"Best checkpoint: step {notes.best_step}, {accuracy} {notes.best_quality} ({folder.checkpoints / BEST})",
            *([f"Models: {', '.join(map(str, models))}"] if models else []),
            f"Curves: {folder.curves}",
        ]
    )
    if comparison is not None and comparison.shown:
        run.display.comparison(comparison.shown)
    commands = next_commands(folder, problems, writes_model=run.setup.policy.contents is not None)
    if commands:
        run.display.commands("What to type next:", commands)
    check_judged(rows)
    if not schedules(run.config, run.setup.algorithm):
        more = "" if own_parts else f" --steps {max(2 * config.optimization.steps, 1)}"
        run.display.commands("To train on:", [f"{resume_command(folder)}{more}"])


def check_judged(rows: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a run in which the reward judged no response.

    Args:
        rows: the rows of RL in metrics.jsonl.

    Raises:
        InputError: there were steps, and no reward.
    """
    if rows and all(row.get("reward") is None for row in rows):
        raise InputError(
            f"The reward had no opinion on any response in {len(rows)} RL steps, so nothing was learned. Correct the reward, which "
            "returned None each time, or the columns that it reads; then start a new run."
        )


def outcome(before: Quality, after: Quality, comparison: Comparison | None, *, accuracy: str, count: int) -> list[str]:
    """The held-out evaluations before and after RL in words.

    Args:
        before: result before RL.
        after: result after RL.
        comparison: the answers side by side, if they were kept.
        accuracy: name of the number `accuracy`.
        count: number of held-out problems.

    Example:
        >>> same = Quality(0.5, 0.5)
        >>> outcome(same, Quality(0.75, 0.75), Comparison(2, 1, 1, 0, []), accuracy="accuracy", count=4)[0]
        'Held-out accuracy: 50.0% before RL, 75.0% after (4 problems, greedy answers).'
    """
    if math.isnan(before.accuracy) or math.isnan(after.accuracy):
        return [f"Held-out {accuracy}: unknown, as the reward judged no answer before RL or none after it."]
    lines = [f"Held-out {accuracy}: {before} before RL, {after} after ({count} problems, greedy answers)."]
    if comparison is not None:
        words = ("became right", "became wrong", "stayed right", "stayed wrong")
        if accuracy != CORRECT:
            words = ("rose above 0", "fell to 0 or below", "stayed above 0", "stayed at 0 or below")
        judged = sum(comparison[:4])
        first = "" if judged == count else f"Of the {judged} problems whose answers were kept: "
        lines.append(
            f"{first}{comparison.gained} {words[0]}, {comparison.lost} {words[1]}, {comparison.kept} {words[2]}, "
            f"{comparison.missed} {words[3]}."
        )
    return lines


def events(rows: Sequence[Mapping[str, Any]], *, prompts: int) -> list[str]:
    """Sum up the events in RL that are to be expected now and then; nothing for those that did not happen.

    Args:
        rows: the rows of RL in metrics.jsonl.
        prompts: number of groups that a step should train on.

    Example:
        >>> steps = [{"trained_groups": 3, "unfilled_groups": 1, "unjudged": 2, "reward_raised": 2}, {"trained_groups": 4}]
        >>> events(steps, prompts=4)[0]
        '1 of 2 steps found fewer than 4 groups with a signal (1 missing in all) and trained on the rest.'
        >>> events(steps, prompts=4)[1]
        'The reward failed on 2 responses (2 raised), which were left out.'
        >>> events([{"skipped_updates": 0.5}, {"skipped_updates": 0.0}], prompts=4)
        ['1 of 2 steps skipped updates whose loss or gradient was not finite.']
    """
    lines = []
    short = [row for row in rows if row.get("unfilled_groups")]
    if short:
        missing = sum(row["unfilled_groups"] for row in short)
        lines.append(
            f"{len(short)} of {len(rows)} steps found fewer than {prompts} groups with a signal ({missing:.0f} missing in all) and "
            "trained on the rest."
        )
    empty = sum(row.get("trained_groups") == 0 for row in rows)
    if empty:
        lines.append(f"{empty} of {len(rows)} steps found none at all and changed nothing: too hard, or too easy.")
    failed = Failures(*(int(sum(row.get(f"reward_{kind}", 0) for row in rows)) for kind in Failures._fields))
    if failed.total:
        lines.append(f"The reward failed on {failed.total} responses ({failed}), which were left out.")
    skipped = sum(row.get("skipped_updates", 0) > 0 for row in rows)
    if skipped:
        lines.append(f"{skipped} of {len(rows)} steps skipped updates whose loss or gradient was not finite.")
    return lines


def alarms_raised(folder: RunFolder) -> list[str]:
    """The alarms that were raised, and how to read about them; nothing if there was none."""
    _, found = watch_rows(read_metrics(folder.metrics))
    names = [f"{event.alarm.name.replace('_', ' ')} (step {event.step})" for event in found if event.what == "raised"]
    if not names:
        return []
    return [f"Alarms: {', '.join(names)}. `rljax doctor {shlex.quote(str(folder.path))}` says what to change."]


def next_commands(folder: RunFolder, problems: Sequence[Problem], *, writes_model: bool = True) -> list[str]:
    """Commands that work on this run as they stand: evaluate it, ask it something, take the model out.

    A run with own parts needs them again, which a command cannot pass; then only those that do without are listed.

    Args:
        folder: of the run.
        problems: held-out problems, one of whose prompts is shown.
        writes_model: whether the policy can be written as a model folder.
    """
    own_parts, path = set(folder.config.get("seams", ())), shlex.quote(str(folder.path))
    short = (
        problem.prompt for problem in problems if len(problem.prompt) <= LONGEST_PROMPT and problem.prompt.isprintable()
    )
    prompt = next(short, "...")
    export = [] if "policy" in own_parts or not writes_model else [f"rljax export {path} my-model"]
    if own_parts & {"policy", "engine", "environment", "problems", "dataset"}:
        return [f"rljax plot {path}", *export]
    judged = [f"rljax plot {path}"] if "reward" in own_parts else [f"rljax eval {path}"]
    return [*judged, f"rljax sample {path} --prompt {shlex.quote(prompt)}", *export]
