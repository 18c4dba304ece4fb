"""Stop tiny runs at random, damage their checkpoints, or fill their disk; the final results must be bitwise equal.

    python tests/soak/run.py kills --seed 1 --minutes 2 --result tests/soak/result.json
    python tests/soak/run.py damage --seed 1 --count 30 --result tests/soak/result.json
    python tests/soak/run.py full --seed 1 --count 5 --result tests/soak/result.json  # needs permission to mount a tmpfs

Each command adds rows to the result file and writes a table next to the file. An interrupted command keeps its rows so far.
"""

import argparse
import errno
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from rljax.errors import InputError
from rljax.training.checkpoints.checkpoint import newest_complete

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from soak.families import FAMILIES

CHILD = Path(__file__).with_name("child.py")
SOURCES = sorted((Path(__file__).resolve().parents[2] / "rljax").rglob("*.py"))
VERSION = hashlib.sha256(b"".join(file.read_bytes() for file in SOURCES)).hexdigest()[:8]
WORK = Path(tempfile.gettempdir()) / f"rljax-soak-{VERSION}"  # Other sources need new reference runs.
SIGNALS = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM, "INT": signal.SIGINT}
LIMIT = 300.0
"""Time limit of one start, in seconds."""


def start(family: str, folder: Path) -> subprocess.Popen[str]:
    """Start a run, or continue it."""
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(WORK / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(map(str, CHILD.parents[1:3])),
    }
    command = [sys.executable, str(CHILD), family, str(folder)]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def reference_run(family: str) -> Path:
    """Return a run of the family that was never stopped; train such a run if there is none yet."""
    folder = WORK / "whole" / family
    if not (folder / "curves.png").exists():
        shutil.rmtree(folder, ignore_errors=True)
        process = start(family, folder)
        output = process.communicate(timeout=LIMIT)[0]
        if process.returncode:
            raise RuntimeError(output)
    return folder


def read_arrays(checkpoint: Path) -> dict[str, np.ndarray]:
    """Read every array of a checkpoint, by path."""
    found = {}
    for item in ("state", "history", "carried"):
        if (checkpoint / item).is_dir():
            tree = ocp.StandardCheckpointer().restore(checkpoint.absolute() / item)
            found |= {item + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}
    return found


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Read the rows of a file, without their times."""
    parsed = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [
        {name: value for name, value in row.items() if not name.endswith(("seconds", "tokens_per_second"))}
        for row in parsed
    ]


def find_differences(run: Path, reference: Path) -> list[str]:
    """Return what differs between two finished runs; the list is empty if they are bitwise equal."""
    different = []
    for name in ("metrics.jsonl", "samples.jsonl", "heldout.jsonl", "remedies.jsonl"):
        ours, theirs = run / name, reference / name
        if ours.exists() != theirs.exists() or (ours.exists() and read_rows(ours) != read_rows(theirs)):
            different.append(name)
    for kind in ("last", "best"):
        folders = [path / "checkpoints" / kind for path in (run, reference)]
        ours, theirs = (read_arrays(folder / str(newest_complete(folder)[0])) for folder in folders)
        if ours.keys() != theirs.keys():
            different.append(f"{kind}: other arrays")
        names = ours.keys() & theirs.keys()
        different += [f"{kind} {name}" for name in names if ours[name].tobytes() != theirs[name].tobytes()]
    return different


def choose_moment(run: Path, rng: random.Random) -> tuple[str, Callable[[], bool]]:
    """Choose a random moment of a run; return its kind, and a function that returns whether the moment has come."""
    kind = rng.choices(["in a write", "after a row", "at the start"], [0.45, 0.45, 0.1])[0]
    if kind == "in a write":
        skip, seen = rng.randint(0, 3), set()

        def has_begun_write() -> bool:
            seen.update(path.name for path in (run / "checkpoints").glob("*/*.orbax-checkpoint-tmp*"))
            return len(seen) > skip

        return kind, has_begun_write
    if kind == "at the start":
        end = time.monotonic() + rng.uniform(0.1, 8)
        return kind, lambda: time.monotonic() > end
    metrics = run / "metrics.jsonl"
    wanted = (metrics.read_bytes().count(b"\n") if metrics.exists() else 0) + rng.randint(1, 6)
    return kind, lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= wanted


def was_writing(run: Path) -> bool:
    """Return whether a save was interrupted, so that its temporary folder remains or its manifest is missing."""
    saves = list((run / "checkpoints").glob("[lb]*/*"))
    return any("tmp" in path.name or not (path / "sha256.json").exists() for path in saves)


def stop_repeatedly(family: str, seed: int, kills: int = 4) -> Iterator[dict[str, Any]]:
    """Stop a run several times, and compare its final result with that of an undisturbed run; yield one row per stop."""
    rng, run = random.Random(seed), WORK / "stopped" / f"{family}-{seed}"
    reference = reference_run(family)
    shutil.rmtree(run, ignore_errors=True)
    stops: list[dict[str, Any]] = []
    while True:
        process = start(family, run)
        kind, has_come = choose_moment(run, rng)
        name = "KILL" if kind == "in a write" else rng.choice(list(SIGNALS))
        while process.poll() is None and len(stops) < kills and not has_come():
            time.sleep(0.001)
        if process.poll() is None and len(stops) < kills:
            if kind != "in a write":
                time.sleep(rng.uniform(0, 0.2))
            process.send_signal(SIGNALS[name])
            output = process.communicate(timeout=LIMIT)[0]
            inside = name == "KILL" and was_writing(run)
            stops.append({"family": family, "seed": seed, "signal": name, "moment": kind, "in_write": inside})
            if process.returncode in (0, 130, -SIGNALS[name]):
                continue
            yield from ({**stop, "identical": False, "fault": output[-2000:]} for stop in stops)
            return
        output = process.communicate(timeout=LIMIT)[0]
        fault = output[-2000:] if process.returncode else "; ".join(find_differences(run, reference))[:2000]
        yield from ({**stop, "identical": not fault, "fault": fault} for stop in stops)
        if not fault:
            shutil.rmtree(run)
        return


def damage(checkpoint: Path, rng: random.Random) -> str:
    """Damage a checkpoint at random, and return a description of the damage."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    file = rng.choice(files)
    kind = rng.choice(["a bit flipped", "cut", "longer", "deleted", "emptied", "item deleted", "all deleted"])
    content = bytearray(file.read_bytes())
    if kind == "a bit flipped" and content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(content)
    elif kind == "cut" and content:
        file.write_bytes(content[: rng.randrange(len(content))])
    elif kind == "deleted":
        file.unlink()
    elif kind == "item deleted":
        shutil.rmtree(checkpoint / rng.choice(["state", "history", "notes"]))
    elif kind == "all deleted":
        shutil.rmtree(checkpoint)
        checkpoint.mkdir()
    elif kind == "emptied" and content:
        file.write_bytes(b"")
    else:
        file.write_bytes(bytes(content) + b"x")
    return f"{kind}: {file.relative_to(checkpoint).as_posix()}"


def damage_run(family: str, seed: int) -> dict[str, Any]:
    """Damage a run's newest checkpoint, or both: the run must continue from the intact one, or report that none is left."""
    rng, run = random.Random(seed), WORK / "damaged" / f"{family}-{seed}"
    reference = reference_run(family)
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(reference, run)
    last = run / "checkpoints" / "last"
    newest, before = sorted((int(path.name) for path in last.iterdir()), reverse=True)
    both = rng.random() < 0.2
    kinds = [damage(last / str(number), rng) for number in ((newest, before) if both else (newest,))]
    process = start(family, run)
    output = process.communicate(timeout=LIMIT)[0]
    paragraph = output.strip().splitlines()[-1]
    refused = process.returncode == 2 and paragraph.startswith("rljax: No checkpoint in") and "Traceback" not in output
    fault = (
        ""
        if both and refused
        else output[-2000:]
        if process.returncode
        else "; ".join(find_differences(run, reference))[:2000]
    )
    has_message = refused or " cannot be used: " in output
    return {
        "family": family,
        "seed": seed,
        "damage": kinds,
        "refused": refused,
        "answered": not fault and has_message,
        "fault": fault,
    }


@contextmanager
def small_disk(size: str) -> Iterator[Path]:
    """Mount a small disk in memory."""
    mount_point = WORK / "disk"
    mount_point.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(mount_point)], check=True)
    try:
        yield mount_point
    finally:
        subprocess.run(["umount", "-l", str(mount_point)], check=True)


def fill(file: Path) -> None:
    """Write until the disk is full."""
    with file.open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(b"0" * 4096)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def fill_disk_of_run(family: str, seed: int) -> dict[str, Any]:
    """Fill a run's disk at a random moment, and make room again when the run reports that it is waiting."""
    rng, reference = random.Random(seed), reference_run(family)
    with small_disk("64m") as disk:
        run, waited = disk / "run", 0
        process = start(family, run)
        _, has_come = choose_moment(run, rng)
        while process.poll() is None and not has_come():
            time.sleep(0.001)
        fill(disk / "filler")
        stream = process.stdout
        lines = []
        for line in stream or ():
            lines.append(line)
            if "cannot be written to" in line:
                waited += 1
                (disk / "filler").unlink(missing_ok=True)
        process.wait(timeout=LIMIT)
        output = "".join(lines)
        fault = output[-2000:] if process.returncode else "; ".join(find_differences(run, reference))[:2000]
        has_continued = "There is enough disk space" in output
        return {"family": family, "seed": seed, "waited": waited, "survived": not fault and has_continued, "fault": fault}


def format_table(result: dict[str, list[dict[str, Any]]], about: str) -> str:
    """Format the result as Markdown text and a table."""
    kills, damages, disks = (result.get(name, []) for name in ("kills", "damage", "full"))
    further = []
    if damages:
        refused = sum(row["refused"] for row in damages)
        further.append(
            f"- {sum(row['answered'] for row in damages)} of {len(damages)} damaged checkpoints were handled correctly: {refused} "
            "runs ended with a clear error message; the others continued from the previous checkpoint and were bit-identical."
        )
    if disks:
        survived = sum(row["survived"] for row in disks)
        further.append(
            f"- In {survived} of {len(disks)} cases, a run whose disk was full waited for space and was bit-identical."
        )
    identical, in_write = (sum(row[name] for row in kills) for name in ("identical", "in_write"))
    lines = [
        "# Soak test results",
        "",
        f"Tiny runs of every family of settings (`families.py`), {about}; "
        "`python tests/soak/run.py kills|damage|full --result tests/soak/result.json`.",
        "",
        f"- In {identical} of {len(kills)} cases, a run that was stopped and resumed was bit-identical to an uninterrupted run "
        f"(parameters, optimizer, history, metrics, samples). In {in_write} cases, it was stopped while a checkpoint was being "
        "written.",
        *further,
        "",
        "| family | stops | identical | during a write | KILL | TERM | INT |",
        "| ---- | ---- | ---- | ---- | ---- | ---- | ---- |",
    ]
    for family in FAMILIES:
        own = [row for row in kills if row["family"] == family]
        counts = [sum(row["signal"] == name for row in own) for name in SIGNALS]
        numbers = [len(own), sum(row["identical"] for row in own), sum(row["in_write"] for row in own), *counts]
        lines.append(f"| {family} | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run one part of the soak test; the exit code is 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["kills", "damage", "full"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    result = json.loads(options.result.read_text()) if options.result.exists() else {}
    families, end, failed = list(FAMILIES), time.monotonic() + 60 * options.minutes, False
    run_once = {"kills": stop_repeatedly, "damage": lambda *a: [damage_run(*a)], "full": lambda *a: [fill_disk_of_run(*a)]}[
        options.part
    ]
    for number in range(options.count):
        if time.monotonic() > end:
            break
        seed = options.seed + number
        try:
            new = list(run_once(families[seed % len(families)], seed))
        except InputError as error:
            new = [{"family": families[seed % len(families)], "seed": seed, "fault": str(error)}]
        result.setdefault(options.part, []).extend(new)
        failed |= any(row["fault"] for row in new)
        print(json.dumps(new), flush=True)
        options.result.write_text(json.dumps(result, indent=1) + "\n")
        options.result.with_suffix(".md").write_text(format_table(result, str(date.today())))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
