"""Settings that may change when a run is resumed, and a summary of the run so far.

A setting may change if a run that had the new value from the start would have computed the same results (up to rounding, because
different devices or micro-batches add numbers in a different order). Any other change is rejected, with the name of the setting.
"""

from collections.abc import Collection
from dataclasses import replace

from rljax.algorithms import BY_NAME, Algorithm
from rljax.errors import InputError
from rljax.models.huggingface import locate
from rljax.models.model_folder import GENERATION
from rljax.rewards.steps import STEP_REWARDS
from rljax.tracking.display_text import sparkline
from rljax.tracking.rows import is_evaluation, past_rows
from rljax.tracking.run_folder import RunFolder
from rljax.tracking.start_records import (
    HELDOUT_ROWS,
    TRAIN_ROWS,
    Change,
    digest_of_files,
    digest_of_model,
    digest_of_name,
    digest_of_rows,
    inputs_of_judge,
    text_inputs,
)
from rljax.training.config import TrainConfig
from rljax.training.objective.optimizer import critic_warmup
from rljax.training.parts.custom_parts import CustomParts
from rljax.training.parts.reward import digest_of_reward
from rljax.training.setup import Setup
from rljax.training.state import RL, WARM_START, TrainState

CHANGEABLE_ON_RESUME = (
    *("steps", "eval_every", "skip_first_eval", "checkpoint_every", "max_to_keep", "max_best_to_keep", "best_metric"),
    *("keep_period", "models", "sample_every", "shown_samples", "logged_rollouts", "quiet", "wandb", "mlflow"),
    *("replicas", "fsdp", "tensor", "context", "microbatch_rows", "score_chunk", "remat", "attention", "scan_layers"),
    *("decode_slots", "cache_memory", "paged_cache", "shard_sampler", "engine_url", "engine_server", "engine_folder"),
    *("engine_patience", "max_failure_share", "reward_seconds", "host_timeout", "grace", "keep_warm_start"),
)
CURVE_WIDTH = 40
"""Width, in characters, of the curves that `summarize_run` draws."""


def changes_between(saved: TrainConfig, wanted: TrainConfig) -> tuple[Change, ...]:
    """List the settings that differ. If `wanted` has no run folder or chat date, the saved one is used.

    Example:
        >>> [str(change) for change in changes_between(TrainConfig(), TrainConfig.flat(steps=200))]
        ['steps: 100 -> 200']
    """
    if wanted.run.folder is None:
        wanted = wanted.replace(run=saved.run.folder)
    if wanted.model.chat and saved.model.chat and wanted.model.chat_date is None:
        wanted = wanted.replace(chat_date=saved.model.chat_date)
    before, after = (replace(config, task=config.generated_task).to_flat() for config in (saved, wanted))
    names = dict.fromkeys([*before, *after])
    return tuple(Change(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name))


def check_changes(changes: Collection[Change]) -> None:
    """Reject changes to settings that the run's results so far depend on.

    Raises:
        InputError: a setting changed that is not in `CHANGEABLE_ON_RESUME`; the message names it.
    """
    fixed = [change for change in changes if change.name not in CHANGEABLE_ON_RESUME]
    if fixed:
        raise InputError(
            f"A resumed run cannot change {', '.join(map(str, fixed))}; its results so far depend on the former values. Undo the "
            f"change, or start a new run. These settings may change: {', '.join(CHANGEABLE_ON_RESUME)}."
        )


def inputs_of(setup: Setup, custom: CustomParts) -> dict[str, str]:
    """Return digests of a run's inputs other than its settings: data, models, tokenizer, and the parts passed to `train`."""
    config, model, heldout = setup.config, setup.config.model.path, setup.heldout
    found: dict[str, str | None] = {
        TRAIN_ROWS: digest_of_rows(setup.train.prompts.problems),
        HELDOUT_ROWS: digest_of_rows(heldout.prompts.problems),
        **inputs_of_judge(digest_of_reward(config, custom.reward), setup.train.environment, config),
        "further held-out rows": digest_of_rows(heldout.all_problems) if heldout.extra_sets else None,
        **text_inputs(setup.tokenizer, chat=config.model.chat),
        "algorithm": digest_of_name(config.algorithm.name, BY_NAME),
        "step reward": digest_of_name(config.reward.step_reward or "", STEP_REWARDS),
        "teacher": digest_of_model(config.algorithm.teacher),
        "model's configuration": None if model is None else digest_of_files(locate(model), ("config.json", GENERATION)),
    }
    return {name: digest for name, digest in found.items() if digest is not None}


def check_steps(changes: Collection[Change], setup: Setup, state: TrainState) -> None:
    """Reject a value of `steps` that the run has already passed, or any new value if the past steps depend on the old value.

    Raises:
        InputError: `steps` must not change; the message includes the reason.
    """
    change = next((change for change in changes if change.name == "steps"), None)
    done = int(state.step)
    if change is None or not done:
        return
    if change.after < done:
        raise InputError(f"steps is {change.after}, but the run has already taken {done} RL steps; set at least {done}.")
    reasons = reasons_steps_are_fixed(setup.config.replace(steps=change.before), setup.algorithm, change.after)
    if reasons:
        raise InputError(
            f"A resumed run cannot change {change}, because the {done} RL steps so far depend on the total number of steps "
            f"({', '.join(reasons)}). Leave --steps out, or start a new run."
        )


def reasons_steps_are_fixed(config: TrainConfig, algorithm: Algorithm, steps: int) -> list[str]:
    """List what would differ if the run had `steps` RL steps; unless the list is empty, `steps` cannot change once RL has begun."""
    warmups = {critic_warmup(each) for each in (config, config.replace(steps=steps))}
    scheduled = {
        "difficulty_window_end": config.data.difficulty_window_end is not None,
        f"the algorithm {config.algorithm.name}, which mixes two advantages": algorithm.needs("progress"),
        f"schedule={config.optimization.schedule}": config.optimization.schedule != "constant",
        "the pretrained critic's weight": algorithm.critic is not None and algorithm.critic.blend is not None,
        "the warm-up of the critic's learning rate": algorithm.critic is not None and len(warmups) > 1,
    }
    return [reason for reason, applies in scheduled.items() if applies]


def summarize_run(setup: Setup, state: TrainState, folder: RunFolder, changes: Collection[Change]) -> list[str]:
    """Describe a resumed run: where it continues, what was changed, and its curves so far."""
    config, done, phase = setup.config, int(state.step), int(state.phase)
    steps = config.optimization.steps
    position = f"RL step {done} of {steps}"
    if phase == WARM_START:
        position = f"warm-start step {int(state.warm_step)} of {config.warm_start.steps}"
    elif phase != RL:
        position = f"step {int(state.value_step)} of value pretraining"
    lines = [f"Resumed at {position}."]
    if changes:
        lines.append(f"Changed: {', '.join(map(str, changes))}.")
    if done >= steps and phase == RL:
        more = max(2 * steps, 1)
        is_fixed = reasons_steps_are_fixed(config, setup.algorithm, more)
        extend = "" if is_fixed else f"; --steps N extends it, for example --steps {more}"
        lines.append(f"The run has finished all of its RL steps{extend}.")
    rows = past_rows(folder.metrics)
    curves = {
        "reward": [row["reward"] for row in rows if row["phase"] == "rl" and row.get("reward") is not None],
        "held-out accuracy": [row["accuracy"] for row in rows if is_evaluation(row)],
    }
    for name, values in curves.items():
        if values:
            lines.append(f"{name} so far: {sparkline(values, CURVE_WIDTH)} {values[0]:.3f} -> {values[-1]:.3f}")
    return lines
