"""Check that 1,000 tiny steps leak no resources: `python tests/soak/leaks.py --result tests/soak/leaks.json`.

Memory, descriptors, threads and processes are read from `/proc` after every step, so this runs only on Linux. From the
second quarter of the steps to the last, the median numbers of descriptors, threads and processes must not grow, and the
median memory may grow by at most one percent.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from small_runs import SMALL, even_length

import rljax

SAVES_AND_SAMPLES = {"checkpoint_every": 50, "eval_every": 50, "sample_every": 50}
LARGEST_GROWTH = 0.01
KINDS = ("megabytes", "descriptors", "threads", "processes")


def children_of(thread: Path) -> list[str]:
    """Return the processes that a thread has started; none if the thread has ended, because another one inherits them."""
    try:
        return (thread / "children").read_text().split()
    except FileNotFoundError:
        return []


def measure() -> dict[str, float]:
    """Measure the resources that this process uses now."""
    own = Path("/proc/self")
    pages = int((own / "statm").read_text().split()[1])
    threads = list((own / "task").iterdir())
    children = [process for thread in threads for process in children_of(thread)]
    megabytes = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    measurements = (megabytes, len(list((own / "fd").iterdir())), len(threads), len(children))
    return dict(zip(KINDS, measurements, strict=True))


class Meter:
    """A tracker that measures the process after every step."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def log(self, phase: str, step: int, numbers: Mapping[str, Any]) -> None:
        """Measure the process after an RL step."""
        if phase == "rl":
            self.rows.append(measure())

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def quarters(rows: Sequence[Mapping[str, float]], kind: str) -> list[float]:
    """Return the median of one measurement in each quarter of the steps."""
    size = len(rows) // 4
    return [round(statistics.median(row[kind] for row in rows[i * size : (i + 1) * size]), 1) for i in range(4)]


def main() -> int:
    """Run the training, and write the measurements; the exit code is 1 if anything grew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    meter, load, begun = Meter(), os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        config = SMALL.replace(
            run=f"{folder}/run", train_problems=40, heldout_problems=4, steps=options.steps, prompts=2, group_size=4
        )
        rljax.train(config.replace(algorithm="grpo", **SAVES_AND_SAMPLES), even_length, trackers=[meter])
    found = {kind: quarters(meter.rows, kind) for kind in KINDS}
    grown = [
        kind for kind, (_, second, _, last) in found.items() if last > second * (1 + LARGEST_GROWTH * (kind == KINDS[0]))
    ]
    result = {
        "command": f"python tests/soak/leaks.py --steps {options.steps} --result tests/soak/leaks.json",
        "date": str(date.today()),
        "load_before": round(load, 1),
        "seconds": round(time.monotonic() - begun),
        "steps": len(meter.rows),
        "medians_by_quarter": found,
        "grown": grown,
    }
    options.result.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return int(bool(grown))


if __name__ == "__main__":
    sys.exit(main())
