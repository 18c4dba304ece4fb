"""Stop commands at random and run them again; the final files must equal those of commands that were never stopped.

    python tests/soak/commands.py long --stops 150 --minutes 60 --result tests/soak/commands.json
    python tests/soak/commands.py every --result tests/soak/commands.json

`long` stops the commands that save their progress: plain training, training with an environment, training on pairs, tuning, and
adapting. `every` starts each command of `rljax` four times: it kills the first three in their first second, and lets the
fourth finish. Then it starts the command twice more: it kills the first of these at a later moment, and lets the second
finish. If the result file exists, new rows are added to the file, and the seeds in the file are not run again.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from digit_pairs import even_pairs
from served_model import NAME, make_model, post, server_process
from small_runs import SMALL
from smallest import SMALLEST
from soak.run import CHILD, LIMIT, WORK, read_arrays, read_rows

from rljax.cli import COMMANDS
from rljax.errors import InputError
from rljax.training.checkpoints.checkpoint import newest_complete

INPUTS = WORK / "world"
"""Folder of all files that the commands read."""
SIZES = (*SMALLEST, "--replicas", "1", "--quiet")
PAIRS = ("--tokenizer", "characters", "--batch", "4", "--steps", "30", "--max-tokens", "16", "--learning-rate", "1e-2")
SAVING = ("--checkpoint-every", "2", "--eval-every", "5")
REWARD = "def even_length(completions):\n    return [float(len(text) % 2 == 0) for text in completions]\n"
TIMES = re.compile(
    r'"(\w*seconds|tokens_per_second|judge|date|time)": [^,}\n]+|\d+\.\d+ s\b|\(\d+ s\)|in \d+\.\d+ minutes|\d+ ms'
    r"|\d{4}-\d\d-\d\d \d\d:\d\d"
)
SKIPPED = ("log.txt", "starts.jsonl", ".lock", ".tuning.lock", "tuning.png", "curves.png", "wandb.id")
"""Files that are not compared, because they contain times, or plots of data that is compared in other files."""


class Command(NamedTuple):
    """A command that the test stops and runs again."""

    begin: Callable[[Path], list[str]]
    """Function from the output folder to the arguments of the first start."""
    resume: Callable[[Path], list[str]] | None = None
    """Function from the output folder to the arguments of a start after a stop; None if they do not differ."""
    ended: str = "\0"
    """Text of the error, with exit code 2, that a resumed command prints if the stopped command had already finished."""


def training_arguments(folder: Path, *arguments: str) -> list[str]:
    """Return the arguments of a command that trains a tiny run."""
    return [
        "train",
        "--config",
        str(INPUTS / "tiny.json"),
        "--reward",
        f"{INPUTS / 'mine.py'}:even_length",
        "--run",
        str(folder),
        *arguments,
    ]


def pair_training_command(command: str) -> Command:
    """Return a command that trains on pairs, and continues with `--resume`."""

    def begin(folder: Path) -> list[str]:
        return [command, str(INPUTS / "pairs.jsonl"), *SIZES, *PAIRS, *SAVING, "--output", str(folder)]

    def resume(folder: Path) -> list[str]:
        return [command, "--resume", str(folder), "--quiet"] if (folder / "settings.json").exists() else begin(folder)

    return Command(begin, resume, "has no checkpoint: it has ended")


def tuning_arguments(folder: Path) -> list[str]:
    """Return the arguments of a command that compares two learning rates."""
    arguments = training_arguments(folder)[1:-2]
    return ["tune", *arguments, "--try", "learning_rate=1e-3,1e-2", "--steps", "6", "--out", str(folder)]


def adapting_arguments(folder: Path) -> list[str]:
    """Return the arguments of a command that trains on a queue of feedback."""
    arguments = ("--feedback", str(INPUTS / "queue.jsonl"), "--batch", "8", "--heldout", "6", "--max-kl", "None", "--once")
    return ["adapt", str(INPUTS / "run"), *arguments, "--run", str(folder)]


def relocating_arguments(folder: Path) -> list[str]:
    """Return the arguments of a command that changes the reward's path in a copy of a run's settings."""
    shutil.copy(INPUTS / "run" / "config.json", folder / "config.json")
    return ["relocate", str(folder), str(INPUTS / "mine.py"), str(INPUTS / "rows.jsonl")]


SAVING_COMMANDS = {
    "environment": Command(lambda folder: [str(CHILD), "environment", str(folder)]),
    "preference": pair_training_command("preference"),
    "reward-model": pair_training_command("reward-model"),
    "tune": Command(tuning_arguments),
    "adapt": Command(adapting_arguments),
    "train": Command(lambda folder: training_arguments(folder, "--resume", "auto", "--trust")),
}
"""Commands that save their progress."""
RUN, OTHER, CHAT_MODEL = str(INPUTS / "run"), str(INPUTS / "other"), str(INPUTS / NAME)
SFT = ("--dataset", str(INPUTS / "demonstrations.jsonl"), *SIZES, "--steps", "6", "--batch", "4", "--checkpoint-every", "2")
ABLATED = (*SIZES, "--config", str(INPUTS / "tiny.json"), "--reward", "exact", "--seeds", "1", "--steps", "2")
ALL_COMMANDS = {
    "config": lambda out: ["config", "--steps", "3"],
    "eval": lambda out: ["eval", RUN, "--trust"],
    "show": lambda out: ["show", RUN, "--out", str(out / "rollouts.html")],
    "chat": lambda out: ["chat", CHAT_MODEL, "--max-response-tokens", "8"],
    "serve": lambda out: [
        "serve",
        CHAT_MODEL,
        "--port",
        "0",
        "--name",
        NAME,
        "--context",
        "64",
        "--max-response-tokens",
        "16",
    ],
    "sft": lambda out: ["sft", *SFT, "--run", str(out), "--resume", "auto"],
    "pretrain": lambda out: [
        "pretrain",
        str(INPUTS / "rows.jsonl"),
        *SIZES,
        "--steps",
        "6",
        "--run",
        str(out),
        "--resume",
        "auto",
    ],
    "ablate": lambda out: ["ablate", "dapo", *ABLATED, "--out", str(out)],
    "sample": lambda out: ["sample", RUN, "--prompt", "3+4=", "--seed", "1"],
    "search": lambda out: ["search", str(INPUTS / "critic"), "--trust", "--limit", "2"],
    "generate": lambda out: ["generate", RUN, str(out / "rows.jsonl"), "--trust", "--limit", "4"],
    "runs": lambda out: ["runs", str(INPUTS)],
    "doctor": lambda out: ["doctor", RUN, "--out", str(out / "report.html")],
    "compare": lambda out: ["compare", RUN, OTHER],
    "debug": lambda out: ["debug", str(INPUTS / "stopped")],
    "plot": lambda out: ["plot", RUN, "--out", str(out / "plot.png")],
    "explain": lambda out: ["explain", "kl"],
    "export": lambda out: ["export", RUN, str(out / "model")],
    "relocate": relocating_arguments,
    "average": lambda out: ["average", RUN, str(INPUTS / "twin"), str(out / "mean")],
    "plan": lambda out: ["plan", "--config", str(INPUTS / "tiny.json"), "--reward", "exact"],
    "pairs": lambda out: ["pairs", RUN, str(out / "pairs.jsonl"), "--trust", "--prompts", "8"],
    "preprocess": lambda out: ["preprocess", str(INPUTS / "rows.jsonl"), str(out / "clean.jsonl")],
    "algorithms": lambda out: ["algorithms", "grpo"],
    "equations": lambda out: ["equations", "gae"],
    "claims": lambda out: ["claims"],
    "conform": lambda out: ["conform", f"{INPUTS / 'mine.py'}:gae", "--like", "gae"],
    "recommend": lambda out: ["recommend"],
    "errata": lambda out: ["errata"],
    "completion": lambda out: ["completion", "bash"],
    **{name: command.begin for name, command in SAVING_COMMANDS.items() if name != "environment"},
}
"""Command name -> function from the output folder to the arguments, for all commands."""
FOLDER_CREATORS = {*SAVING_COMMANDS, "sft", "pretrain", "ablate"}
"""Commands that create their output folder themselves. Their printed output, which shows progress, is not compared."""


def start_command(arguments: list[str], output: Path) -> subprocess.Popen[str]:
    """Start a command whose output is written to a file."""
    environment = (
        os.environ
        | {
            "JAX_COMPILATION_CACHE_DIR": str(WORK / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PLATFORMS": "cpu",
            "PYTHONHASHSEED": "0",  # Tyro prints sets in the completion script, in an order that depends on the seed.
            "PYTHONPATH": os.pathsep.join(map(str, CHILD.parents[1:3])),
        }
    )
    module = [] if arguments[0] == str(CHILD) else ["-m", "rljax"]
    command = [sys.executable, *module, *arguments]
    with output.open("w") as file, (INPUTS / "typed.txt").open() as typed:
        return subprocess.Popen(command, env=environment, stdin=typed, stdout=file, stderr=subprocess.STDOUT, cwd=INPUTS)


def run_command(arguments: list[str], output: Path) -> int:
    """Run a command to its end, and return its exit code."""
    return start_command(arguments, output).wait(timeout=LIMIT)


def make_inputs() -> None:
    """Create the inputs of the commands: runs, one with a critic, a chat model, data files, and code."""
    if (INPUTS / "ready").exists():
        return
    shutil.rmtree(INPUTS, ignore_errors=True)
    INPUTS.mkdir(parents=True)
    changes = {
        "train_problems": 40,
        "heldout_problems": 6,
        "warm_start_steps": 4,
        "warm_start_batch": 8,
        "warm_start_accuracy": 1.0,
    }
    changes |= {
        "warm_start_eval_every": 2,
        "steps": 12,
        "prompts": 4,
        "group_size": 4,
        "minibatches": 2,
        "microbatch_rows": 4,
    }
    changes |= {"learning_rate": 1e-2, "eval_every": 3, "checkpoint_every": 2, "sample_every": 2, "logged_rollouts": 2}
    tiny = SMALL.replace(algorithm="grpo", algorithm_options={}, **changes)
    (INPUTS / "tiny.json").write_text(json.dumps(tiny.to_json()))
    (INPUTS / "mine.py").write_text(f"{REWARD}\nfrom rljax.ops.gae import gae\n")
    pairs = ({"prompt": p.prompt, "chosen": p.chosen, "rejected": p.rejected} for p in even_pairs(80, 3))
    (INPUTS / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    (INPUTS / "rows.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2=", "answer": "3"}\n')
    rng = random.Random(0)
    lines = ({"id": n, "prompt": "3+4=", "response": str(rng.randint(0, 99)), "reward": rng.random()} for n in range(100))
    (INPUTS / "queue.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    demonstrations = ({"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(40))
    (INPUTS / "demonstrations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in demonstrations))
    (INPUTS / "typed.txt").write_text("hello\n")
    make_model(INPUTS / NAME)
    critic = ("--algorithm", "vapo", "--value-pretraining-steps", "2")
    for name, arguments in (
        ("run", ()),
        ("other", ("--seed", "1")),
        ("twin", ("--learning-rate", "5e-3")),
        ("critic", critic),
    ):
        if run_command(training_arguments(INPUTS / name, *arguments), INPUTS / "output.txt"):
            raise RuntimeError((INPUTS / "output.txt").read_text())
    diverging = training_arguments(INPUTS / "stopped", "--learning-rate", "1e20", "--warm-start-steps", "0")
    if run_command(diverging, INPUTS / "output.txt") != InputError.exit_code:
        raise RuntimeError((INPUTS / "output.txt").read_text())
    (INPUTS / "ready").touch()


def read_outputs(folder: Path) -> dict[str, Any]:
    """Read a command's output folder, without times: rows, arrays of the newest checkpoints, and other files."""
    found: dict[str, Any] = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        parts = file.relative_to(folder).parts
        if "checkpoints" in parts:
            if file.parent.name == "checkpoints" and file.name in (
                "last",
                "best",
            ):  # Checkpoints that were set aside are skipped.
                newest = read_arrays(file / str(newest_complete(file)[0]))
                found |= {f"{name}/{path}": array.tobytes() for path, array in newest.items()}
        elif file.is_file() and file.name not in SKIPPED and "tensorboard" not in parts:
            if file.suffix == ".jsonl":
                found[name] = read_rows(file)
            elif file.suffix == ".safetensors":
                found[name] = file.read_bytes()
            else:
                found[name] = TIMES.sub("", file.read_text(errors="replace")).replace(str(folder), "FOLDER")
    return found


def describe_differences(ours: Path, theirs: Path) -> str:
    """Return the names of the files that differ, or an empty string."""
    one, other = read_outputs(ours), read_outputs(theirs)
    return "; ".join(sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name)))[:1000]


def run_undisturbed(name: str, begin: Callable[[Path], list[str]], kind: str) -> Path:
    """Run a command without stopping it, unless an earlier result exists; return its output folder."""
    folder = WORK / kind / name
    if not (WORK / kind / f"{name}.done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        (folder if kind == "every" and name not in FOLDER_CREATORS else folder.parent).mkdir(parents=True, exist_ok=True)
        output, begun = WORK / kind / f"{name}.txt", time.monotonic()
        if run_command(begin(folder), output):
            raise RuntimeError(f"{name}: {output.read_text()[-3000:]}")
        (WORK / kind / f"{name}.done").write_text(str(time.monotonic() - begun))
    return folder


def find_paths(folder: Path, *patterns: str) -> set[Path]:
    """Return the matching paths in a folder and its runs. The running command may remove these paths at any time."""
    folders = (folder, *folder.glob("runs/*"))
    return {path for parent in folders for pattern in patterns for path in parent.glob(pattern)}


def unfinished_writes(folder: Path) -> set[Path]:
    """Return the folders and files that are being written, or whose write was interrupted."""
    return find_paths(folder, "checkpoints/*/*.orbax-checkpoint-tmp*", ".unfinished-*", "*/.unfinished-*")


def was_writing(folder: Path) -> bool:
    """Return whether a write was interrupted, so that temporary files remain or a checkpoint has no manifest."""
    saves = find_paths(folder, "checkpoints/[lb]*/*")
    return bool(unfinished_writes(folder)) or any(not (path / "sha256.json").exists() for path in saves)


def count_rows(folder: Path) -> int:
    """Count the rows of metrics in a folder."""
    count = 0
    for file in find_paths(folder, "metrics.jsonl"):
        with contextlib.suppress(FileNotFoundError):  # The run starts over and has removed the file.
            count += file.read_bytes().count(b"\n")
    return count


def choose_moment(folder: Path, rng: random.Random) -> tuple[str, Callable[[], bool]]:
    """Choose a random moment; return its kind, and a function that returns whether the moment has come."""
    kind = rng.choices(["in a write", "after a row", "first second"], [0.5, 0.3, 0.2])[0]
    if kind == "in a write":
        skip, seen = rng.randint(0, 3), set()

        def has_begun_write() -> bool:
            seen.update(unfinished_writes(folder))
            return len(seen) > skip

        return kind, has_begun_write
    if kind == "first second":
        end = time.monotonic() + rng.random()
        return kind, lambda: time.monotonic() > end
    wanted = count_rows(folder) + rng.randint(1, 5)
    return kind, lambda: count_rows(folder) >= wanted


def stop_repeatedly(name: str, seed: int, max_stops: int = 8) -> Iterator[dict[str, Any]]:
    """Stop a command several times, compare its files with those of an undisturbed command, and yield a row per stop."""
    rng, folder, command = random.Random(seed), WORK / "stopped" / f"{name}-{seed}", SAVING_COMMANDS[name]
    reference, output = run_undisturbed(name, command.begin, "whole"), WORK / "stopped" / f"{name}-{seed}.txt"
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    stops: list[dict[str, Any]] = []
    while True:
        arguments = (command.resume or command.begin)(folder)
        process = start_command(arguments, output)
        kind, has_come = choose_moment(folder, rng)
        signal_number = 9 if kind == "in a write" else rng.choice([9, 15])
        while process.poll() is None and len(stops) < max_stops and not has_come():
            time.sleep(0.002)
        if process.poll() is None and len(stops) < max_stops:
            process.send_signal(signal_number)
            code = process.wait(timeout=LIMIT)
            inside = signal_number == 9 and kind != "first second" and was_writing(folder)
            stops.append({"command": name, "seed": seed, "signal": signal_number, "moment": kind, "in_write": inside})
            if code in (0, 130, -signal_number):
                continue
        code, text = process.wait(timeout=LIMIT), output.read_text()
        fault = (
            f"exit {code}: {text[-1500:]}"
            if code and command.ended not in text
            else describe_differences(folder, reference)
        )
        yield from ({**stop, "identical": not fault, "fault": fault} for stop in stops)
        if not fault:
            shutil.rmtree(folder)
        return


def kill_after(arguments: list[str], output: Path, seconds: float) -> bool:
    """Start a command and kill it after some time; return whether it had already ended."""
    process = start_command(arguments, output)
    time.sleep(seconds)
    has_ended = process.poll() is not None
    process.kill()
    process.wait()
    return has_ended


def ask_server(arguments: list[str]) -> str:
    """Start a server, ask for the most likely continuation of a prompt, and stop the server."""
    with server_process(Path(arguments[1]), *arguments[arguments.index("--context") :]) as (_, url):
        return post(url, "/v1/completions", prompt="hello", max_tokens=8, temperature=0).json()["choices"][0]["text"]


def kill_repeatedly(name: str, seed: int) -> Iterator[dict[str, Any]]:
    """Kill a command three times in its first second, and once later; compare the files and output of the final start."""
    begin, rng, folder = ALL_COMMANDS[name], random.Random(f"{name}-{seed}"), WORK / "killed" / name
    output, resume = WORK / "killed" / f"{name}.txt", SAVING_COMMANDS[name].resume if name in SAVING_COMMANDS else None
    is_server = name == "serve"
    reply = ask_server(begin(folder)) if is_server else ""
    reference = folder if is_server else run_undisturbed(name, begin, "every")
    duration = 8.0 if is_server else float((WORK / "every" / f"{name}.done").read_text())
    early = [(index + rng.random()) / 3 for index in range(3)]
    for kind, moments in (("first second", early), ("later", [rng.uniform(min(1.0, 0.5 * duration), duration)])):
        shutil.rmtree(folder, ignore_errors=True)
        (folder.parent if name in FOLDER_CREATORS else folder).mkdir(parents=True, exist_ok=True)
        ended = [kill_after((resume or begin)(folder), output, seconds) for seconds in moments]
        row = {"command": name, "seed": seed, "moment": kind, "seconds": [round(each, 3) for each in moments]}
        if is_server:
            found = ask_server(begin(folder))
            fault = "" if found == reply else f"replies {found!r} instead of {reply!r}"
        else:
            code, text = run_command((resume or begin)(folder), output), output.read_text()
            if (
                code and name in SAVING_COMMANDS and SAVING_COMMANDS[name].ended in text
            ):  # The killed process had already finished its work.
                code = 0
            outputs = ((output, folder), (WORK / "every" / f"{name}.txt", reference))
            ours, theirs = (TIMES.sub("", path.read_text().replace(str(parent), "OUT")) for path, parent in outputs)
            difference = "" if name in FOLDER_CREATORS or ours == theirs else f"prints: {text[:600]}"
            fault = f"exit {code}: {text[-1500:]}" if code else describe_differences(folder, reference) or difference
        yield row | {"ended": ended, "identical": not fault, "fault": fault}


def summarize(result: dict[str, Any]) -> dict[str, Any]:
    """Count the stops and kills, and how many of them led to identical files."""
    long, every = result.get("long", []), result.get("every", [])
    counts = {
        "stops": len(long),
        "identical": sum(row["identical"] for row in long),
        "in_a_write": sum(row["in_write"] for row in long),
        "in_the_first_second": sum(row["moment"] == "first second" for row in long),
        "by_command": {name: sum(row["command"] == name for row in long) for name in SAVING_COMMANDS},
        "every_command": len({row["command"] for row in every}),
        "kills_of_every_command": sum(len(row["seconds"]) for row in every),
        "kills_of_every_command_identical": sum(len(row["seconds"]) for row in every if row["identical"]),
    }
    return {"date": str(date.today()), "command": result.get("command", []), "summary": counts}


def main() -> int:
    """Run one part of the test; the exit code is 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["long", "every"])
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--stops", type=int, default=150)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    result = json.loads(options.result.read_text()) if options.result.exists() else {}
    typed = shlex.join(["python", "tests/soak/commands.py", *sys.argv[1:]])
    result["command"] = [*dict.fromkeys([*result.get("command", []), typed])]
    table, end = result.setdefault(options.part, []), time.monotonic() + 60 * options.minutes
    if missing := COMMANDS.keys() ^ (ALL_COMMANDS.keys()):
        raise SystemExit(f"{', '.join(sorted(missing))}: in only one of rljax.cli.COMMANDS and ALL_COMMANDS.")
    names = options.only or list(SAVING_COMMANDS if options.part == "long" else ALL_COMMANDS)
    make_inputs()
    done = {(row["command"], row["seed"]) for row in table}
    tasks = [(name, seed) for seed in range(1000 if options.part == "long" else 1) for name in names]
    for name, seed in tasks:
        if (options.part == "long" and len(table) >= options.stops) or time.monotonic() > end:
            break
        if (name, seed) in done:
            continue
        new = list((stop_repeatedly if options.part == "long" else kill_repeatedly)(name, seed))
        table.extend(new)
        print(json.dumps(new), flush=True)
        ordered = summarize(result) | {part: result[part] for part in ("long", "every") if part in result}
        options.result.write_text(json.dumps(ordered, indent=1) + "\n")
    return int(any(row["fault"] for row in table))


if __name__ == "__main__":
    sys.exit(main())
