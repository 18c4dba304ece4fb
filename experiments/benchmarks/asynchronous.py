"""Time of a step whose responses come from a server, if sampling precedes learning and if the two overlap (`--staleness 1`).

    python experiments/benchmarks/asynchronous.py --rounds 3 --result experiments/benchmarks/asynchronous.json

The server has one core and the learner the other, as if each had its own accelerator; each simulates two devices. The two
kinds of runs alternate. A step with perfect overlap takes as long as the longer of its two halves, sampling and learning;
without overlap it takes as long as their sum. The benchmark needs Linux, because cores are assigned with `taskset`.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from datetime import date
from pathlib import Path

from rljax.files import atomic_write
from rljax.tracking.rows import read_metrics

STEPS, WARM = 12, 3
"""RL steps per run, and the number of initial steps left out because they include compilation."""
MODEL = ("--layers", "4", "--width", "192", "--heads", "4", "--kv-heads", "2", "--hidden", "512")
SIZES = ("--prompts", "16", "--group-size", "8", "--max-response-tokens", "64", "--replicas", "1", "--fsdp", "2")
QUIET = ("--eval-every", "0", "--sample-every", "0", "--heldout-problems", "8", "--models", "none", "--quiet")
ENVIRONMENT = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}


def build_command(core: int, *words: str) -> list[str]:
    """Build a command line that runs rljax on one core."""
    return ["taskset", "--cpu-list", str(core), sys.executable, "-m", "rljax", *words]


def make_model(folder: Path) -> Path:
    """Write a small model with random weights, and return its folder."""
    words = ("train", "--run", str(folder), "--steps", "0", "--warm-start-steps", "1", *MODEL, "--quiet")
    subprocess.run(build_command(0, *words), check=True, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    return folder / "last"


@contextmanager
def serve(model: Path):
    """Serve the model on the first core, and yield the address."""
    words = ("serve", str(model), "--port", "0", "--rows", "32", "--context", "128", "--max-response-tokens", "64")
    process = subprocess.Popen(build_command(0, *words), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr or ():
            if found := re.search(r"on (http://\S+)", line):
                yield found[1]
                return
        raise RuntimeError("`rljax serve` ended before it printed its address; run the command by hand to see why")
    finally:
        process.kill()
        process.wait()


def measure(model: Path, folder: Path, url: str, *flags: str) -> dict[str, float]:
    """Train on the second core; return the median seconds of a step and of its halves, sampling and learning."""
    words = ("train", "--run", str(folder), "--model", str(model), "--task", "sums", "--algorithm", "grpo")
    words += ("--warm-start-steps", "0", "--steps", str(STEPS), "--engine-url", url, *SIZES, *QUIET, *flags)
    subprocess.run(build_command(1, *words), check=True, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if row["phase"] == "rl"][WARM:-1]
    halves = {
        "step": ("seconds",),
        "sample": ("sample_seconds", "judge_seconds"),
        "learn": ("score_seconds", "update_seconds"),
    }
    return {
        name: round(statistics.median(sum(row[part] for part in parts) for row in rows), 3)
        for name, parts in halves.items()
    }


def main() -> None:
    """Train several times, alternating between both kinds of runs, and write the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--result", type=Path)
    arguments = parser.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory(prefix="rljax") as home:
        model = make_model(Path(home) / "model")
        for number in range(arguments.rounds):
            kinds = {"in_turns": ("--sampler-delay", "1"), "overlapping": ("--staleness", "1")}
            found = {}
            for kind, flags in kinds.items():
                with serve(model) as url:
                    found[kind] = measure(model, Path(home) / f"{kind}-{number}", url, *flags)
            turns, overlapping = found["in_turns"], found["overlapping"]
            found["ratio"] = round(overlapping["step"] / turns["step"], 3)
            found["best_possible"] = round(max(turns["sample"], turns["learn"]) / turns["step"], 3)
            print(json.dumps(found), flush=True)
            rounds.append(found)
    result = {
        "date": date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "load": round(os.getloadavg()[1], 1),
        "ratio": [min(row["ratio"] for row in rounds), max(row["ratio"] for row in rounds)],
        "rounds": rounds,
    }
    print(json.dumps({name: value for name, value in result.items() if name != "rounds"}))
    if arguments.result is not None:
        atomic_write(arguments.result, (json.dumps(result, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
