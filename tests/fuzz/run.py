"""Run thousands of commands with bad input in one process.

    python tests/fuzz/run.py --count 500 --seed 0 --result tests/fuzz/result.json

Each kind of input gets the same number of commands. The result file counts the exit codes of each kind and lists every fault.
A run with another seed adds its results to the same file.
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
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the folder of small_runs and run_states

from fuzz.cases import KINDS
from fuzz.harness import CommandResult, ValidInput, describe_result, make_valid_input, run_command, stop_before_computing
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st


def run_commands(kind: str, good: ValidInput, count: int, seed_number: int) -> list[CommandResult]:
    """Run `count` commands of a kind, generated from `seed_number`, and return their results."""
    results: list[CommandResult] = []
    directory = good.folder / "case"

    @seed(seed_number)
    @settings(
        max_examples=count, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(st.data())
    def collect(data: st.DataObject) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        before = Path.cwd()
        results.append(run_command(data.draw(KINDS[kind](good, directory))))
        os.chdir(before)
        if results[-1].fault:
            print(describe_result(results[-1]), flush=True)

    with stop_before_computing(good):
        collect()
    return results


def summarize(results: list[CommandResult]) -> dict[str, Any]:
    """Summarize the results of a kind: exit codes, longest time and faults."""
    codes = collections.Counter(
        "came to its first step" if entry.code is None else f"exit {entry.code}" for entry in results
    )
    faults = [describe_result(entry) for entry in results if entry.fault]
    return {
        "commands": len(results),
        **codes,
        "longest_seconds": round(max(entry.seconds for entry in results), 2),
        "faults": faults,
    }


def main() -> int:
    """Run all kinds of commands, and return the exit code: 1 if there was a fault."""
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
            result[kind] = summarize(run_commands(kind, good, options.count // len(options.kinds), options.seed))
            print(kind, {name: value for name, value in result[kind].items() if name != "faults"}, flush=True)
    faults = sum(len(entry["faults"]) for entry in result.values())
    if options.result is not None:
        add_results(options.result, options.seed, options.count, result, round(time.monotonic() - begun))
    return int(faults > 0)


def add_results(file: Path, seed_number: int, count: int, result: dict[str, dict[str, Any]], seconds: int) -> None:
    """Add the results of a seed to the result file."""
    seeds = json.loads(file.read_text())["seeds"] if file.exists() else {}
    command = f"python tests/fuzz/run.py --count {count} --seed {seed_number} --result tests/fuzz/result.json"
    seeds[str(seed_number)] = {"command": command, "date": str(date.today()), "seconds": seconds, "kinds": result}
    all_kinds = [kind for entry in seeds.values() for kind in entry["kinds"].values()]
    totals = {
        "commands": sum(entry["commands"] for entry in all_kinds),
        "faults": sum(len(entry["faults"]) for entry in all_kinds),
        "longest_seconds": max(entry["longest_seconds"] for entry in all_kinds),
    }
    file.write_text(json.dumps(totals | {"seeds": seeds}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
