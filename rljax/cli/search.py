"""`rljax search`: answer problems by a search over reasoning steps, beside best-of-N and voting at the same cost."""

import json
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Literal

import tyro

from rljax.records import documented


@documented
@dataclass(frozen=True)
class SearchSteps:
    """Search over reasoning steps with the critic of a run, and compare with best-of-N and voting at the same number of tokens.

    At each step of reasoning N steps are drawn for a problem, and the prefixes with the highest values go on. The table has the
    accuracy of the search and its tokens, and, for as many independent responses as cost no more tokens (one at least, the largest
    of --samples at most), the accuracy of the one with the highest value, of the most frequent answer, and the probability that
    any is right.
    """

    target: tyro.conf.Positional[str]
    """Folder of a run with a critic; with --value model:FOLDER any run, Hugging Face folder or hub id."""
    value: str = "critic"
    """Model that gives steps and responses a value: critic (of the run), or model:FOLDER (a reward model)."""
    samples: tuple[int, ...] = (4, 16)
    """Numbers N of steps drawn at a time for a problem; one search for each."""
    expand: int = 4
    """Continuations of a prefix that goes on: N divided by this go on, at least 1."""
    step_ends: tuple[str, ...] | None = None
    """Texts that end a step; by default those of the task's step reward, else the end of a line."""
    dataset: str | None = None
    """Problems to answer (file or hub id); by default the run's held-out ones."""
    reward: str | None = None
    """Reward that judges the answers; by default the run's."""
    checkpoint: Literal["best", "last"] = "best"
    """Checkpoint of the run."""
    limit: int | None = None
    """Answer only this many problems, the first ones."""
    max_response_tokens: int | None = None
    """Maximum number of tokens of a response; by default the run's."""
    temperature: float = 1.0
    """Sampling temperature."""
    top_k: int | None = None
    """Draw from the k likeliest tokens only."""
    top_p: float | None = None
    """Draw from the smallest set of tokens with this share of probability."""
    batch: int = 256
    """Maximum number of steps or responses that are drawn at once."""
    seed: int = 0
    """Seed of the draws."""
    out: Path | None = None
    """File for the numbers as JSON; it must not exist yet."""


def run_search(command: SearchSteps) -> int:
    """Search, and print the table."""
    from rich.console import Console  # noqa: PLC0415  --help need not wait for JAX

    from rljax.data.prepared_folder import progress_bar  # noqa: PLC0415
    from rljax.files import atomic_write  # noqa: PLC0415
    from rljax.settings.checks import check_new_file  # noqa: PLC0415
    from rljax.training.inference.search import search  # noqa: PLC0415

    settings = {entry.name: getattr(command, entry.name) for entry in fields(command)}
    target, out = settings.pop("target"), settings.pop("out")
    if out is not None:
        check_new_file(out)
    report = search(target, **settings, watch=partial(progress_bar, what="answering"))
    print(f"accuracy of one response {report.single.text()} on {report.problems} problems")
    Console().print(report.table())
    for line in report.lines():
        print(line)
    if out is not None:
        atomic_write(out, json.dumps(report.to_json(), indent=2).encode() + b"\n")
        print(f"Numbers: {out}")
    return 0
