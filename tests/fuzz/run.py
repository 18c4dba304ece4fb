"""Run thousands of commands with bad input in one process.

    python tests/fuzz/run.py --count 500 --seed 0 --result tests/fuzz/result.json

Each kind of input gets the same number of commands. The result counts the exit codes of each kind and lists every fault;
another seed adds to it.
"""

import argparse
import collections
import json
import os
import shutil
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # of small_runs and reopened

from fuzz.cases import KINDS
from fuzz.harness import CommandResult, ValidInput, describe_result, make_valid_input, run_command, stop_before_computing
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st


def run_commands(kind: str, good: ValidInput, count: int, number: int) -> list[CommandResult]:
    """Run this many commands of a kind, and return their results."""
    found: list[CommandResult] = []
    place = good.folder / "case"

    @seed(number)
    @settings(
        max_examples=count, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(st.data())
    def collect(data: st.DataObject) -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        before = Path.cwd()
        found.append(run_command(data.draw(KINDS[kind](good, place))))
        os.chdir(before)
        if found[-1].fault:
            print(describe_result(found[-1]), flush=True)

    with stop_before_computing(good):
        collect()
    return found


def summary(found: list[CommandResult]) -> dict[str, Any]:
    """Counts of the results of a kind."""
    codes = collections.Counter("came to its first step" if row.code is None else f"exit {row.code}" for row in found)
    faults = [describe_result(row) for row in found if row.fault]
    return {
        "commands": len(found),
        **codes,
        "longest_seconds": round(max(row.seconds for row in found), 2),
        "faults": faults,
    }


def main() -> int:
    """Run all kinds; the exit code is 1 if there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--result", type=lambda name: Path(name).resolve())
    options = parser.parse_args()
    begun, result = time.monotonic(), {}
    with tempfile.TemporaryDirectory() as folder:
        good = make_valid_input(Path(folder) / "good")
        os.chdir(folder)
        for kind in options.kinds:
            result[kind] = summary(run_commands(kind, good, options.count // len(options.kinds), options.seed))
            print(kind, {name: value for name, value in result[kind].items() if name != "faults"}, flush=True)
    faults = sum(len(row["faults"]) for row in result.values())
    if options.result is not None:
        write(options.result, options.seed, options.count, result, round(time.monotonic() - begun))
    return int(faults > 0)


def write(file: Path, number: int, count: int, result: dict[str, dict[str, Any]], seconds: int) -> None:
    """Add the results of a seed to a file."""
    seeds = json.loads(file.read_text())["seeds"] if file.exists() else {}
    command = f"python tests/fuzz/run.py --count {count} --seed {number} --result tests/fuzz/result.json"
    seeds[str(number)] = {"command": command, "date": str(date.today()), "seconds": seconds, "kinds": result}
    every = [kind for row in seeds.values() for kind in row["kinds"].values()]
    about = {
        "commands": sum(row["commands"] for row in every),
        "faults": sum(len(row["faults"]) for row in every),
        "longest_seconds": max(row["longest_seconds"] for row in every),
    }
    file.write_text(json.dumps(about | {"seeds": seeds}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
