"""Generate the problems of a run, or read them from a dataset, and put them in an order."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rljax.data.dataset import load_problems, read_problems
from rljax.data.fault import Fault
from rljax.data.images import check_whole_images, has_patch
from rljax.data.length_batches import LengthStream
from rljax.data.problem import Problem
from rljax.data.prompts import PromptStream
from rljax.data.stages import StagedStream
from rljax.errors import InputError
from rljax.records import documented, required
from rljax.tasks import TaskConfig, task_name
from rljax.tracking.run_folder import CONFIG, RunFolder
from rljax.training.config import ModelConfig, TrainConfig
from rljax.training.parts.seams import Seams, saved_settings

COMPARING = frozenset({"exact", "math", "math_or_last_number", "gsm8k", "aime", "yes_no", "multiple_choice"})
"""Rewards that need a reference answer."""


@documented
class Problems(NamedTuple):
    """Problems to train on and held-out ones; the two share no prompt."""

    train: Sequence[Problem]
    """Problems to train on."""
    heldout: Sequence[Problem]
    """Problems to evaluate on."""
    faults: Sequence[Fault] = ()
    """Bad rows of the dataset."""
    omissions: Sequence[str] = ()
    """Good rows that are not used: how many, and why."""


def generate_problems(task: TaskConfig, heldout: int, *, seed: int) -> Problems:
    """Generate problems of a task to train on, and `heldout` others to evaluate on."""
    return Problems(*task.problems(heldout, seed=seed))


def make_problems(
    config: TrainConfig, rows: Iterable[Mapping[str, object]] | None = None, *, needs_answers: bool = True
) -> Problems:
    """Generate or load the problems to train and to evaluate on.

    Args:
        config: the settings.
        rows: the rows of the dataset, where they were passed to `train`.
        needs_answers: whether the reward of the settings judges, which may compare with reference answers.

    Raises:
        InputError: the dataset cannot be used.
    """
    data, task = config.data, config.generated_task
    if task is not None:
        return generate_problems(task, data.heldout_problems, seed=config.run.seed)
    options = {
        "prompt_column": data.prompt_column,
        "answer_column": data.answer_column,
        "demonstration_column": data.demonstration_column,
        "on_error": data.on_error,
    }
    loaded = read_problems(required(data.dataset, "config.data.dataset") if rows is None else rows, **options)
    comparing = [name for name in config.reward.names if name.removeprefix("brier:") in COMPARING] if needs_answers else []
    if comparing and not any(problem.answer for problem in loaded.problems):
        raise InputError(
            f"The reward {comparing[0]!r} compares with reference answers, but no problem of {data.dataset!r} has one; "
            "choose a reward that needs none, such as code, or name the column with --answer-column."
        )
    if data.heldout_dataset is None:
        train, heldout = split_heldout(loaded.problems, data.heldout_problems, seed=config.run.seed)
        copies = len(loaded.problems) - len(train) - len(heldout)
        return Problems(train, heldout, loaded.faults, omission(copies, "they repeat held-out prompts"))
    separate = read_problems(data.heldout_dataset, split="test", **options)
    heldout = separate.problems[: data.heldout_problems]
    prompts = {problem.prompt for problem in heldout}
    problems = [problem for problem in loaded.problems if problem.prompt not in prompts]
    if not problems:
        raise InputError(
            f"Every prompt of {data.dataset!r} is in {data.heldout_dataset!r} too; nothing is left to train on."
        )
    omissions = omission(
        len(loaded.problems) - len(problems), f"their prompts are among the held-out ones of {separate.source}"
    )
    beyond = len(separate.problems) - len(heldout)
    omissions += omission(beyond, f"heldout_problems={data.heldout_problems} takes the first ones of {separate.source}")
    return Problems(problems, heldout, [*loaded.faults, *separate.faults], omissions)


def omission(count: int, reason: str) -> list[str]:
    """Say how many rows are left out, and why; nothing for none.

    Example:
        >>> omission(7, "they repeat held-out prompts"), omission(0, "")
        (['7 rows are left out: they repeat held-out prompts'], [])
    """
    return [f"{count} row{'s are' if count > 1 else ' is'} left out: {reason}"] if count else []


def split_heldout(problems: list[Problem], count: int, *, seed: int) -> tuple[list[Problem], list[Problem]]:
    """Hold out `count` random prompts, but at most a tenth of them; copies of a prompt stay in the same part."""
    prompts = sorted({problem.prompt for problem in problems})
    if len(prompts) < 2:
        raise InputError("The dataset has a single prompt, so none can be held out; give --heldout-dataset.")
    count = max(1, min(count, len(prompts) // 10))
    chosen = np.random.default_rng(seed).choice(len(prompts), count, replace=False)
    separate = {prompts[index] for index in chosen}
    train = [problem for problem in problems if problem.prompt not in separate]
    heldout = [problem for problem in problems if problem.prompt in separate]
    return train, heldout[:count]


def make_stream(config: TrainConfig, problems: Sequence[Problem]) -> PromptStream:
    """Order the training problems: each once per epoch, in the task's stages, or sampled by length if `length_weights` is set.

    Raises:
        InputError: `length_weights` is set for a task with stages.
    """
    places, task = range(len(problems)), config.generated_task
    weights, seed = config.data.length_weights, config.run.seed
    stages = None if task is None else task.stages(problems)
    if task is not None and stages is not None:
        if weights is not None:
            raise InputError(
                f"length_weights={weights} draws prompts by length, and the task {task_name(task)} decides their order itself; "
                "leave length_weights out."
            )
        return StagedStream(places, stages.places, prompts=stages.prompts, seed=seed)
    if weights is None:
        return PromptStream(places, seed=seed)
    demonstrations = [problem.demonstration for problem in problems if problem.demonstration]
    texts = demonstrations if len(demonstrations) == len(problems) else [problem.prompt for problem in problems]
    return LengthStream(places, [len(text) for text in texts], weights=weights, seed=seed)


def _is_run(folder: Path) -> bool:
    """True for the folder of a run; a model's folder has a config.json too."""
    return (folder / CONFIG).is_file() and RunFolder(folder, {}).checkpoints.is_dir()


def training_problems(run: Path | None, source: str | Path, *, flag: str = "--dataset") -> Sequence[Problem]:
    """The problems that an earlier run was trained on.

    Args:
        run: its folder; None if there is no run.
        source: its name in errors.
        flag: what else names problems.

    Raises:
        InputError: there is no run, it got its problems from Python, or they cannot be read again.
    """
    if run is None:
        raise InputError(f"{str(source)!r} is not the folder of a run, so its problems are unknown; give them with {flag}.")
    config, parts = saved_settings(RunFolder.open(run).config)
    if {"problems", "dataset"} & set(parts):
        raise InputError(f"the run {str(source)!r} got its problems from Python; give a dataset with {flag}.")
    return make_problems(config, needs_answers=not {"reward", "environment"} & set(parts)).train


def anchor_problems(config: TrainConfig, *, most: int) -> list[Problem]:
    """Some of the problems that an anchored policy is to keep solving: those to train on, of an earlier run or of a dataset.

    Args:
        config: the settings; without a source, the earlier run is that whose folder the model lies in.
        most: largest number of problems; more are drawn from.

    Raises:
        InputError: there is no source, it cannot be read, or the run got its problems from Python.
    """
    data, source, model = config.data, config.algorithm.anchor_problems, config.model.path
    if source is None and model is not None and _is_run(Path(model).parent):
        source = str(Path(model).parent)
    if source is None:
        raise InputError(
            f"anchor={config.algorithm.anchor}: the problems that the policy is to keep solving are unknown, because its model "
            "is not in the folder of a run; name that run, or a dataset, with --anchor-problems."
        )
    if _is_run(Path(source)):
        problems = training_problems(Path(source), source, flag="--anchor-problems")
    else:
        problems = load_problems(source, prompt_column=data.prompt_column, answer_column=data.answer_column)
    chosen = np.random.default_rng(config.run.seed).permutation(len(problems))[:most]
    return [problems[index] for index in chosen]


def problems_of_run(config: TrainConfig, seams: Seams) -> Problems:
    """Problems of a run: those that were passed, those of rows that were passed, or those of the settings."""
    if seams.problems is not None:
        return Problems(*seams.problems)
    needs_answers = seams.reward is None and seams.environment is None
    return make_problems(config, seams.dataset, needs_answers=needs_answers)


def check_images(config: ModelConfig, problems: Sequence[Problem]) -> None:
    """Refuse problems with a part of an image in the prompt, or a patch in the demonstration; without `images` there is no check.

    Raises:
        InputError: the message shows the text.
    """
    if config.images is None:
        return
    height, width = config.images
    for problem in problems:
        check_whole_images(problem.prompt, height=height, width=width)
        if has_patch(problem.demonstration or ""):
            raise InputError(
                f"the demonstration {problem.demonstration!r:.60} has a patch of an image, which the model reads and never writes; "
                "leave it out."
            )
