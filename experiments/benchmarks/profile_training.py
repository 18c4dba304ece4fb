"""Profile of a training step: time by kind of operation in the compiled update, and the update's speed.

    python experiments/benchmarks/profile_training.py

The update is the one that the case "training step" in `run.py` times: 64 responses of 128 tokens, with the float32
model from `workloads.py`. The JAX profiler records three updates; the kind of an operation follows from the name that
XLA gave it. Operations run in parallel on several threads, so the table shows shares of the threads' time.

Writes profile_training.md next to this file.
"""

import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import jax
import tyro
import workloads as work
from report import describe_machine, format_seconds
from run import SHAPE, write_random_model
from sides.rljax_cases import make_update
from virtual_environments import own_versions

from rljax.programs.roofline import update_flops

HERE = Path(__file__).resolve().parent
KINDS = {
    "matrix products": r"(ynn|onednn|dot)",
    "copies and transposes": r"(copy|transpose|concatenate|slice|pad|dynamic-update-slice|bitcast_dynamic)",
    "reductions": r"(reduce|.*_reduce)",
    "elementwise and other operations": r"",
}
"""Kind of operation -> pattern that matches the start of an instruction's name; the first match counts, and "" matches the rest."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of the measurement."""

    updates: int = 3
    """Number of updates to record, after those that are only timed."""
    out: Path = HERE / "profile_training.md"
    """File to write the table to."""


def kind_of(instruction: str) -> str:
    """Return the kind of an instruction."""
    return next(kind for kind, pattern in KINDS.items() if re.match(pattern, instruction))


def thread_times(folder: Path) -> Counter[str]:
    """Sum the nanoseconds of all threads in a profiler recording, by kind of operation."""
    (file,) = folder.rglob("*.xplane.pb")
    times: Counter[str] = Counter()
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        for line in plane.lines:
            for event in line.events:
                instruction = dict(event.stats).get("hlo_op")
                if instruction is not None and event.name == instruction:
                    times[kind_of(str(instruction))] += round(event.duration_ns)
    return times


def median_seconds(run: Callable[[], object], count: int) -> float:
    """Return the median duration of a call in seconds, after a warm-up call that compiles."""
    times = []
    for _ in range(count + 1):
        begun = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - begun)
    return statistics.median(times[1:])


def main(arguments: Arguments) -> None:
    """Record the updates, and write the table."""
    rows = work.PROMPTS * work.GROUP
    with tempfile.TemporaryDirectory() as scratch:
        write_random_model(Path(scratch), SHAPE)
        update = make_update(Path(scratch))
        step = median_seconds(update, 1 + arguments.updates)
        with jax.profiler.trace(scratch + "/recording"):
            for _ in range(arguments.updates):
                update()
        times = thread_times(Path(scratch) / "recording")
    length = work.PROMPT_TOKENS + work.TRAINED
    flops = update_flops(SHAPE, rows * length, length, scored=rows * work.TRAINED)
    total = sum(times.values())
    versions, machine = own_versions(), describe_machine()
    table = [f"| {kind} | {count / total:.1%} |" for kind, count in times.most_common()]
    text = [
        f"`python experiments/benchmarks/profile_training.py` ({date.today()}, {machine['cores']} x {machine['processor']}, "
        f"Python {versions['Python']}, JAX {versions['jax']}, rljax {versions['rljax']})",
        "",
        f"An update on {rows} responses of {work.TRAINED} tokens takes {format_seconds(step)}, {flops / step / 1e9:.0f} GFLOP/s of "
        "matrix products.",
        "",
        "| operations | share of the threads' time |",
        "| --- | --- |",
        *table,
    ]
    arguments.out.write_text("\n".join([*text, ""]), encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
