"""`rljax ablate`: train an algorithm, and variants that each lack one of its parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rljax.cli.import_spinner import loading
from rljax.cli.restarting import note
from rljax.cli.run_settings import Settings, flags_in, without_flags
from rljax.errors import InputError
from rljax.programs.base_settings import Start
from rljax.training.interrupt import INTERRUPTED, Interrupted

OWN_FLAGS = ("--seeds", "--out")
"""Flags that `rljax train` does not have, or that mean something else there."""
REFUSED_FLAGS = ("--algorithm", "--run", "--resume", "--without", "--smoke")
"""Flags of `rljax train` that `rljax ablate` refuses."""


@dataclass(frozen=True)
class Ablate(Settings):
    """Train an algorithm, and variants that each lack one of its parts, with the same seeds.

    One table and one plot show held-out accuracy and the difference that each part makes, with 95 % intervals over seeds. The
    warm start, if there is one, runs once per seed, and all variants start from it. To continue an ablation that was stopped,
    repeat the same command. All other flags are those of `rljax train`, such as --model, --dataset and --reward.
    """

    algorithm: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ALGORITHM")] = ""
    """Algorithm whose parts are removed one at a time: dapo, vapo or vc_ppo; `rljax algorithms NAME` lists its parts. The name
    comes before all flags."""
    seeds: int = 3
    """Number of seeds per variant, starting at --seed."""
    out: Path | None = None
    """Folder of the runs, the table (ablation.json) and the plot (ablation.png); by default runs/ablation-ALGORITHM."""


def as_train(arguments: Sequence[str]) -> list[str]:
    """Rewrite the arguments for `rljax train`: pass the algorithm's name as a flag, and drop the flags in `OWN_FLAGS`.

    Example:
        >>> as_train(["dapo", "--seeds", "5", "--steps", "8", "--out=runs/a"])
        ['--algorithm', 'dapo', '--steps', '8']
    """
    words = without_flags(arguments, OWN_FLAGS)
    return ["--algorithm", *words] if arguments and not arguments[0].startswith("-") else words


def run_ablate(command: Ablate, start: Start, arguments: list[str]) -> int:
    """Train all variants; print the table, and the paths of the table and the plot."""
    flags = set(flags_in(arguments))
    refused = next((flag for flag in REFUSED_FLAGS if flag in flags), None)
    if refused is not None:
        raise InputError(
            f"{refused} cannot be used with `rljax ablate`, which chooses the variants and their folders itself; leave it out."
        )
    if not command.algorithm or arguments[0] != command.algorithm:
        raise InputError("write the algorithm's name before all flags: `rljax ablate dapo --seeds 5`.")
    if command.seeds < 1:
        raise InputError(f"seeds is {command.seeds}; it must be at least 1.")
    with loading(quiet=command.config.run.quiet):
        import rljax  # noqa: PLC0415  --help need not wait for JAX
        from rljax.cli import parse  # noqa: PLC0415  it imports this module
        from rljax.programs import ablation  # noqa: PLC0415  as above

    words = as_train(arguments)
    arms = {
        command.algorithm: (),
        **{f"without {part}": ("--without", part) for part in ablation.parts_of(command.algorithm)},
    }
    configs = {name: parse(["train", *words, *removed]).config for name, removed in arms.items()}
    folder = command.out or Path("runs") / f"ablation-{command.algorithm}"
    first = command.config.run.seed
    try:
        results = ablation.run_ablation(
            configs,
            range(first, first + command.seeds),
            folder,
            train=lambda config: rljax.train(config, resume="auto"),
            fine_tune=lambda config: rljax.sft(config, resume="auto"),
            tell=note,
        )
    except Interrupted:
        note("The same command continues this ablation.")
        return INTERRUPTED
    table_file, plot_file = ablation.write_ablation(folder, results, title=f"Ablation of {command.algorithm}")
    print(ablation.ablation_text(results))
    print(f"Results: {table_file}\nPlot: {plot_file}")
    return 0
