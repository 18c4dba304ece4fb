"""`rljax search`: answer problems by a search over reasoning steps, and compare it with best-of-N and voting at the same cost."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from rljax.programs.answer_settings import SearchSettings
from rljax.text import counted


@dataclass(frozen=True)
class SearchCommand(SearchSettings):
    """Search over reasoning steps with a run's critic, and compare with best-of-N and voting at the same number of tokens.

    Beam search, the default, samples N candidates for each reasoning step, and keeps the prefixes with the highest values. --method
    tree samples N steps in total, one at a time, where mean value and uncertainty are high (UCT). --method revision samples N
    versions of an answer, each resampled from the step at which the value falls most. The table shows the accuracy of the search
    and the number of tokens that it used. The baselines use as many independent responses as cost no more tokens than the search,
    at least one and at most the largest of --samples: the table also shows the accuracy of the response with the highest value,
    the accuracy of the most frequent answer, and the probability that at least one response is right.
    """

    target: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Folder of a run with a critic. With --value model:FOLDER: any run folder, Hugging Face folder or hub id."""
    out: Path | None = None
    """JSON file to write the results to; it must not exist yet."""


def run_search(command: SearchCommand) -> int:
    """Search, and print the table."""
    from rich.console import Console  # noqa: PLC0415  --help need not wait for JAX

    from rljax.data.prepared_folder import progress_bar  # noqa: PLC0415
    from rljax.files import atomic_write  # noqa: PLC0415
    from rljax.programs.search import search  # noqa: PLC0415
    from rljax.settings.checks import check_new_file  # noqa: PLC0415

    if command.out is not None:
        check_new_file(command.out)
    report = search(command.target, command, watch=partial(progress_bar, what="answering"))
    print(f"accuracy of one response {report.single.text()} on {counted(report.problems, 'problem')}")
    Console().print(report.table())
    for line in report.lines():
        print(line)
    if command.demonstrations is not None:
        print(f"Rows written to {command.demonstrations}")
    if command.out is not None:
        atomic_write(command.out, json.dumps(report.to_json(), indent=2).encode() + b"\n")
        print(f"Results: {command.out}")
    return 0
