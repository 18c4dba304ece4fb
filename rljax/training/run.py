"""A run in progress: its evaluation, alarms and description, the command that resumes it, and the batch of a stopped run.

If the guard against unsafe updates stops a run, its last batch is saved as a safetensors file, so that reading it executes no code.
"""

import json
import shlex
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import tree_leaves_with_path
from safetensors.numpy import save

from rljax.evaluation.heldout import evaluate
from rljax.files import atomic_write
from rljax.models import count_parameters
from rljax.models.quantization import matrix_shapes
from rljax.parallel import return_freed_memory, run_on_first
from rljax.records import required
from rljax.rewards.reward_scores import forms_of
from rljax.rollout.groups import to_dict
from rljax.tasks import task_name
from rljax.tracking.alarms import AlarmState, watch_rows
from rljax.tracking.display_text import CORRECT
from rljax.tracking.rows import read_metrics
from rljax.tracking.run_folder import RunFolder
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.checkpoints.checkpoint import BEST, LAST, Checkpoint, quality_of
from rljax.training.config import TrainConfig
from rljax.training.objective.algorithm import reward_weights
from rljax.training.parts.reward import custom_part_names
from rljax.training.phase import RunResources
from rljax.training.rollout_data import ScoredRollout
from rljax.training.setup import Setup
from rljax.training.state import TrainState

STOPPED_BATCH_FILE = "stopped_batch.safetensors"
"""Name of the batch's file in the run folder."""
STOPPED_BATCH_FORMAT = "rljax stopped batch 3"
GROUPS, PAST = "groups", "past"  # first parts of the arrays' names in the file


class StoppedBatch(NamedTuple):
    """The batch from which a run was learning when it was stopped."""

    scored_rollout: ScoredRollout
    """The rollout that the updates were computed from."""
    step: int
    """Number of RL steps done."""
    checkpoint: int
    """Number of the checkpoint with the parameters, in `checkpoints/last`."""
    weights: Mapping[str, float] | None
    """Weights of the rewards, if the algorithm reads several rewards separately; otherwise None."""


def write_batch(folder: RunFolder, batch: StoppedBatch) -> Path:
    """Write a batch into the folder of its run, replacing an earlier batch, and return the path of the file."""
    scored_rollout = batch.scored_rollout
    values = {
        "step": batch.step,
        "checkpoint": batch.checkpoint,
        "progress": scored_rollout.progress,
        "weights": batch.weights,
    }
    metadata = {"format": STOPPED_BATCH_FORMAT} | {name: json.dumps(value) for name, value in values.items()}
    past = {} if scored_rollout.past is None else {PAST: scored_rollout.past.memory._asdict()}
    tree = {GROUPS: to_dict(scored_rollout.groups)} | past
    arrays = {name: np.ascontiguousarray(array) for name, array in flatten(tree).items()}
    path = folder.path / STOPPED_BATCH_FILE
    atomic_write(path, save(arrays, metadata=metadata))
    return path


def flatten(tree: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Flatten nested dicts of arrays into one dict, with the path of each array as its key; slashes within names are encoded.

    Example:
        >>> list(flatten({"a": {"b": np.ones(1)}, "c": np.ones(1)}))
        ['a/b', 'c']
    """
    return {
        "/".join(json.dumps(key.key).replace("/", "\\u002f")[1:-1] for key in path): array
        for path, array in tree_leaves_with_path(tree)
    }


MAX_SAVED_ANSWERS = 1000
"""Maximum number of held-out answers that are saved before RL, and again after it."""


@dataclass(frozen=True)
class Run(RunResources):
    """A run of reinforcement learning in progress."""

    setup: Setup
    """The settings, model, data, algorithm and devices of the run."""
    abandonable: Callable[[Callable[[], None]], AbstractContextManager[object]] = nullcontext
    """Takes a function that saves the run and exits; returns a context in which a signal calls that function even in mid-step."""

    @property
    def config(self) -> TrainConfig:
        """The settings."""
        return self.setup.config


def stop_reason(
    run: Run, learning_rate: str, skipped: int, *, step: int = 0, scored_rollout: ScoredRollout | None = None
) -> str:
    """Explain why a run stops after too many skipped updates, and what the user can do; save the last batch, if it is passed.

    Args:
        run: the run; the checkpoint before the skipped steps has already been saved.
        learning_rate: the flag that sets the learning rate of the skipped steps.
        skipped: number of consecutive steps whose updates were all skipped.
        step: number of RL steps done.
        scored_rollout: the rollout of the last skipped step, to be saved for `rljax debug`.
    """
    path = shlex.quote(str(run.folder.path))
    text = (
        f"The loss or gradient was not finite, or the update was far too large, in {skipped} training steps in a row, so nothing "
        f"was learned in these steps. The parameters before them are saved: `rljax export {path} model --checkpoint last` writes a "
        f"model folder, and `rljax train --model model` with a lower {learning_rate} continues from it. Infinite values from your "
        "own reward or algorithm are another possible cause."
    )
    if scored_rollout is None:
        return text
    number, _ = checkpoints.newest_complete(run.folder.checkpoints / LAST)
    weights = reward_weights(run.setup.algorithm, run.setup.train)
    batch = StoppedBatch(scored_rollout, step, number, weights)
    run.write("the batch", lambda: write_batch(run.folder, batch))
    return f"{text} `rljax debug {path}` names the term, the row and the token that caused it."


def begin_watch(run: Run, checkpoint: Checkpoint) -> AlarmState:
    """Start watching for alarms: first read the rows already logged and rewrite alarms.jsonl, then call each `Option.restart`.

    Only the first host watches; the others get an empty state.
    """
    watches: list[AlarmState] = []

    def begin() -> None:
        path = run.folder.metrics
        watch, events = watch_rows(read_metrics(path) if path.is_file() and path.stat().st_size else [])
        run.disk.attempt("the alarms", lambda: run.folder.write_alarms([event.to_json() for event in events]))
        for option in run.setup.options:
            if option.restart is not None:
                run.disk.attempt(f"the {option.name}", partial(option.restart, run, checkpoint))
        watches.append(watch)

    run_on_first(begin)
    return watches[0] if watches else AlarmState()


def resume_command(folder: RunFolder, config: TrainConfig, command: str = "train") -> str:
    """Return the command that resumes a run, or a Python call if the run needs arguments that the command cannot pass."""
    own_parts = folder.config.get("seams", ())
    is_code = bool(custom_part_names(config))
    if not own_parts:
        return f"rljax {command} --resume {shlex.quote(str(folder.path))}{' --trust' * is_code}"
    arguments = "".join([*(f", {name}={name}" for name in own_parts), ", trust=True" * is_code])
    return f"rljax.{command}(resume={str(folder.path)!r}{arguments})"


def evaluate_and_keep_best(run: Run, checkpoint: Checkpoint, step: int) -> Checkpoint:
    """Evaluate, log the result, and save the checkpoint if its `best_metric` is the best so far; see `Quality.beats`.

    The answers before RL and after its last step are saved in `heldout.jsonl`.

    Returns:
        The checkpoint, with the result in its notes.

    Raises:
        InputError: the policy's log-probabilities are not finite, or the evaluation has no `best_metric`.
    """
    run.display.activity("answering held-out problems", compiles=True)
    start = time.monotonic()
    evaluation = evaluate(run.setup.heldout, run.setup.full_params(checkpoint.state.params))
    return_freed_memory()
    metrics = evaluation.metrics() | {"seconds": time.monotonic() - start}
    quality = quality_of(metrics, run.config.run.best_metric or evaluation.best_metric)
    after = checkpoint._replace(notes=checkpoint.notes.with_result(quality, step))
    is_best = after.notes.best_step == step and after.notes.best_quality == quality
    metrics |= {"is_best": float(is_best)}
    run.record("eval", step, metrics)
    if evaluation.groups.rollout.correct is not None:  # an environment need not report correctness
        run.display.set_accuracy_label(CORRECT)
    run.display.evaluated(step, metrics)
    if quality.counts:
        run.display.message(f"step {step}: held-out answers: {quality.counts}")
    if step in (0, run.config.optimization.steps):
        rows = evaluation.rows(run.setup.heldout, step, max_answers=MAX_SAVED_ANSWERS)
        run.write("the held-out answers", lambda: run.folder.add_heldout(rows))
    if is_best:
        run.save(BEST, after)
    return after


def advise_on_random_start(config: TrainConfig, own_parts: Collection[str]) -> str | None:
    """Return advice for a run that starts from random weights without a warm start, and can hardly learn; None for other runs."""
    if config.model.path is not None or config.warm_start.steps or set(own_parts) & {"policy", "reward", "environment"}:
        return None
    return (
        "The model starts from random weights without a warm start, so hardly any response earns a reward, and nothing is "
        "learned. Set model=FOLDER_OR_HUB_ID, or warm_start_steps=340 on data with demonstrations; "
        "rljax.load_config('arithmetic_dapo') has settings that are known to work."
    )


def describe(setup: Setup, state: TrainState, folder: RunFolder) -> list[str]:
    """Describe the run in a few lines."""
    config, task = setup.config, setup.config.generated_task
    mesh = " x ".join(f"{name}={size}" for name, size in setup.mesh.shape.items())
    mesh_text = f", mesh {mesh}" if jax.device_count() > 1 else ""
    kind = setup.mesh.devices.flat[0].device_kind
    train, heldout = setup.train.prompts, setup.heldout.prompts
    hosts = f" on {jax.process_count()} hosts" if jax.process_count() > 1 else ""
    own_parts = folder.config.get("seams", ())
    source = config.data.dataset if task is None else f"the generated task {task_name(task)}"
    source = "problems of your own" if "problems" in own_parts else source
    model, precision = config.model.path or "from random weights", f", {config.model.dtype}"
    model, precision = ("of your own", "") if "policy" in own_parts else (model, precision)
    algorithm = f"algorithm {'of your own' if 'algorithm' in own_parts else config.algorithm.name}"
    all_params = state.params if setup.base is None else matrix_shapes(setup.base.params)
    lines = [
        f"{algorithm if config.optimization.steps or not config.warm_start.steps else 'supervised fine-tuning'} on {source}",
        f"problems {len(train.tokens)} to train on, {len(heldout.tokens)} held out",
        f"model {model}: {count_parameters(all_params):,} parameters{precision}",
        f"devices {jax.device_count()} x {kind}{hosts}{mesh_text}",
        f"run folder {folder.path}",
        "what a metric means: rljax explain METRIC",
    ]
    if setup.base is not None:
        quantized = "" if config.adapter.quantize is None else f", on a model quantized to {config.adapter.quantize}"
        trainable = f"{count_parameters(state.params):,} trainable parameters"
        lines.insert(3, f"adapter of rank {config.adapter.rank}: {trainable}{quantized}")
    if setup.critic is not None:
        trained = count_parameters(setup.critic.trained_params(required(state.critic, "state.critic").params))
        start = "the policy" if config.critic.start is None else config.critic.start
        lines.insert(3, f"critic from {start}: {trained:,} trainable parameters")
    if setup.train.environment is None:
        lines[2:2] = [f"reward {name} reads {form}" for name, form in forms_of(setup.train.judge.reward).items()]
    return lines
