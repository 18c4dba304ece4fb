"""`rljax train`: train a language model with reinforcement learning."""

import sys
from dataclasses import dataclass
from pathlib import Path

from rljax.cli.columns import columns_of, wrapped
from rljax.cli.hosts import join_hosts
from rljax.cli.loading import loading
from rljax.cli.restarting import run_with_restarts
from rljax.cli.starting import Settings
from rljax.errors import InputError
from rljax.training.config.start import Start
from rljax.training.interrupt import INTERRUPTED


@dataclass(frozen=True)
class Train(Settings):
    """Train a language model with reinforcement learning.

    Without --model, --dataset, --config or --experiment this runs experiments/arithmetic_dapo.py: a small transformer learns
    arithmetic with written-out steps, from random weights. With --model or --dataset the same loop trains your model on your data.
    Every setting below can be changed; the values shown are the ones that this command would use. The settings of a generated
    task are shown and accepted only with that task (`rljax train --task iteration --help-all`).
    """

    resume: Path | None = None
    """Continue the run in this folder with the settings in its config.json. Flags may change settings that no computed number
    depends on, such as --steps; any other is refused. `--resume auto` continues the run in the folder that --run names, and begins
    it if there is none: the same command can be started again after whatever has ended it."""
    accept_changes: bool = False
    """With --resume: continue although the rows, rewards, chat template or tokenizer have changed since the last start, which is
    refused otherwise. starts.jsonl of the run records the change."""
    coordinator: str | None = None
    """Run on several hosts, with the same command on each: ADDRESS:PORT of the first host, or `auto` on TPU pods, under Slurm
    or Open MPI, where JAX finds the hosts itself. All hosts must be able to reach the run folder."""
    hosts: int | None = None
    """Number of hosts, if the coordinator is an address."""
    host: int | None = None
    """Index of this host, counted from 0, if the coordinator is an address."""
    restarts: int = 0
    """Train in a process of its own, and start it again this many times at most if it crashes or is killed; needs --run. It goes on
    from its last checkpoint, as with --resume auto."""


def run_train(command: Train, start: Start, arguments: list[str]) -> int:
    """Train, or resume a run.

    The exit code is 0 if the run is done, 130 if Ctrl-C, SIGTERM, SIGHUP or SIGUSR1 stopped it and everything is saved. The process
    ends with 75 if another host was lost.
    """
    if command.restarts < 0:
        raise InputError(f"restarts is {command.restarts}; it must not be negative.")
    if command.restarts:
        return run_with_restarts(arguments, command.restarts)
    with loading(quiet=command.config.run.quiet):
        from rljax.programs.train import train  # noqa: PLC0415
        from rljax.training.interrupt import Interrupted  # noqa: PLC0415  --help need not wait for JAX

    for note in start.notes if command.host in (None, 0) else ():
        print(f"note: {note}", file=sys.stderr)
    join_hosts(command.coordinator, command.hosts, command.host, limit=command.config.devices.host_timeout)
    try:
        resume = None if command.resume is None else str(command.resume)
        trust = command.trust and (
            resume is not None or command.file is None
        )  # that of a file was asked for when it was read
        train(command.config, resume=resume, trust=trust, accept_changes=command.accept_changes)
    except Interrupted:
        return INTERRUPTED
    if command.smoke:
        text = "The smoke test has passed: every phase of this run works on this machine. Its accuracy means nothing."
        print(wrapped(text, columns_of(sys.stdout)))
    return 0
