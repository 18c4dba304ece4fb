"""Kill the server and the learner of an asynchronous run at random times; its metrics must equal an undisturbed run's.

    python tests/soak/served_training.py --kills 30 --result tests/soak/served_training.json

`rljax serve` samples for `rljax train --engine-url URL --staleness 1`. Every few seconds one of the two processes gets SIGKILL and
is restarted: the server with its initial weights, the learner with `--resume auto`. Every step must be logged exactly once. The
metrics must equal those of the undisturbed run up to rounding: timing decides which prompts the server batches together, and the
batch affects rounding. A rounding difference may change a sampled token, so one row of metrics in a hundred may differ.
"""

import argparse
import json
import math
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from served_model import NAME, make_model
from small_runs import is_time

from rljax.files import atomic_write

ENVIRONMENT = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
REWARD = "def even_length(completions):\n    return [float(len(text) % 2 == 0) for text in completions]\n"
MAX_DIFFERENT = 0.01
"""Largest allowed fraction of rows with different metrics."""
MAX_PAUSE = 20.0
"""Longest time in seconds between two kills."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_server(work: Path, port: int) -> subprocess.Popen:
    command = [sys.executable, "-m", "rljax", "serve", str(work / NAME), "--port", str(port), "--name", NAME]
    sizes = ["--context", "128", "--max-response-tokens", "32", "--rows", "8"]
    with (work / "server.log").open("a") as log:
        return subprocess.Popen([*command, *sizes], stderr=log, stdout=log, env=ENVIRONMENT)


def start_learner(work: Path, name: str, port: int, steps: int) -> subprocess.Popen:
    command = [sys.executable, "-m", "rljax", "train", "--model", str(work / NAME), "--dataset", str(work / "rows.jsonl")]
    command += ["--reward", f"{work / 'reward.py'}:even_length", "--run", str(work / name), "--resume", "auto", "--no-chat"]
    command += ["--engine-url", f"http://127.0.0.1:{port}", "--staleness", "1", "--steps", str(steps), "--quiet"]
    command += ["--algorithm", "grpo", "--prompts", "4", "--group-size", "4", "--max-response-tokens", "24"]
    command += ["--checkpoint-every", "5", "--eval-every", "20", "--models", "none", "--sample-every", "0"]
    command += ["--learning-rate", "1e-6"]  # a larger rate would amplify rounding into different tokens
    with (work / f"{name}.out").open("a") as log:
        return subprocess.Popen(command, stderr=log, stdout=log, env=ENVIRONMENT)


def read_metrics(folder: Path) -> list[dict]:
    """All metrics of a run except its times."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{name: value for name, value in json.loads(line).items() if not is_time(name)} for line in lines]


def are_close(ours: dict, theirs: dict) -> bool:
    """Return whether two rows have the same metrics up to rounding."""
    if ours.keys() != theirs.keys():
        return False
    pairs = [(ours[name], theirs[name]) for name in ours]
    return all(
        math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-4) if isinstance(one, float) else one == other
        for one, other in pairs
    )


def train_undisturbed(work: Path, steps: int) -> list[dict]:
    port = free_port()
    serving = start_server(work, port)
    try:
        assert start_learner(work, "undisturbed", port, steps).wait() == 0
    finally:
        serving.kill()
        serving.wait()
    return read_metrics(work / "undisturbed")


def train_disturbed(work: Path, steps: int, kills: int, seed: int) -> tuple[list[dict], dict[str, int]]:
    """Train to the end while killing the server or the learner this many times; return its metrics and the kills per process."""
    rng, port, counts = random.Random(seed), free_port(), {"server": 0, "learner": 0}
    serving, learning = start_server(work, port), start_learner(work, "killed", port, steps)
    try:
        while True:
            deadline = time.monotonic() + rng.uniform(0.5, MAX_PAUSE)
            while time.monotonic() < deadline and learning.poll() is None:
                time.sleep(0.05)
            if learning.poll() is not None:
                assert learning.returncode == 0, f"exit code {learning.returncode}; see {work / 'killed.out'}"
                return read_metrics(work / "killed"), counts
            if sum(counts.values()) < kills:
                victim = rng.choice(["server", "learner"])
                counts[victim] += 1
                print(f"kill {sum(counts.values())}: {victim}", flush=True)
                process = serving if victim == "server" else learning
                process.kill()
                process.wait()
                if victim == "server":
                    serving = start_server(work, port)
                else:
                    learning = start_learner(work, "killed", port, steps)
    finally:
        for process in (serving, learning):
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--result", type=Path)
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="rljax-soak-"))
    make_model(work / NAME)
    (work / "reward.py").write_text(REWARD)
    lines = [json.dumps({"prompt": f"number {number}", "answer": str(number)}) for number in range(64)]
    (work / "rows.jsonl").write_text("\n".join(lines) + "\n")
    begin = time.monotonic()
    expected = train_undisturbed(work, arguments.steps)
    seconds_alone = time.monotonic() - begin
    found, counts = train_disturbed(work, arguments.steps, arguments.kills, arguments.seed)
    steps = [[(row["phase"], row["step"]) for row in rows] for rows in (found, expected)]
    different = sum(not are_close(*pair) for pair in zip(found, expected, strict=False))
    is_equal = steps[0] == steps[1] and different <= MAX_DIFFERENT * len(expected)
    result = {
        "date": date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "steps": arguments.steps,
        "kills": counts,
        "rows": len(found),
        "each_step_once": steps[0] == steps[1],
        "different_rows": different,
        "seconds_alone": round(seconds_alone, 1),
        "seconds_with_kills": round(time.monotonic() - begin - seconds_alone, 1),
    }
    print(json.dumps(result, indent=1))
    if arguments.result is not None:
        atomic_write(arguments.result, (json.dumps(result, indent=1) + "\n").encode())
    if is_equal:
        shutil.rmtree(work)
    else:
        print(f"the runs are in {work}")
    return 0 if is_equal and sum(counts.values()) >= arguments.kills else 1


if __name__ == "__main__":
    sys.exit(main())
