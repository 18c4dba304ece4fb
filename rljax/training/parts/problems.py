"""Generate the problems of a run, or read them from a dataset, and order them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rljax.data.bad_rows import Fault
from rljax.data.images import check_complete_images, has_patch
from rljax.data.length_batches import LengthStream
from rljax.data.problem import Problem
from rljax.data.prompts import PromptStream
from rljax.errors import InputError
from rljax.records import required
from rljax.tasks import task_name
from rljax.text import counted
from rljax.tracking.run_folder import CONFIG, RunFolder
from rljax.training.config import ModelConfig, TrainConfig
from rljax.training.parts.custom_parts import CustomParts, read_saved_settings

REFERENCE_REWARDS = frozenset({"exact", "math", "math_or_last_number", "gsm8k", "aime", "yes_no", "multiple_choice"})
"""Rewards that need a reference answer."""


class Problems(NamedTuple):
    """Training problems and held-out problems, which share no prompt."""

    train: Sequence[Problem]
    """Problems to train on."""
    heldout: Sequence[Problem]
    """Problems to evaluate on."""
    faults: Sequence[Fault] = ()
    """Bad rows of the dataset."""
    omissions: Sequence[str] = ()
    """Messages about valid rows that are not used: how many, and why."""


def make_problems(
    config: TrainConfig, rows: Iterable[Mapping[str, object]] | None = None, *, needs_answers: bool = True
) -> Problems:
    """Generate or load the problems to train and to evaluate on.

    Args:
        config: the settings.
        rows: the rows of the dataset, if they were passed to `train`.
        needs_answers: whether the reward comes from the settings, so that it may compare with reference answers.

    Raises:
        InputError: the dataset cannot be used.
    """
    data, task = config.data, config.generated_task
    if task is not None:
        return Problems(*task.problems(data.heldout_problems, seed=config.run.seed))
    from rljax.data.problem_datasets import read_problems  # noqa: PLC0415  a generated task reads no file

    options = {
        "prompt_column": data.prompt_column,
        "answer_column": data.answer_column,
        "demonstration_column": data.demonstration_column,
        "on_error": data.on_error,
        "tokenized": not config.optimization.steps,
    }
    loaded = read_problems(required(data.dataset, "config.data.dataset") if rows is None else rows, **options)
    rewards = config.reward.names if needs_answers and config.reward.environment is None else ()
    comparing = [name for name in rewards if name.removeprefix("brier:") in REFERENCE_REWARDS]
    if comparing and not any(problem.answer for problem in loaded.problems):
        raise InputError(
            f"The reward {comparing[0]!r} compares responses with reference answers, but no problem of {data.dataset!r} has one; "
            "choose a reward that needs none, such as code, or name the column with --answer-column."
        )
    if data.heldout_dataset is None:
        train, heldout = split_heldout(loaded.problems, data.heldout_problems, seed=config.run.seed)
        omissions = note_omission(len(loaded.problems) - len(train) - len(heldout), "same prompt as a held-out problem")
        if len(heldout) < data.heldout_problems:
            omissions.append(
                f"{counted(len(heldout), 'problem')} held out instead of heldout_problems={data.heldout_problems}: the limit is a "
                "tenth of the prompts, but at least one; use --heldout-dataset to hold out more"
            )
        return Problems(train, heldout, loaded.faults, omissions)
    separate = read_problems(data.heldout_dataset, split="test", **options)
    heldout = separate.problems[: data.heldout_problems]
    prompts = {problem.prompt for problem in heldout}
    problems = [problem for problem in loaded.problems if problem.prompt not in prompts]
    if not problems:
        raise InputError(
            f"Every prompt of {data.dataset!r} is in {data.heldout_dataset!r} too; nothing is left to train on."
        )
    omissions = note_omission(
        len(loaded.problems) - len(problems), f"same prompt as a held-out problem of {separate.source}"
    )
    unused = len(separate.problems) - len(heldout)
    omissions += note_omission(unused, f"beyond the first heldout_problems={data.heldout_problems} of {separate.source}")
    return Problems(problems, heldout, [*loaded.faults, *separate.faults], omissions)


def note_omission(count: int, reason: str) -> list[str]:
    """Return a list with one message: how many rows are left out, and why; empty for 0 rows.

    Example:
        >>> note_omission(7, "too long"), note_omission(0, "")
        (['7 rows are left out: too long'], [])
    """
    return [f"{count} row{'s are' if count > 1 else ' is'} left out: {reason}"] if count else []


def split_heldout(problems: list[Problem], count: int, *, seed: int) -> tuple[list[Problem], list[Problem]]:
    """Hold out `count` random prompts, but at most a tenth of all. Problems with equal prompts stay on one side of the split."""
    prompts = sorted({problem.prompt for problem in problems})
    if len(prompts) < 2:
        raise InputError("The dataset has a single prompt, so none can be held out; pass --heldout-dataset.")
    count = max(1, min(count, len(prompts) // 10))
    chosen = np.random.default_rng(seed).choice(len(prompts), count, replace=False)
    separate = {prompts[index] for index in chosen}
    train = [problem for problem in problems if problem.prompt not in separate]
    heldout = [problem for problem in problems if problem.prompt in separate]
    return train, heldout[:count]


def make_prompt_stream(config: TrainConfig, problems: Sequence[Problem]) -> PromptStream:
    """Order the training problems: each once per epoch, in the task's stages, or sampled by length if `length_weights` is set.

    Raises:
        InputError: `length_weights` is set for a task with stages.
    """
    indices, task = range(len(problems)), config.generated_task
    weights, seed = config.data.length_weights, config.run.seed
    stages = None if task is None else task.stages(problems)
    if task is not None and stages is not None:
        if weights is not None:
            raise InputError(
                f"length_weights={weights} samples prompts by length, but the task {task_name(task)} decides their order itself; "
                "leave length_weights out."
            )
        from rljax.data.staged_stream import StagedStream  # noqa: PLC0415  one task has stages

        return StagedStream(indices, stages.indices, prompts=stages.prompts, seed=seed)
    if weights is None:
        return PromptStream(indices, seed=seed)
    demonstrations = [problem.demonstration for problem in problems if problem.demonstration]
    texts = demonstrations if len(demonstrations) == len(problems) else [problem.prompt for problem in problems]
    return LengthStream(indices, [len(text) for text in texts], weights=weights, seed=seed)


def is_run(folder: Path) -> bool:
    """Return True if a folder is a run folder. A check for config.json alone would also accept a model's folder."""
    return (folder / CONFIG).is_file() and RunFolder(folder, {}).checkpoints.is_dir()


def training_problems(run: Path | None, source: str | Path, *, flag: str = "--dataset") -> Sequence[Problem]:
    """Return the problems that an earlier run was trained on.

    Args:
        run: folder of the run; None if there is no run.
        source: name of the run in error messages.
        flag: the flag with which a user can pass problems instead, for error messages.

    Raises:
        InputError: there is no run, its problems were passed from Python, or they cannot be read again.
    """
    if run is None:
        raise InputError(f"{str(source)!r} is not the folder of a run, so its problems are unknown; pass them with {flag}.")
    config, parts = read_saved_settings(RunFolder.open(run).config)
    if {"problems", "dataset"} & set(parts):
        raise InputError(f"the problems of the run {str(source)!r} were passed from Python; pass a dataset with {flag}.")
    return make_problems(config, needs_answers=not {"reward", "environment"} & set(parts)).train


def problems_of_run(config: TrainConfig, custom: CustomParts) -> Problems:
    """Return the problems of a run, from the problems or the rows passed to `train`, or else from the settings."""
    if custom.problems is not None:
        return Problems(*custom.problems)
    needs_answers = custom.reward is None and custom.environment is None
    return make_problems(config, custom.dataset, needs_answers=needs_answers)


def check_images(config: ModelConfig, problems: Sequence[Problem]) -> None:
    """Reject problems with an incomplete image in the prompt, or a patch in the demonstration; do nothing if `images` is None.

    Raises:
        InputError: a problem has such an image or patch; the message shows the text.
    """
    if config.images is None:
        return
    height, width = config.images
    for problem in problems:
        check_complete_images(problem.prompt, height=height, width=width)
        if has_patch(problem.demonstration or ""):
            raise InputError(
                f"the demonstration {problem.demonstration!r:.60} contains an image patch, but the model never generates patches; "
                "remove the patch."
            )
