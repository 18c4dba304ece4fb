"""`rljax train`: train a language model with reinforcement learning."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tyro

from rljax.errors import InputError
from rljax.records import documented
from rljax.training.config import SumsConfig, TrainConfig

DEFAULT_EXPERIMENT = "arithmetic_dapo"
INTERRUPTED = 130


@documented
@dataclass(frozen=True)
class Train:
    """Train a language model with reinforcement learning.

    Without --model, --dataset or --experiment this runs experiments/arithmetic_dapo.py: a small transformer learns arithmetic
    with written-out steps, from random weights. With --model or --dataset the same loop trains your model on your data.
    Every setting below can be changed; the values shown are the ones that this command would use. The settings of a generated
    task are shown and accepted only with that task (`rljax train --task iteration --help`).
    """

    config: tyro.conf.AvoidSubcommands[tyro.conf.OmitArgPrefixes[TrainConfig]]
    """Settings of the run."""
    task: str | None = None
    """Task that is generated if there is no dataset: 'sums', or 'iteration' for long chains."""
    resume: Path | None = None
    """Continue the run in this folder; all settings come from its config.json."""
    experiment: str | None = None
    """Start from the settings of an experiment: its name in experiments/, or a Python file that defines CONFIG."""
    coordinator: str | None = None
    """Run on several hosts, with the same command on each: ADDRESS:PORT of the first host, or `auto` on TPU pods, under Slurm
    or Open MPI, where JAX finds the hosts itself. All hosts must be able to reach the run folder."""
    hosts: int | None = None
    """Number of hosts, if the coordinator is an address."""
    host: int | None = None
    """Index of this host, counted from 0, if the coordinator is an address."""


def value_of(option: str, arguments: Sequence[str]) -> str | None:
    """Find the value of an option, written as `--option value` or `--option=value`; None without the option."""
    for index, argument in enumerate(arguments):
        if argument == option and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    return None


def starting_config(arguments: Sequence[str]) -> TrainConfig:
    """Choose the settings that the flags of `train` change: an experiment's, or the defaults for the user's own model or data.

    Raises:
        InputError: an experiment, an algorithm or a task does not exist, or both a task and a dataset are set.
    """
    words = {
        option: value_of(f"--{option}", arguments) for option in ("experiment", "model", "dataset", "task", "algorithm")
    }
    if words["experiment"] is None and (words["model"] is not None or words["dataset"] is not None):
        config = TrainConfig(task=SumsConfig())
    else:
        config = load_experiment(DEFAULT_EXPERIMENT if words["experiment"] is None else words["experiment"])
    if words["dataset"] is not None and words["task"] is not None:
        raise InputError(
            f"--dataset {words['dataset']} and --task {words['task']} exclude each other; set only one of them."
        )
    if words["dataset"] is not None:
        config = replace(config, task=None)
    if words["task"] is not None and words["task"] != config.to_flat().get("task"):
        config = config.replace(task=words["task"])
    return with_shared_options(config, words["algorithm"])


def with_shared_options(config: TrainConfig, algorithm: str | None) -> TrainConfig:
    """Keep those of the experiment's options that another algorithm has too."""
    if algorithm in (None, config.algorithm.name):
        return config
    from rljax.training.algorithm import option_names  # noqa: PLC0415  --help need not wait for JAX

    known = option_names(algorithm)
    options = {name: value for name, value in config.algorithm.options.items() if name in known}
    return config.replace(algorithm_options=options)


def load_experiment(name: str) -> TrainConfig:
    """Read CONFIG from an experiment, by name or by file.

    Raises:
        InputError: there is no such file, or it defines no CONFIG.
    """
    package = Path(__file__).resolve().parents[1]
    folders = (package / "experiments", package.parent / "experiments")  # in a wheel, in a checkout
    file = Path(name)
    if file.suffix != ".py":
        file = next((folder / f"{name}.py" for folder in folders if (folder / f"{name}.py").is_file()), file)
    if not file.is_file():
        known = sorted({found.stem for folder in folders for found in folder.glob("*.py")})
        raise InputError(
            f"There is no experiment {name!r}; give a Python file that defines CONFIG, or one of {', '.join(known)}."
        )
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise InputError(f"The experiment {str(file)!r} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = vars(module).get("CONFIG")
    if not isinstance(config, TrainConfig):
        raise InputError(f"The experiment {str(file)!r} does not define CONFIG as an rljax.TrainConfig.")
    return config


def run_train(command: Train) -> int:
    """Train, or resume a run."""
    from rljax.training.interrupt import Interrupted  # noqa: PLC0415  --help need not wait for JAX
    from rljax.training.loop import train  # noqa: PLC0415

    join_hosts(command)
    try:
        if command.resume is not None:
            refuse_settings_on_resume(command)
            train(resume=command.resume)
        else:
            train(command.config)
    except Interrupted:
        return INTERRUPTED
    return 0


def join_hosts(command: Train) -> None:
    """Join the other hosts of the run, if there are any."""
    if command.coordinator is None:
        if (command.hosts, command.host) != (None, None):
            raise InputError(f"hosts={command.hosts} and host={command.host} need --coordinator: the address of host 0.")
        return
    from rljax.parallel.joining import join  # noqa: PLC0415

    join(command.coordinator, hosts=command.hosts, host=command.host)


def refuse_settings_on_resume(command: Train) -> None:
    """Refuse settings beside --resume: a resumed run takes its settings from its folder and would ignore any others."""
    default, settings = load_experiment(DEFAULT_EXPERIMENT).to_flat(), command.config.to_flat()
    changed = [name for name in settings if name not in default or settings[name] != default[name]]
    if changed or command.experiment is not None:
        raise InputError(
            f"--resume continues the run with the settings in its config.json, so {', '.join(changed) or 'experiment'} cannot be "
            "set as well; leave it out, or start a new run."
        )
