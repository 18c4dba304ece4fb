"""Compare all algorithms on one task over several seeds: held-out accuracy, steps and wall time.

The supervised warm start runs once per seed, and all algorithms start from the resulting model. Each finished run is one row of
the JSON file. The command can be repeated: it skips runs that already have a row, and continues an interrupted run.

Command:

    python experiments/compare_algorithms.py --out experiments/arithmetic_algorithms     (all: about two hours on two CPU cores)
    python experiments/compare_algorithms.py --experiment long_chain_vapo \
        --algorithms vapo ppo:critic=fresh,value_pretraining_steps=0 --out experiments/long_chain_algorithms

An algorithm may have its own settings: `name:setting=value,setting=value`, for instance `gkd:teacher=FOLDER`.

Deviations: every algorithm uses the experiment's learning rate, batch and number of steps, which were chosen for the experiment's
own algorithm and not tuned for the others. Each algorithm receives only the experiment's options that it also has.
"""

import json
import shlex
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tyro

import rljax
from rljax import load_config
from rljax.algorithms import BY_NAME
from rljax.book.genealogy import learns_from_teacher
from rljax.cli import main
from rljax.programs.base_settings import with_shared_options
from rljax.tracking.rows import read_metrics

CONFIG = load_config("arithmetic_algorithms")


@dataclass
class Arguments:
    """The options of the comparison."""

    out: Path
    """Path of the output files, without .json and .md."""
    experiment: str = "arithmetic_algorithms"
    """Name of the experiment whose settings are used."""
    algorithms: list[str] = field(
        default_factory=lambda: [name for name in sorted(BY_NAME) if not learns_from_teacher(BY_NAME[name]())]
    )
    """Names of the algorithms, each with its own settings if needed; by default all but those that learn from a teacher."""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    """Seeds; each algorithm runs once per seed."""
    steps: int | None = None
    """RL steps; by default the experiment's."""
    work: Path = Path("runs/compare")
    """Folder for the runs."""


def export_warm_start(config: rljax.TrainConfig, folder: Path) -> Path:
    """Export the model after the warm start with the config's seed as a Hugging Face folder, unless the folder exists."""
    if not folder.exists():
        base = adapt_config(config, "rloo").replace(steps=0, run=f"{folder}-run", quiet=True)
        rljax.train(base)
        if main(["export", f"{folder}-run", str(folder), "--checkpoint", "last"]) != 0:
            raise SystemExit(f"the run {folder}-run could not be exported to {folder}; see the message above")
    return folder


def adapt_config(config: rljax.TrainConfig, name: str) -> rljax.TrainConfig:
    """Keep the settings of the experiment that apply to an algorithm."""
    steps = None if BY_NAME[name]().critic is None else config.critic.pretraining_steps
    return with_shared_options(config, name).replace(algorithm=name, value_pretraining_steps=steps)


def apply_settings(config: rljax.TrainConfig, settings: str) -> rljax.TrainConfig:
    """Apply `setting=value,setting=value`; the names are those of the flags, and spaces separate several values of one setting."""
    pairs = [setting.split("=", 1) for setting in settings.split(",") if setting]
    flags = [word for name, value in pairs for word in (f"--{name.replace('_', '-')}", *value.split())]
    record = tyro.conf.AvoidSubcommands[tyro.conf.OmitArgPrefixes[rljax.TrainConfig]]
    return tyro.cli(record, args=flags, default=config, config=(tyro.conf.FlagConversionOff,))


def train_and_measure(arguments: Arguments, name: str, seed: int) -> dict:
    """Train one algorithm with one seed, and return its row."""
    algorithm, _, settings = name.partition(":")
    config = load_config(arguments.experiment).replace(seed=seed)
    work = arguments.work / config.run.name
    model = export_warm_start(config, work / f"warm-{seed}")
    run = work / f"{name.replace('/', '_')}-{seed}"
    config = adapt_config(config, algorithm).replace(
        model=str(model),
        tokenizer="characters",
        warm_start_steps=0,
        run=str(run),
        quiet=True,
        steps=config.optimization.steps if arguments.steps is None else arguments.steps,
    )
    config = apply_settings(config, settings)
    start = time.monotonic()
    is_continued = run.exists()
    result = rljax.train(config, resume="auto")
    rows = read_metrics(result.run / "metrics.jsonl")
    return {
        "algorithm": name,
        "seed": seed,
        "before": result.accuracy_before,
        "after": result.accuracy_after,
        "best": max(row["accuracy"] for row in rows if row["phase"] == "eval"),
        "steps": config.optimization.steps,
        "value_steps": sum(row["phase"] == "value" for row in rows),
        "seconds": None if is_continued else time.monotonic() - start,
        "step_seconds": float(np.median([row["seconds"] for row in rows if row["phase"] == "rl"])),
    }


def format_table(rows: list[dict]) -> str:
    """Format the mean and range over the seeds in Markdown, one line per algorithm; times refer to the first seed."""
    first = min(row["seed"] for row in rows)
    lines = [
        "| algorithm | seeds | before RL | after RL, mean (lowest to highest) | best, mean | RL steps | value steps "
        f"| RL step, median, seed {first} | wall time, seed {first} |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in dict.fromkeys(row["algorithm"] for row in rows):
        own = sorted((row for row in rows if row["algorithm"] == name), key=lambda row: row["seed"])

        def column(key: str, own: list[dict] = own) -> np.ndarray:
            return np.array([row[key] for row in own])

        after = column("after")
        lines.append(
            f"| {name} | {len(own)} | {column('before').mean():.1%} | {after.mean():.1%} ({after.min():.1%} to {after.max():.1%}) "
            f"| {column('best').mean():.1%} | {own[0]['steps']} | {own[0]['value_steps']} "
            f"| {format_seconds(own[0]['step_seconds'], '.2f')} | {format_seconds(own[0]['seconds'], '.0f')} |"
        )
    return "\n".join(lines) + "\n"


def format_seconds(seconds: float | None, form: str) -> str:
    """Format a time; None means that the run was interrupted and continued, so it has no total time."""
    return "not timed" if seconds is None else f"{seconds:{form}} s"


def format_page(rows: list[dict]) -> str:
    """Format the page: the command that writes it, and the table."""
    return f"`python experiments/compare_algorithms.py {shlex.join(sys.argv[1:])}`\n\n{format_table(rows)}"


def compare(arguments: Arguments) -> None:
    """Do the runs that are missing from the JSON file, save the file after each run, and write the table at the end."""
    rows_file = arguments.out.with_suffix(".json")
    rows = json.loads(rows_file.read_text(encoding="utf-8")) if rows_file.exists() else []
    done = {(row["algorithm"], row["seed"]) for row in rows}
    for seed in arguments.seeds:
        for name in arguments.algorithms:
            if (name, seed) not in done:
                rows.append(train_and_measure(arguments, name, seed))
                rows_file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    arguments.out.with_suffix(".md").write_text(format_page(rows), encoding="utf-8")
    print(format_table(rows))


if __name__ == "__main__":
    compare(tyro.cli(Arguments))
