"""The settings to which `rljax train` and similar commands apply their flags, and the origin of each setting."""

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
    """Settings of a run, from flags and from a file."""

    config: tyro.conf.AvoidSubcommands[tyro.conf.OmitArgPrefixes[TrainConfig]]
    """Settings of the run."""
    file: Annotated[Path | None, tyro.conf.arg(name="config")] = None
    """File of settings: YAML or JSON whose keys are the names of flags, a run's config.json, or a Python file that defines CONFIG.
    Flags take precedence over the file."""
    task: str | None = None
    """Task whose problems are generated if there is no dataset: 'sums', 'iteration' (long chains) or 'countdown' (a search with
    sparse rewards); 'lengths', 'outliers', 'tight', 'mixed', 'drift', 'brackets', 'exploit' or 'digits' (images), each of which
    isolates one difficulty; or 'reasoning_gym:NAME' for one of the hundred generators in the package reasoning-gym, such as
    reasoning_gym:countdown. Nearly all tasks of reasoning-gym need a pretrained model."""
    experiment: str | None = None
    """Experiment whose settings the run starts from: its name in experiments/, or a Python file that defines CONFIG."""
    smoke: bool = False
    """Run a smoke test of about a minute: a very small version of the run, which passes through all phases."""
    trust: bool = False
    """With --config or --resume FOLDER: execute code that the run's config.json names, i.e. a reward, environment, step reward or
    algorithm of the form file.py:function or module:function."""


def value_of(option: str, arguments: Sequence[str]) -> str | None:
    """Find the last value of an option, written as `--option value` or `--option=value`; None if the option is absent."""
    value = None
    for index, argument in enumerate(arguments):
        if argument == option and index + 1 < len(arguments):
            value = arguments[index + 1]
        if argument.startswith(f"{option}="):
            value = argument.partition("=")[2]
    return value


def flags_in(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the flags on a command line, with hyphens and without values. A word with a space before any "=" is a value.

    Example:
        >>> list(flags_in(["--steps=3", "--learning_rate", "1e-5", "--prompt", "--- who?", "--quiet"]))
        ['--steps', '--learning-rate', '--prompt', '--quiet']
    """
    for argument in arguments:
        name = argument[2:].partition("=")[0]
        if argument.startswith("--") and len(argument) > 2 and " " not in name:
            yield f"--{name.replace('_', '-')}"


def without_flags(arguments: Sequence[str], flags: Collection[str], switches: Collection[str] = ()) -> list[str]:
    """Remove some flags from a command line, with their values.

    Args:
        arguments: flags and their values.
        flags: flags to remove that have one value.
        switches: flags to remove that have no value.

    Example:
        >>> without_flags(["--restarts", "3", "--json", "--steps", "5", "--restarts=2"], ["--restarts"], ["--json"])
        ['--steps', '5']
    """
    words, rest = [], iter(arguments)
    for word in rest:
        flag, equals, _ = word.partition("=")
        if flag in flags and not equals:
            next(rest, None)
        elif flag not in flags and flag not in switches:
            words.append(word)
    return words


def start_from_flags(arguments: Sequence[str]) -> Start:
    """Return the settings to which flags apply: from a file, an experiment, the run to resume, or the general defaults.

    Raises:
        InputError: a file, an experiment, an algorithm, a task or a run cannot be used, or two flags exclude each other.
    """
    values = {name: value_of(f"--{name}", arguments) for name in ("experiment", "model", "dataset", "task", "algorithm")}
    flags = set(flags_in(arguments))
    resume, file, steps = (value_of(f"--{name}", arguments) for name in ("resume", "config", "steps"))
    if resume is not None and resume != "auto":
        refused = sorted(flags & {"--config", "--experiment", "--task", "--smoke"})
        if refused:
            raise InputError(
                f"--resume continues a run with the settings in its config.json, so {', '.join(refused)} cannot be used as well; "
                f"leave {' and '.join(refused)} out, or start a new run."
            )
        return start_from_run(resume, flags)
    sampling = [word for word in arguments if word.removeprefix("--with=").startswith(SAMPLING_SLOT)]
    if "--smoke" in flags and sampling:
        raise InputError(
            "--smoke leaves dynamic sampling out, because after so short a warm start it would keep no group, so "
            f"{sampling[0]} cannot be used; leave out one of these two flags."
        )
    is_trial = steps is not None and steps.isdecimal() and "--warm-start-steps" not in flags
    trial_steps = int(steps) if is_trial and steps is not None else None
    path = None if file is None else Path(file)
    if path is not None:
        check_code(path, trust="--trust" in flags, replaced=[flag[2:].replace("-", "_") for flag in flags])
    return choose_start(StartFlags(file=path, steps=trial_steps, smoke="--smoke" in flags, **values))


def start_from_run(folder: str, flags: Collection[str]) -> Start:
    """Read the settings of the run to resume.

    Code that these settings name is executed only with `--trust`, or if a flag names that part again: `--reward` permits only the
    run's reward, and `--environment` only its environment.
    """
    from rljax.tracking.run_folder import RunFolder  # noqa: PLC0415  --help need not wait for JAX
    from rljax.training.parts.custom_parts import read_saved_settings  # noqa: PLC0415  as above
    from rljax.training.parts.reward import (  # noqa: PLC0415  as above
        custom_environment_names,
        custom_part_names,
        custom_reward_names,
    )

    run = RunFolder.open(folder)
    config, needed = read_saved_settings(run.config)
    if not needed:  # a run that needs Python arguments is refused later, before any of its code is executed
        own, options = custom_environment_names(config), "--environment-options" in flags
        replaced = {name: "--environment" in flags or (options and name != config.reward.environment) for name in own}
        permitted = [name for name in custom_reward_names(config) if replaced.get(name, "--reward" in flags)]
        names = [name for name in custom_part_names(config) if name not in permitted]
        check_trusted(run.path, names, trust="--trust" in flags)
    return Start(config, dict.fromkeys(config.to_flat(), str(run.config_file)))


def starting_config(arguments: Sequence[str]) -> TrainConfig:
    """Return the settings to which the flags of `train` apply; see `start_from_flags`."""
    return start_from_flags(arguments).config
