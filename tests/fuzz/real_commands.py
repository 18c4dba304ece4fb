"""Run thousands of command lines with valid flag names in one process, without mocks.

    python tests/fuzz/real_commands.py --count 10000 --seed 0 --result tests/fuzz/real_commands.json

Each command does its real work: settings are printed; runs are compared, plotted and reported; rows are checked; models are
exported and sampled from; and small runs are trained. The result file counts the exit codes of each command and
lists every fault. It is written every 25 commands, and the same command resumes where an earlier one was stopped.
"""

import argparse
import json
import os
import random
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.harness import describe_result, run_command
from small_runs import SMALL
from smallest import SMALLEST

import rljax
from rljax.algorithms import BY_NAME
from rljax.tracking.glossary import GLOSSARY

TIME_LIMIT = 120.0
"""Longest time that one command may take, in seconds, on a machine that also does other work."""
WORDS = (
    "gae",
    "clip",
    "entropy",
    "kl",
    "advantage",
    "reward",
    "group",
    "2402.03300",
    "ratio",
    "baseline",
    "é",
    "",
    "x" * 300,
)
SETTINGS: dict[str, tuple[str, ...]] = {
    "algorithm": ("grpo", "dapo", "rloo", "gspo", "ppo", "vapo", "nope"),
    "learning-rate": ("1e-3", "1e-6", "0", "nan", "-1"),
    "prompts": ("1", "2", "8", "0"),
    "group-size": ("1", "2", "4", "-2"),
    "steps": ("0", "1", "7"),
    "minibatches": ("1", "2", "3"),
    "max-response-tokens": ("1", "12", "99"),
    "temperature": ("1", "0.7", "0", "inf"),
    "top-p": ("1", "0.9", "0"),
    "layers": ("1", "2", "0"),
    "dtype": ("float32", "bfloat16", "int8"),
    "remat": ("none", "full", "half"),
    "reward": ("exact", "math", "exact,math", "nope"),
    "seed": ("0", "7", "-1"),
    "lora-rank": ("2", "0"),
    "schedule": ("constant", "cosine", "linear"),
}
SIZES = (*SMALLEST, "--replicas", "1", "--quiet")
TRAIN_FLAGS = ("--train-problems", "8", "--heldout-problems", "2", "--warm-start-steps", "1", "--max-response-tokens", "12")


def sample_settings(rng: random.Random, max_count: int = 4) -> list[str]:
    """Sample up to `max_count` settings; most get a valid value."""
    words = []
    for name in rng.sample(sorted(SETTINGS), rng.randint(0, max_count)):
        values = SETTINGS[name]
        words += [f"--{name}", values[0] if rng.random() < 0.8 else rng.choice(values)]
    return words


def write_rows(rng: random.Random, directory: Path) -> str:
    """Write a dataset, in which one row may be invalid."""
    rows: list[Any] = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(rng.randint(1, 9))]
    if rng.random() < 0.3:
        rows.insert(rng.randint(0, len(rows)), rng.choice([{"prompt": 1}, {}, {"prompt": "é", "answer": None}, []]))
    file = directory / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def make_commands(runs_folder: Path) -> dict[str, tuple[int, Callable[[random.Random, Path], list[str]]]]:
    """Return, for each command, its sampling weight and the function that generates its arguments."""
    runs = [str(runs_folder / "run"), str(runs_folder / "other")]

    def sample_run(rng: random.Random) -> str:
        return rng.choice([*runs, *runs, *runs, str(runs_folder / "nowhere")])

    def sample_words(rng: random.Random, names: tuple[str, ...]) -> list[str]:
        return rng.sample(names, rng.randint(0, 2))

    def sample_number(rng: random.Random) -> str:
        return str(rng.choice([1, 2, 3, 0, -1]))

    algorithms, metrics = tuple(BY_NAME), tuple(entry.name for entry in GLOSSARY)
    return {
        "config": (
            30,
            lambda rng, folder: ["config", *sample_settings(rng), *(["--json"] if rng.random() < 0.5 else ["--changed"])],
        ),
        "explain": (10, lambda rng, folder: ["explain", *sample_words(rng, (*metrics, "nope"))]),
        "equations": (
            10,
            lambda rng, folder: ["equations", *sample_words(rng, WORDS), *(["--json"] if rng.random() < 0.3 else [])],
        ),
        "algorithms": (10, lambda rng, folder: ["algorithms", *sample_words(rng, (*algorithms, "nope"))]),
        "errata": (3, lambda rng, folder: ["errata", *(["--json"] if rng.random() < 0.5 else [])]),
        "recommend": (
            10,
            lambda rng, folder: [
                "recommend",
                "--group",
                sample_number(rng),
                "--updates",
                sample_number(rng),
                *(["--critic"] if rng.random() < 0.5 else []),
            ],
        ),
        "runs": (
            6,
            lambda rng, folder: ["runs", rng.choice([str(runs_folder), str(folder), str(runs_folder / "nowhere")])],
        ),
        "compare": (6, lambda rng, folder: ["compare", sample_run(rng), sample_run(rng)]),
        "doctor": (4, lambda rng, folder: ["doctor", sample_run(rng), "--out", str(folder / "report.html")]),
        "plot": (
            1,
            lambda rng, folder: [
                "plot",
                sample_run(rng),
                "--out",
                str(folder / rng.choice(["plot.svg", "plot.png", "plot.nope"])),
            ],
        ),
        "preprocess": (
            12,
            lambda rng, folder: [
                "preprocess",
                write_rows(rng, folder),
                str(folder / "clean.jsonl"),
                "--on-error",
                rng.choice(["fatal", "drop"]),
            ],
        ),
        "export": (
            2,
            lambda rng, folder: [
                "export",
                sample_run(rng),
                str(folder / "model"),
                *(["--dtype", "bfloat16"] if rng.random() < 0.3 else []),
            ],
        ),
        "average": (1, lambda rng, folder: ["average", sample_run(rng), sample_run(rng), str(folder / "mean")]),
        "sample": (
            2,
            lambda rng, folder: [
                "sample",
                sample_run(rng),
                "--prompt",
                rng.choice(["3+4=", "", "é"]),
                "--count",
                sample_number(rng),
            ],
        ),
        "eval": (1, lambda rng, folder: ["eval", sample_run(rng), "--limit", sample_number(rng)]),
        "train": (
            1,
            lambda rng, folder: [
                "train",
                *SIZES,
                *TRAIN_FLAGS,
                "--run",
                str(folder / "run"),
                "--steps",
                "1",
                *sample_settings(rng, 2),
            ],
        ),
    }


def train_runs(folder: Path) -> None:
    """Train two runs for one step each."""
    for seed, name in enumerate(("run", "other")):
        sizes = {
            "train_problems": 8,
            "heldout_problems": 2,
            "steps": 1,
            "prompts": 2,
            "group_size": 2,
            "warm_start_steps": 1,
        }
        config = SMALL.replace(run=str(folder / name), seed=seed, algorithm="grpo", algorithm_options={}, **sizes)
        rljax.train(config.replace(reward="exact"))


def write_result(
    file: Path, exit_codes: dict[str, dict[str, int]], faults: list[str], command: str, longest: float
) -> None:
    """Write the counts and the faults to the result file."""
    worked = sum(counts.get("exit 0", 0) for counts in exit_codes.values())
    total = sum(sum(counts.values()) for counts in exit_codes.values())
    summary = {
        "date": str(date.today()),
        "command": command,
        "command_lines": total,
        "worked": worked,
        "share": round(worked / max(total, 1), 3),
        "longest_seconds": round(longest, 2),
    }
    file.write_text(json.dumps(summary | {"commands": exit_codes, "faults": faults}, indent=1) + "\n")


def main() -> int:
    """Run the command lines, and return the exit code: 1 if there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--result", type=lambda name: Path(name).resolve(), required=True)
    options = parser.parse_args()
    earlier = json.loads(options.result.read_text()) if options.result.exists() else {}
    exit_codes, faults = earlier.get("commands", {}), earlier.get("faults", [])
    longest, command_line = (
        earlier.get("longest_seconds", 0.0),
        shlex.join(["python", "tests/fuzz/real_commands.py", *sys.argv[1:]]),
    )
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "case"
        train_runs(Path(folder))
        commands = make_commands(Path(folder))
        weights = [weight for weight, _ in commands.values()]
        for index in range(earlier.get("command_lines", 0), options.count):
            rng = random.Random(f"{options.seed}-{index}")
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            os.chdir(directory)
            name = rng.choices(list(commands), weights)[0]
            result = run_command(commands[name][1](rng, directory), limit=TIME_LIMIT)
            os.chdir(folder)
            counts = exit_codes.setdefault(name, {})
            counts[f"exit {result.code}"] = counts.get(f"exit {result.code}", 0) + 1
            longest = max(longest, result.seconds)
            if result.fault:
                faults.append(describe_result(result))
                print(describe_result(result), flush=True)
            if index % 25 == 0 or index + 1 == options.count:
                write_result(options.result, exit_codes, faults, command_line, longest)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
