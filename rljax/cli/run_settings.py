"""The settings that the flags of `rljax train` and similar commands change, and where each setting comes from."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rljax.errors import InputError
from rljax.importing import check_trusted
from rljax.programs.base_settings import SAMPLING_SLOT, Start, StartFlags, check_code, choose_start
from rljax.training.config import TrainConfig


@dataclass(frozen=True)
class Settings:
    """Settings of a run, as flags and as a file."""

    config: tyro.conf.AvoidSubcommands[tyro.conf.OmitArgPrefixes[TrainConfig]]
    """Settings of the run."""
    file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """Read settings from a file: YAML or JSON with the names of the flags, the config.json of a run, or a Python file that defines
    CONFIG. Flags take precedence over the file."""
    task: str | None = None
    """Task to generate if there is no dataset: 'sums', 'iteration' (long chains) or 'countdown' (a search with sparse rewards);
    'lengths', 'outliers', 'tight', 'mixed', 'drift', 'brackets', 'exploit' or 'digits' (images), each with one difficulty; or
    'reasoning_gym:NAME', one of the hundred generators of the package reasoning-gym, such as reasoning_gym:countdown, nearly all of
    which need a trained model."""
    experiment: str | None = None
    """Start from the settings of an experiment: its name in experiments/, or a Python file that defines CONFIG."""
    smoke: bool = False
    """Run a test of about a minute: every part of the run is made small, and the run passes through all its phases."""
    trust: bool = False
    """With --config or --resume FOLDER: execute the reward, environment, step reward and algorithm that the run's config.json
    names, if they are code (file.py:function or module:function)."""


def value_of(option: str, arguments: Sequence[str]) -> str | None:
    """Find the value of an option, written as `--option value` or `--option=value`; None if it is absent."""
    found = None
    for index, argument in enumerate(arguments):
        if argument == option and index + 1 < len(arguments):
            found = arguments[index + 1]
        if argument.startswith(f"{option}="):
            found = argument.partition("=")[2]
    return found


def flags_in(arguments: Sequence[str]) -> Iterator[str]:
    """Flags on a command line, written with hyphens, without their values. A name that contains a space is a value.

    Example:
        >>> list(flags_in(["--steps=3", "--learning_rate", "1e-5", "--prompt", "--- who?", "--quiet"]))
        ['--steps', '--learning-rate', '--prompt', '--quiet']
    """
    for argument in arguments:
        name = argument[2:].partition("=")[0]
        if argument.startswith("--") and len(argument) > 2 and " " not in name:
            yield f"--{name.replace('_', '-')}"


def start_from_flags(arguments: Sequence[str]) -> Start:
    """Find the settings that flags change: from a file, an experiment, the run to resume, or the general defaults.

    Raises:
        InputError: a file, an experiment, an algorithm, a task or a run cannot be used, or flags exclude each other.
    """
    words = {name: value_of(f"--{name}", arguments) for name in ("experiment", "model", "dataset", "task", "algorithm")}
    flags = set(flags_in(arguments))
    resume, file, steps = (value_of(f"--{name}", arguments) for name in ("resume", "config", "steps"))
    if resume is not None and resume != "auto":
        refused = sorted(flags & {"--config", "--experiment", "--task", "--smoke"})
        if refused:
            raise InputError(
                f"--resume continues a run with the settings in its config.json, so {', '.join(refused)} cannot apply as well; "
                "leave it out, or start a new run."
            )
        return start_from_run(resume, flags)
    sampling = [word for word in arguments if word.removeprefix("--with=").startswith(SAMPLING_SLOT)]
    if "--smoke" in flags and sampling:
        raise InputError(
            "--smoke leaves dynamic sampling out, because after so short a warm start it would keep no group, so "
            f"{sampling[0]} cannot apply; leave one of the two out."
        )
    is_trial = steps is not None and steps.isdecimal() and "--warm-start-steps" not in flags
    number = int(steps) if is_trial and steps is not None else None
    path = None if file is None else Path(file)
    if path is not None:
        check_code(path, trust="--trust" in flags, replaced=[flag[2:].replace("-", "_") for flag in flags])
    return choose_start(StartFlags(file=path, steps=number, smoke="--smoke" in flags, **words))


def start_from_run(folder: str, flags: Collection[str]) -> Start:
    """Settings of a resumed run.

    Code that they name is executed with `--trust`, or if the command also names it: `--reward` permits only the run's reward, and
    `--environment` only its environment.
    """
    from rljax.tracking.run_folder import RunFolder  # noqa: PLC0415  as above
    from rljax.training.parts.custom_parts import read_saved_settings  # noqa: PLC0415  as above
    from rljax.training.parts.reward import (  # noqa: PLC0415  --help need not wait for JAX
        code_of,
        code_of_environment,
        code_of_training,
    )

    run = RunFolder.open(folder)
    config, needed = read_saved_settings(run.config)
    if not needed:  # a run that needs arguments from Python is refused before anything of it is executed
        own, options = code_of_environment(config), "--environment-options" in flags
        replaced = {name: "--environment" in flags or (options and name != config.reward.environment) for name in own}
        stated = [name for name in code_of(config) if replaced.get(name, "--reward" in flags)]
        names = [name for name in code_of_training(config) if name not in stated]
        check_trusted(run.path, names, trust="--trust" in flags)
    return Start(config, dict.fromkeys(config.to_flat(), str(run.config_file)))


def starting_config(arguments: Sequence[str]) -> TrainConfig:
    """Settings that the flags of `train` change; see `start_from_flags`."""
    return start_from_flags(arguments).config
