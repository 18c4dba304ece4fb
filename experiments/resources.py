"""Measure the peak memory, time, samples per hour and energy of PPO, VAPO, DAPO and GRPO on the same task.

Table 12 of the design document (unpublished) states these four quantities for the same algorithms on eight A100 GPUs. This
script measures them on one machine. Each run is a separate process, and a round consists of one run of each algorithm, so that
all algorithms see the same machine load. All runs start from one base model, which is trained once.

Command:

    python experiments/resources.py     (about ten minutes on two idle CPU cores; nothing else should run)

Measurements:

- peak memory: on a CPU, the process's peak resident memory minus its peak before the run; on an accelerator, the device's peak
  memory minus its peak before the run;
- training time: 100 times the median RL step, leaving out the first two, which compile; if the critic is pretrained, plus 50
  times the median step of value pretraining, leaving out the first;
- samples: responses that are trained on, per hour of RL steps; dynamic sampling also samples
  responses that are not trained on, which do not count;
- energy: used by all processor packages during the run, from Linux's powercap counters. Virtual machines and ordinary users
  usually cannot read them; the page then reports "unavailable", without an estimate.

Deviations from the document: a transformer of 2.7 million parameters on sums, 8 prompts with 8 responses, two updates per step.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import tyro

import rljax
from lab.rank_correlation import permutation_test
from lab.rows import write_page, write_rows
from rljax.tracking.rows import read_metrics

ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "vanilla PPO": {"algorithm": "ppo", "algorithm_options": {}},
    "VAPO": {"algorithm": "vapo", "algorithm_options": {"pretraining_steps": 4}},
    "DAPO": {"algorithm": "dapo", "algorithm_options": {"max_length": 40, "cache": 8}},
    "GRPO": {"algorithm": "grpo", "algorithm_options": {}},
}


class DocumentRow(NamedTuple):
    """A row of Table 12 of the document."""

    gigabytes: float
    time: float
    """Relative to vanilla PPO."""
    hourly: float
    """Samples per hour."""
    energy: float
    """Relative to vanilla PPO."""


DOCUMENT = {
    "vanilla PPO": DocumentRow(45, 1.0, 1200, 1.0),
    "VAPO": DocumentRow(72, 1.8, 680, 1.9),
    "DAPO": DocumentRow(58, 1.3, 950, 1.4),
    "GRPO": DocumentRow(38, 0.7, 1650, 0.8),
}
CONFIG = rljax.TrainConfig.flat(
    algorithm="grpo",
    task="sums",
    operands=(3, 5),
    train_problems=2048,
    unfinished_share=0.6,
    unfinished_operands=4,
    tokenizer="characters",
    layers=6,
    width=192,
    hidden=576,
    heldout_problems=16,
    max_prompt_tokens=10,
    max_response_tokens=40,
    warm_start_steps=80,
    warm_start_optimizer="muon",
    warm_start_learning_rate=4e-3,
    prompts=8,
    group_size=8,
    minibatches=2,
    oversample=1.5,
    max_tries=3,
    steps=10,
    learning_rate=1e-4,
    eval_every=0,
    sample_every=0,
    checkpoint_every=10_000,
    models="none",
    quiet=True,
)
TRAINING_STEPS, PRETRAINING_STEPS = 100, 50
"""Numbers of RL steps and of value-pretraining steps in the reported training time."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    out: Path = Path("experiments/resources")
    """Path of the output files, without the endings `.json` and `.md`."""
    rounds: int = 5
    """Number of runs of each algorithm."""
    minutes: float = 30.0
    """Time limit in minutes; an unfinished round is left out."""
    steps: int = 10
    """RL steps of a run, at least 3."""
    layers: int = 6
    """Layers of the model."""
    work: Path = Path("runs/resources")
    """Folder for the base model and the compiled programs."""


def read_joules(folder: Path = Path("/sys/class/powercap")) -> float | None:
    """Read the energy that the processor packages have used so far, in joules; None if the counters are missing or unreadable.

    Args:
        folder: folder of Linux's powercap counters.
    """
    counters = [path / "energy_uj" for path in folder.glob("intel-rapl:[0-9]*") if path.name.count(":") == 1]
    readable = [counter for counter in counters if os.access(counter, os.R_OK)]
    if not readable or len(readable) < len(counters):
        return None
    return sum(int(counter.read_text(encoding="utf-8")) for counter in readable) / 1e6


def peak_bytes() -> int:
    """Return the peak memory of the accelerator, or the peak resident memory of this process on a CPU, in bytes.

    On Linux the peak comes from `/proc`, because `getrusage` starts at the peak of the process that started this one.
    """
    import jax  # noqa: PLC0415  the parent process does not need it

    found = jax.local_devices()[0].memory_stats()
    if found is not None:
        return found["peak_bytes_in_use"]
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(config: rljax.TrainConfig) -> dict[str, Any]:
    """Do one run in this process, and return its measurements."""
    before, energy = peak_bytes(), read_joules()
    with TemporaryDirectory() as folder:
        result = rljax.train(config.replace(run=f"{folder}/run"))
        rows = read_metrics(result.run / "metrics.jsonl")
    after = read_joules()
    steps = [row for row in rows if row["phase"] == "rl"]
    value = [row["seconds"] for row in rows if row["phase"] == "value"]
    return {
        "bytes": peak_bytes() - before,
        "step_seconds": statistics.median(row["seconds"] for row in steps[2:]),
        "value_seconds": statistics.median(value[1:]) if len(value) > 1 else None,
        "trained": statistics.mean(row["trained_groups"] for row in steps[2:]) * config.sampling.group_size,
        "sampled_tokens": round(sum(row["tokens_per_second"] * row["seconds"] for row in steps)),
        "joules": None if energy is None or after is None or after < energy else after - energy,
        "load": round(os.getloadavg()[0], 1),
    }


def config_of(name: str, arguments: Arguments, round_index: int) -> rljax.TrainConfig:
    """Build the settings of a run."""
    model = {"model": str((arguments.work / "base" / "last").absolute()), "warm_start_steps": 0}
    return CONFIG.replace(layers=arguments.layers, steps=arguments.steps, seed=round_index, **ALGORITHMS[name], **model)


def measure_in_process(name: str, arguments: Arguments, round_index: int, seconds: float) -> dict[str, Any]:
    """Do one run in a separate process, and return its row.

    Raises:
        subprocess.TimeoutExpired: the run took more than `seconds`.
    """
    words = [__file__, "--child", name, str(round_index), str(arguments.work), str(arguments.steps), str(arguments.layers)]
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str((arguments.work / "compiled").absolute()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    }
    command = [sys.executable, *words]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=seconds)
    return {"algorithm": name, "round": round_index, **json.loads(done.stdout.splitlines()[-1])}


def run_child(name: str, round_index: str, work: str, steps: str, layers: str) -> None:
    """Do one run, and print its measurements as the last line."""
    arguments = Arguments(steps=int(steps), layers=int(layers), work=Path(work))
    print(json.dumps(measure(config_of(name, arguments, int(round_index)))))


def seconds_of_training(row: Mapping[str, Any]) -> float:
    """Compute the seconds of `TRAINING_STEPS` RL steps plus `PRETRAINING_STEPS` steps of value pretraining, if there is any."""
    return TRAINING_STEPS * row["step_seconds"] + PRETRAINING_STEPS * (row["value_seconds"] or 0.0)


MEASURES: Mapping[str, tuple[Callable[[Mapping[str, Any]], float], str, str, Callable[[DocumentRow], float]]] = {
    "peak memory, MB": (lambda row: row["bytes"] / 1e6, ",.0f", "{:g} GB", lambda stated: stated.gigabytes),
    "time, s": (seconds_of_training, ",.0f", "{:.1f}x", lambda stated: stated.time),
    "trained samples per hour": (
        lambda row: 3600 * row["trained"] / row["step_seconds"],
        ",.0f",
        "{:,.0f}",
        lambda stated: stated.hourly,
    ),
    "energy, J per run": (lambda row: row["joules"], ",.0f", "{:.1f}x", lambda stated: stated.energy),
}
"""Name of a measurement -> how to read it from a row, format of its values, format of the document's figure, and that figure."""


def values_of(rows: Sequence[Mapping[str, Any]], measure: str) -> dict[str, list[float]]:
    """Collect a measurement of all runs by algorithm; empty if any run lacks it."""
    read = MEASURES[measure][0]
    values = {name: [read(row) for row in rows if row["algorithm"] == name] for name in ALGORITHMS}
    return {} if any(value is None for own in values.values() for value in own) else values


def format_cells(rows: Sequence[Mapping[str, Any]], measure: str) -> dict[str, str]:
    """Format two columns of the table: medians with the range over the runs, and the document's figures."""
    _, style, stated, figure = MEASURES[measure]
    values = values_of(rows, measure)
    medians = {name: statistics.median(own) for name, own in values.items()}
    found = {
        name: f"{medians[name]:{style}} ({min(own):{style}} to {max(own):{style}}), {medians[name] / medians['vanilla PPO']:.2f}x"
        for name, own in values.items()
    }
    return {name: f"{found.get(name, 'unavailable')} | {stated.format(figure(DOCUMENT[name]))}" for name in ALGORITHMS}


def order_text(rows: Sequence[Mapping[str, Any]], measure: str) -> str:
    """Describe how well the order of the medians agrees with the document's order."""
    values, figure = values_of(rows, measure), MEASURES[measure][3]
    if not values:
        return f"- {measure}: unavailable."
    medians = [statistics.median(values[name]) for name in ALGORITHMS]
    return f"- {measure}: {permutation_test([figure(DOCUMENT[name]) for name in ALGORITHMS], medians).text()}."


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the table in Markdown, with Kendall's rank correlations; every second value column has the document's figures."""
    columns = [format_cells(rows, measure) for measure in MEASURES]
    lines = [
        f"| algorithm | {' | document | '.join(MEASURES)} | document |",
        f"|{' --- |' * (1 + 2 * len(MEASURES))}",
        *(f"| {name} | {' | '.join(column[name] for column in columns)} |" for name in ALGORITHMS),
        "",
        "Kendall's rank correlation of the medians with the document's figures:",
        "",
        *(order_text(rows, measure) for measure in MEASURES),
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Arguments) -> None:
    """Measure round by round, and write the rows and the page after each round."""
    end = time.monotonic() + 60 * arguments.minutes
    if not (arguments.work / "base" / "last" / "config.json").exists():
        base = CONFIG.replace(layers=arguments.layers, steps=0, models="last", run=str(arguments.work / "base"))
        rljax.train(base, resume="auto")
    rows: list[dict[str, Any]] = []
    for round_index in range(arguments.rounds):
        try:
            rows += [measure_in_process(name, arguments, round_index, end - time.monotonic()) for name in ALGORITHMS]
        except subprocess.TimeoutExpired:
            print(f"{arguments.minutes:g} minutes were enough for {round_index} of {arguments.rounds} rounds.")
            break
        write_rows(arguments.out.with_suffix(".json"), rows)
        loads = [row["load"] for row in rows]
        caption = (
            f"medians (smallest to largest) of {round_index + 1} runs of {arguments.steps} RL steps, interleaved, each with a new "
            f"seed; load of the machine {min(loads):g} to {max(loads):g}. Time: {TRAINING_STEPS} RL steps, with "
            f"{PRETRAINING_STEPS} steps of value pretraining for VAPO."
        )
        write_page(arguments.out, "python experiments/resources.py", caption, report(rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        run_child(*sys.argv[2:])
    else:
        main(tyro.cli(Arguments))
