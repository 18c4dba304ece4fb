"""The end of a run: final models, curves, the outcome in words, answers that changed, and the commands to type next."""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from rljax.evaluation.comparison import Comparison, Row, compare, describe_sets
from rljax.evaluation.problem_kinds import describe_progress, kinds_of
from rljax.parallel import abstract_arrays, run_on_first
from rljax.records import required
from rljax.rollout import RolloutWorker
from rljax.text import counted
from rljax.tracking.alarms import list_raised_alarms
from rljax.tracking.display_text import CORRECT, POSITIVE, check_judged, describe_events, next_commands
from rljax.tracking.rows import read_metrics
from rljax.tracking.run_folder import RunFolder
from rljax.tracking.start_records import explain_changed_inputs, list_accepted_changes
from rljax.training.checkpoints.checkpoint import BEST, LAST, Checkpoint, Quality, restore_params
from rljax.training.config import TrainConfig
from rljax.training.lifecycle.resume import reasons_steps_are_fixed
from rljax.training.parts.model_folder import companions, save_model, write_atomically
from rljax.training.parts.reward import custom_reward_names
from rljax.training.run import Run, resume_command


def accuracy_name(worker: RolloutWorker, answers: Iterable[Row] = ()) -> str:
    """Return the name under which the metric `accuracy` is displayed: "accuracy" if correctness is known, else "rewards above 0".

    Args:
        worker: the worker, whose rewards may include a verifier of correctness.
        answers: rows of `heldout.jsonl`, in which an environment may have reported correctness.
    """
    return CORRECT if worker.verifies or any(row.get("correct") is not None for row in answers) else POSITIVE


def finish(run: Run, checkpoint: Checkpoint, models: Sequence[Path] = ()) -> None:
    """Plot the curves, and show the outcome, the paths of the files, and the next commands; all processes call it together.

    Args:
        run: the run.
        checkpoint: the run's checkpoint at its end.
        models: folders of the written models.

    Raises:
        InputError: the reward judged no response.
    """
    run.saver.wait()
    run.write("the curves", lambda: draw_curves(run.folder, run.config))
    run_on_first(lambda: show_end(run, checkpoint, models))


def draw_curves(folder: RunFolder, config: TrainConfig) -> None:
    """Plot the metrics of a run into its folder."""
    from rljax.tracking.plots import plot_curves  # noqa: PLC0415  the first step need not wait for matplotlib

    plot_curves(folder.metrics, folder.curves, title=f"{config.run.name}: {config.algorithm.name}")


def show_end(run: Run, checkpoint: Checkpoint, models: Sequence[Path]) -> None:
    """Show the outcome, paths and commands described in `finish`; only the first process calls it."""
    folder, notes, config = run.folder, checkpoint.notes, run.config
    own_parts, heldout = folder.config.get("seams", ()), run.setup.heldout
    answers = folder.read_heldout()
    accuracy = accuracy_name(heldout, answers)
    before, after = required(notes.quality_before, "notes.quality_before"), required(notes.quality, "notes.quality")
    problems = heldout.prompts.problems
    comparison = compare(answers)
    rows = [row for row in read_metrics(folder.metrics) if row["phase"] == "rl"]
    run.display.finish(
        [
            *describe_outcome(before, after, comparison, accuracy=accuracy, count=len(problems)),
            *describe_sets(folder.read_further_heldout()),
            *explain_changed_inputs(list_accepted_changes(folder)),
            *describe_progress(kinds_of(answers, problems)),
            *describe_events(rows, prompts=config.sampling.prompts),
            *list_raised_alarms(folder),
            f"Best checkpoint: step {notes.best_step}, {accuracy} {notes.best_quality} ({folder.checkpoints / BEST})",
            *([f"Models: {', '.join(map(str, models))}"] if models else []),
            f"Curves: {folder.curves}",
        ]
    )
    if comparison is not None and comparison.shown:
        run.display.comparison(comparison.shown)
    commands = next_commands(
        folder, problems, writes_model=run.setup.policy.contents is not None, needs_trust=bool(custom_reward_names(config))
    )
    if commands:
        run.display.commands("What to type next:", commands)
    check_judged(rows)
    steps = max(2 * config.optimization.steps, 1)
    if not reasons_steps_are_fixed(run.config, run.setup.algorithm, steps):
        more = "" if own_parts else f" --steps {steps}"
        run.display.commands("To train longer:", [f"{resume_command(folder, config)}{more}"])


def describe_outcome(
    before: Quality, after: Quality, comparison: Comparison | None, *, accuracy: str, count: int
) -> list[str]:
    """Describe the held-out evaluations before and after RL in words.

    Args:
        before: result before RL; with no answers if it was not measured.
        after: result after RL.
        comparison: comparison of the answers before and after RL; None if there is none.
        accuracy: displayed name of the metric `accuracy`.
        count: number of held-out problems.

    Example:
        >>> same = Quality(0.5, 0.5)
        >>> describe_outcome(same, Quality(0.75, 0.75), Comparison(2, 1, 1, 0, []), accuracy="accuracy", count=4)[0]
        'Held-out accuracy: 50.0% before RL, 75.0% after (4 problems, greedy answers).'
    """
    start = "not measured" if before.answers == 0 else str(before)
    if math.isnan(after.accuracy) or (math.isnan(before.accuracy) and before.answers != 0):
        return [f"Held-out {accuracy}: unknown, because the reward judged no answer before RL, or none after it."]
    lines = [f"Held-out {accuracy}: {start} before RL, {after} after ({counted(count, 'problem')}, greedy answers)."]
    if comparison is not None:
        verbs = ("became right", "became wrong", "stayed right", "stayed wrong")
        if accuracy != CORRECT:
            verbs = ("rose above 0", "fell to 0 or below", "stayed above 0", "stayed at 0 or below")
        judged = sum(comparison[:4])
        scope = "" if judged == count else f"Of the {judged} problems judged both times, "
        lines.append(
            f"{scope}{comparison.gained} {verbs[0]}, {comparison.lost} {verbs[1]}, {comparison.kept} {verbs[2]}, "
            f"{comparison.missed} {verbs[3]}."
        )
    return lines


def write_final_models(run: Run, checkpoint: Checkpoint) -> list[Path]:
    """Write the models that the settings select, replacing earlier models; all processes call it together.

    None are written if the user's policy writes only folders in its own format. An adapter is merged into its model. If the disk
    is full, the run waits for free space, as it does for a checkpoint.

    Returns:
        The folders of the models.
    """
    run.saver.wait()
    models = run.config.run.models
    if run.setup.policy.contents is None or models == "none":
        return []
    return [_write_model(run, checkpoint, kind) for kind in ([BEST, LAST] if models == "both" else [models])]


def _write_model(run: Run, checkpoint: Checkpoint, kind: str) -> Path:
    setup, folder, trained = run.setup, run.folder.path / kind, checkpoint.state.params
    if kind == BEST and checkpoint.notes.best_step != int(checkpoint.state.step):
        trained = restore_params(run.folder.checkpoints / BEST, abstract_arrays(trained))
    extras = companions(run.config, setup.tokenizer)
    save = partial(save_model, model=setup.policy, params=setup.full_params(trained), extras=extras)
    run.disk.attempt_together("the model", lambda: write_atomically(folder, save))
    return folder
