"""`rljax train`, `rljax sft` and `rljax pretrain`: train a language model with RL, on demonstrations, or on plain text."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import tyro

from rljax.cli.hosts import join_hosts
from rljax.cli.import_spinner import loading
from rljax.cli.restarting import note, run_with_restarts
from rljax.cli.run_settings import Settings, flags_in, start_from_flags, value_of
from rljax.cli.terminal_text import columns_of, wrap
from rljax.data.plain_text import is_text, text_dataset
from rljax.errors import InputError
from rljax.programs.base_settings import DEFAULT, Setting, Start


@dataclass(frozen=True)
class Train(Settings):
    """Train a language model with reinforcement learning.

    Without --model, --dataset, --config or --experiment, this command runs experiments/arithmetic_dapo.py: a small transformer
    learns arithmetic with written-out steps, from random weights. With --model or --dataset, the same loop trains your model on
    your data. The flags below change the settings; the values shown are those that this command would use. The settings of a
    generated task are shown and accepted only with that task (`rljax train --task iteration --help-all`).
    """

    resume: Path | None = None
    """Continue the run in this folder with the settings in its config.json. Flags may change only settings that do not affect what
    a step computes, such as --steps. `--resume auto` continues the run in the folder that --run names, or starts a run there if
    there is none, so the same command can be repeated after any interruption."""
    accept_changes: bool = False
    """With --resume: continue even if the rows, rewards, chat template or tokenizer have changed since the last start. Without this
    flag, a changed run is not continued. The run's starts.jsonl records the change."""
    coordinator: str | None = None
    """Run on several hosts, with the same command on each: ADDRESS:PORT of the first host, or `auto` on TPU pods, under Slurm
    or Open MPI, where JAX finds the hosts itself. All hosts must be able to reach the run folder."""
    hosts: int | None = None
    """Number of hosts, if the coordinator is an address."""
    host: int | None = None
    """Index of this host, counted from 0, if the coordinator is an address."""
    restarts: int = 0
    """Train in a separate process, and restart it at most this many times if it crashes or is killed. Each restart continues from
    the last checkpoint, as with --resume auto. Requires --run."""
    seeds: tuple[int, ...] = ()
    """Train with each of these seeds, one after the other, in RUN/seed-N, and report the mean over seeds with its 95 % interval;
    for example --seeds 0 1 2. The same command, with the same --run, continues where it was stopped; a finished seed is not trained
    again."""


@dataclass(frozen=True)
class Sft(Train):
    """Fine-tune a language model on demonstrations (supervised fine-tuning, SFT).

    Each row of the dataset has chat messages, a prompt and a completion, or a column with a demonstration. Only the assistant's
    tokens are trained on.
    """

    epochs: int | None = None
    """Number of passes over the training rows, instead of --steps. Rows that are dropped because they are too long count as part of
    a pass."""


@dataclass(frozen=True)
class Pretrain(Sft):
    """Train a language model to predict the next token of plain text (pretraining).

    The files are joined into one stream of tokens and cut into blocks of --block tokens; the last tenth of each file is held out
    to measure perplexity. Without --model, the model is a small transformer with random weights.
    """

    files: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="FILES")] = ()
    """Text files in UTF-8, one document per file. Put the files before any flags."""


SFT_FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "--steps": "--warm-start-steps",
        "--batch": "--warm-start-batch",
        "--learning-rate": "--warm-start-learning-rate",
        "--optimizer": "--warm-start-optimizer",
        "--eval-every": "--warm-start-eval-every",
        "--accuracy": "--warm-start-accuracy",
    }
)
"""Flag of `rljax sft` -> flag of `rljax train`."""
PRETRAIN_FLAGS: Mapping[str, str] = MappingProxyType(
    {**SFT_FLAGS, "--block": "--max-response-tokens", "--heldout-blocks": "--heldout-problems"}
)
"""Flag of `rljax pretrain` -> flag of `rljax train`."""
PRETRAIN_DEFAULTS: Mapping[str, object] = MappingProxyType(
    {"name": "pretrain", "warm_start_steps": 500, "warm_start_batch": 32, "max_response_tokens": 128}
)
"""Defaults of `rljax pretrain`."""
SFT_MODEL_DEFAULTS: Mapping[str, float] = MappingProxyType(
    {
        "warm_start_batch": 16,
        "warm_start_learning_rate": 2e-5,
        "max_prompt_tokens": 512,
        "max_response_tokens": 512,
    }
)
"""Defaults of `rljax sft` for a pretrained model."""
ADAPTER_RATE = 2e-4
"""Default learning rate of `rljax sft` if it trains an adapter."""


def full_names(arguments: Sequence[str], names: Mapping[str, str] = SFT_FLAGS) -> list[str]:
    """Replace a command's own flags, by default those of `rljax sft`, with the flags of `rljax train` that `names` maps them to.

    Example:
        >>> full_names(["--steps", "8", "--learning_rate=1e-5", "--warm-start-batch", "4"])
        ['--warm-start-steps', '8', '--warm-start-learning-rate=1e-5', '--warm-start-batch', '4']
    """
    parts = (word.partition("=") for word in arguments)
    return [names.get(flag.replace("_", "-"), flag) + equals + value for flag, equals, value in parts]


def pretrain_to_train_flags(arguments: Sequence[str]) -> list[str]:
    """Translate the arguments of `rljax pretrain`: the leading files become a dataset, and the flags become those of `rljax train`.

    Raises:
        InputError: the arguments name files, and have a flag that cannot be combined with files, such as --dataset.

    Example:
        >>> pretrain_to_train_flags(["/data/a.txt", "--steps", "8"])
        ['--dataset', 'text:/data/a.txt', '--heldout-dataset', 'text:/data/a.txt', '--warm-start-steps', '8']
    """
    count = next((index for index, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    files, words = arguments[:count], full_names(arguments[count:], PRETRAIN_FLAGS)
    refused = next((flag for flag in ("--dataset", "--heldout-dataset", "--epochs") if flag in set(flags_in(words))), None)
    if files and refused is not None:
        raise InputError(
            f"{refused} cannot be used with `rljax pretrain FILES`, which trains on those files for --steps updates; leave "
            f"{refused} out."
        )
    if not files:
        return words
    name = text_dataset(Path(file).expanduser().absolute() for file in files)
    return ["--dataset", name, "--heldout-dataset", name, *words]


def train_arguments(command: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments of `rljax sft` or `rljax pretrain`, translated to the flags of `rljax train`."""
    return pretrain_to_train_flags(arguments) if command == "pretrain" else full_names(arguments)


def sft_base_settings(arguments: Sequence[str], own: Mapping[str, object] = MappingProxyType({})) -> Start:
    """Return the settings that the flags of `rljax sft` then override; `arguments` are these flags as `full_names` returns them.

    If there is a dataset, and neither the command line nor a file sets a reward, the reward is "none", so that nothing is sampled.
    A generated task has its own reward. A resumed run keeps its settings. The defaults in `own` override those of `rljax sft`.
    """
    start, flags = start_from_flags(arguments), set(flags_in(arguments))
    config = start.config
    wanted: dict[str, object] = {"steps": 0, "models": "last", "name": "sft"}
    has_dataset = value_of("--dataset", arguments) is not None or config.data.dataset is not None
    if has_dataset and "--environment" not in flags and config.reward.environment is None:
        wanted["reward"] = "none"
    if value_of("--model", arguments) is not None or config.model.path is not None:
        wanted |= SFT_MODEL_DEFAULTS
        if "--lora-rank" in flags or config.adapter.rank is not None:
            wanted["warm_start_learning_rate"] = ADAPTER_RATE
    wanted |= own
    settings = {
        name: Setting(value, "rljax sft")
        for name, value in wanted.items()
        if start.origin(name) == DEFAULT or (name == "steps" and "--resume" not in flags)
    }
    return start.with_settings(settings) if settings else start


def run_sft(command: Sft, start: Start, arguments: list[str]) -> int:
    """Start or resume supervised fine-tuning; the exit codes are those of `run_train`.

    Raises:
        InputError: both --steps and --epochs are set, or the run cannot start.
    """
    if command.epochs is not None and "--warm-start-steps" in set(flags_in(arguments)):
        raise InputError("--epochs and --steps are two ways to set the length of the training; leave one of them out.")
    return _run("sft", command, start, arguments, epochs=command.epochs)


def run_pretrain(command: Pretrain, start: Start, arguments: list[str]) -> int:
    """Start or resume training on text files; the exit codes are those of `run_train`.

    Raises:
        InputError: no file is named, or a file comes after a flag.
    """
    if command.files:
        raise InputError("write the files first, before any flags: `rljax pretrain FILES --steps 500`.")
    if not is_text(command.config.data.dataset):
        raise InputError("name at least one text file: `rljax pretrain FILES --steps 500`. Or use --resume RUN.")
    return _run("pretrain", command, start, arguments)


def run_train(command: Train, start: Start, arguments: list[str]) -> int:
    """Start or resume a run.

    The exit code is 0 if the run is complete, 130 if a signal (Ctrl-C, SIGTERM, SIGHUP ...) stopped it and its state was saved, and
    75 if another host or the sampling server was lost.
    """
    return _run("train", command, start, arguments)


def _run(name: str, command: Train, start: Start, arguments: list[str], **options: object) -> int:
    """Run `rljax.train`, or `rljax.sft` for the commands `sft` and `pretrain`."""
    if command.restarts < 0:
        raise InputError(f"restarts is {command.restarts}; it must not be negative.")
    if command.restarts:
        return run_with_restarts(arguments, command.restarts, program=name)
    with loading(quiet=command.config.run.quiet):
        import rljax  # noqa: PLC0415  --help need not wait for JAX

        train: Callable = getattr(rljax, "train" if name == "train" else "sft")

    if command.seeds:
        check_seeds(command, arguments)
    for text in start.notes if command.host in (None, 0) else ():
        note(f"note: {text}")
    join_hosts(command.coordinator, command.hosts, command.host, limit=command.config.devices.host_timeout)
    if command.seeds:
        return train_seeds(command, train, **options)
    resume = None if command.resume is None else str(command.resume)
    # Whether the settings file is trusted was already checked when it was read.
    trust = command.trust and (resume is not None or command.file is None)
    train(command.config, resume=resume, trust=trust, accept_changes=command.accept_changes, **options)
    if command.smoke:
        text = "The smoke test has passed: every phase of this run works on this machine. Ignore the accuracy it reports."
        print(wrap(text, columns_of(sys.stdout)))
    return 0


def check_seeds(command: Train, arguments: Sequence[str]) -> None:
    """Reject flags that cannot be combined with --seeds.

    Raises:
        InputError: a seed is invalid, or a flag cannot be combined with --seeds; the message names the flag.
    """
    if len(set(command.seeds)) < len(command.seeds) or min(command.seeds) < 0:
        raise InputError(
            f"--seeds {' '.join(map(str, command.seeds))}: each seed must be at least 0, and no seed may occur twice."
        )
    if "--seed" in set(flags_in(arguments)):
        raise InputError("--seed and --seeds cannot be used together; leave one of them out.")
    if command.resume not in (None, Path("auto")):
        raise InputError("--resume continues one run; with --seeds, repeat the command with the same --run to continue.")
    if command.coordinator is not None:
        raise InputError("--seeds trains on one host; leave --coordinator out, or start each seed separately.")


def train_seeds(command: Train, train: Callable, **options: object) -> int:
    """Train with each seed that is not finished, and print a table of the results over all seeds.

    Raises:
        InputError: a run failed, or the folder has runs with other settings.
        Interrupted: a signal stopped the training; the state of all runs is saved.
    """
    from datetime import datetime  # noqa: PLC0415

    from rljax.programs.seeds import Arm, run_arm, seeds_text, with_common_date, write_seeds  # noqa: PLC0415  as above
    from rljax.tracking.run_folder import default_run_path  # noqa: PLC0415

    config = command.config
    folder = Path(config.run.folder or default_run_path(config.run.name, datetime.now()))
    if config.run.folder is None:
        note(f"The runs are in {folder}; to continue after an interruption, repeat the command with --run {folder}.")
    arm = Arm(config.run.name, with_common_date(config, folder), folder)
    runs = run_arm(arm, command.seeds, lambda config: train(config, resume="auto", **options), tell=note)
    files = write_seeds(folder, runs)
    print(seeds_text(runs))
    print(f"Results: {files.numbers}")
    if files.picture is not None:
        print(f"Curves: {files.picture}")
    return 0
