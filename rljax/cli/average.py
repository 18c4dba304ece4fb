"""`rljax average`: average the models of several runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from rljax.errors import InputError


@dataclass(frozen=True)
class Average:
    """Average the models of runs that started from the same weights, each trained on its own data (federated averaging).

    The result is a model folder that `rljax eval`, `rljax train --model` and AutoModelForCausalLM can open.
    """

    folders: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN RUN [RUN ...] FOLDER")]
    """Folders of two or more runs (or of their checkpoints, RUN/checkpoints/last), then a folder to write, which must not exist."""
    weights: tuple[float, ...] | None = None
    """Weight of each run, such as the number of problems that it was trained on; by default 1 for each."""
    checkpoint: Literal["best", "last"] = "best"
    """Which checkpoint of each run to use."""


def run_average(command: Average) -> int:
    """Write the average.

    Raises:
        InputError: no folder was passed, or the runs cannot be averaged.
    """
    from rljax.programs.averaging import average  # noqa: PLC0415  --help need not wait for JAX

    if not command.folders:
        raise InputError("give the folders of two or more runs, then the folder to write.")
    *runs, folder = command.folders
    print(f"Model: {average(runs, folder, weights=command.weights, which=command.checkpoint)}")
    return 0
