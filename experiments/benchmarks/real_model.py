"""An RL step of a pretrained model, compared with TRL's: time, tokens per second, peak memory and the time to the first step.

    python experiments/benchmarks/real_model.py --model HuggingFaceTB/SmolLM2-135M-Instruct        (half an hour on two CPU cores)
    python experiments/benchmarks/real_model.py --model FOLDER --cases lora --rounds 5

Both libraries read the same weights and the same prompts: 8 sums in SmolLM2's chat template, with 8 responses sampled to each.
A step is GRPO without a reference model and one update with AdamW, in float32. The sides take turns: in each round one of them
makes a step and then the other, so a busy machine slows both. The first round of each side, which compiles, is not counted.
Peak memory is the largest resident size that the side's process has had.

The floor of a step is the time of its matrix products at the rate of a large product on this machine. The rate is measured after
each case, and the highest one counts. The floor is computed from the responses' real lengths.

In the cases `first_step` and `second_start`, each round is a new process, whose time is measured from its start to the end of its
first step. In `second_start`, rljax reads the programs that an earlier process compiled, as its commands do by default.

Writes real_model.json and real_model.md next to this file; earlier rows of cases that are not measured are kept.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import tyro
import workloads as work
from report import describe_machine
from run import side, take_turns
from sides.rljax_cases import configuration
from virtual_environments import own_versions, package_versions, python_of

from rljax.models import TransformerConfig
from rljax.models.huggingface import locate, read_config
from rljax.programs.plan import plan_of
from rljax.programs.roofline import forward_flops

HERE = Path(__file__).resolve().parent
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
SIDES = ("rljax", "trl")
STEP = work.Step(questions=True, prompt_tokens=48, limit=32, microbatch=8)


class Case(NamedTuple):
    """A step that both sides make."""

    title: str
    """Description of the step."""
    step: work.Step
    """Its sizes."""
    starts: bool = False
    """Whether each round is a new process, which makes one step."""
    cached: bool = False
    """Whether rljax reads programs that an earlier process compiled."""


CASES = {
    "rows_8": Case("32 tokens, 8 rows at once", STEP),
    "rows_32": Case("32 tokens, 32 rows at once", STEP._replace(microbatch=32)),
    "tokens_64": Case("64 tokens, 8 rows at once", STEP._replace(limit=64)),
    "lora": Case("LoRA of rank 16, 32 tokens, 8 rows at once", STEP._replace(lora_rank=16)),
    "first_step": Case("first step of a process", STEP, starts=True),
    "second_start": Case("first step, programs compiled earlier", STEP, starts=True, cached=True),
}


@dataclass(frozen=True)
class Arguments:
    """Arguments of the comparison."""

    model: str = HUB
    """Hub id or local folder of the model."""
    cases: tuple[str, ...] = tuple(CASES)
    """Cases to measure."""
    rounds: int = 3
    """Measured rounds of each case."""
    work: Path = field(default_factory=lambda: Path.home() / ".cache" / "rljax" / "benchmarks")
    """Folder for TRL's environment."""
    out: Path = HERE
    """Folder for the results."""


def write_folder(model: Path, folder: Path, step: work.Step) -> None:
    """Link the model's files into a folder, and write the sizes of the step next to them."""
    folder.mkdir()
    for file in model.resolve().iterdir():
        (folder / file.name).symlink_to(file)
    (folder / work.STEP_FILE).write_text(json.dumps(step._asdict()), encoding="utf-8")


def product_rate(size: int = 2048, rounds: int = 10) -> float:
    """Measure the operations per second of the fastest of several float32 products of two square matrices."""
    left, right = (jax.random.normal(jax.random.key(seed), (size, size)) for seed in (0, 1))
    times = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        jax.block_until_ready(jnp.dot(left, right))
        times.append(time.perf_counter() - begun)
    return 2 * size**3 / min(times[1:])


def step_flops(shape: TransformerConfig, step: work.Step, length: float) -> dict[str, float]:
    """Count the operations of both parts of a step on responses of this mean length, without recomputation.

    Sampling reads each prompt once. The backward pass has twice the operations of the forward pass; with LoRA, the frozen matrices
    have no gradient, so it has about as many as the forward pass.
    """
    rows = step.prompts * step.group
    prompts = forward_flops(shape, step.prompts * step.prompt_tokens, step.prompt_tokens / 2, scored=step.prompts)
    responses = forward_flops(shape, rows * length, step.prompt_tokens + length / 2, scored=rows * length)
    tokens = step.prompt_tokens + length
    forward = forward_flops(shape, rows * tokens, tokens / 2, scored=rows * length)
    return {"sample": prompts + responses, "update": (3 if step.lora_rank is None else 2) * forward}


def measure_rounds(
    case: Case, rounds: int, pythons: Mapping[str, Path | str], folder: Path
) -> dict[str, list[dict[str, float]]]:
    """Return each side's figures of the measured rounds."""
    cache = folder / "compiled" if case.cached else None

    def measure_start(name: str) -> dict[str, float]:
        with side(name, "rl_step", pythons[name], folder, cache=cache) as opened:
            return opened.round()

    if case.starts:
        found = take_turns(SIDES, 1 + rounds, measure_start)
    else:
        with (
            side("rljax", "rl_step", pythons["rljax"], folder) as ours,
            side("trl", "rl_step", pythons["trl"], folder) as theirs,
        ):
            both = {"rljax": ours, "trl": theirs}
            found = take_turns(SIDES, 1 + rounds, lambda name: both[name].round())
    return {name: [figures[name] for figures in found[1:]] for name in SIDES}


def planned_bytes(folder: Path, step: work.Step) -> int:
    """Return the largest sum of bytes that `rljax plan` counts for this run on a CPU."""
    return plan_of(configuration(folder, step), 1, step.prompt_tokens, on_cpu=True).peak


def median(figures: Sequence[Mapping[str, float]], name: str) -> float:
    """Return the median of a figure over the rounds."""
    return statistics.median(each[name] for each in figures)


def row_of(
    case: Case, found: Mapping[str, Sequence[Mapping[str, float]]], shape: TransformerConfig, folder: Path
) -> dict[str, Any]:
    """Build a case's row of the results."""
    timed, step = "since_start" if case.starts else "seconds", case.step
    ours, theirs = found["rljax"], found["trl"]
    ratios = [slow[timed] / fast[timed] for fast, slow in zip(ours, theirs, strict=True)]
    memory = [fast["peak_bytes"] / slow["peak_bytes"] for fast, slow in zip(ours, theirs, strict=True)]
    return {
        "title": case.title,
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "memory_ratio": memory[-1],
        "planned_bytes": planned_bytes(folder, step),
        "product_rate": product_rate(),
        "flops": step_flops(shape, step, median(ours, "response_length")),
        "rounds": {name: list(figures) for name, figures in found.items()},
        "sizes": step._asdict(),
        "date": f"{date.today()}",
        "machine": describe_machine(),
    }


def seconds_cells(case: Case, row: Mapping[str, Any], name: str) -> list[str]:
    """Format a side's seconds: the step, sampling, the update, and the tokens sampled per second."""
    figures = row["rounds"][name]
    if case.starts:
        return [f"{median(figures, 'since_start'):.1f}", "", "", ""]
    seconds, sampling = median(figures, "seconds"), median(figures, "sample_seconds")
    tokens = case.step.prompts * case.step.group * median(figures, "response_length")
    return [f"{seconds:.1f}", f"{sampling:.1f}", f"{seconds - sampling:.1f}", f"{tokens / sampling:.0f}"]


def format_table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Format the results in Markdown."""
    lines = [
        f"`python experiments/benchmarks/real_model.py --model {HUB}`: GRPO without a reference, 8 prompts x 8 responses, AdamW,",
        "float32. Seconds and tokens per second are medians over the rounds. The weights were dequantized from 4 bits, so they are",
        "near, but not equal to, those of the hub.",
        "",
        "| step | library | seconds | sampling | rest | sampled tokens/s | peak GB | planned GB | floor of sampling, update "
        "| speedup (TRL's time / rljax's), median (lowest to highest) | date, load |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    rate = max(row["product_rate"] for row in rows.values())
    for key, row in rows.items():
        for name, label in zip(SIDES, ("rljax", "TRL"), strict=True):
            peak = max(each["peak_bytes"] for each in row["rounds"][name]) / 1e9
            cells = [row["title"], label, *seconds_cells(CASES[key], row, name), f"{peak:.1f}"]
            if name == "rljax":
                floor = (
                    "" if CASES[key].starts else f"{row['flops']['sample'] / rate:.1f}, {row['flops']['update'] / rate:.1f}"
                )
                spread = f"**{row['ratio']:.2f}** ({row['lowest']:.2f} to {row['highest']:.2f}, {len(row['rounds'][name])} rounds)"
                cells += [f"{row['planned_bytes'] / 1e9:.1f}", floor, spread, f"{row['date']}, {row['machine']['load']:g}"]
            else:
                cells += [""] * 4
            lines.append(f"| {' | '.join(cells)} |")
    machines = sorted({f"{row['machine']['cores']} x {row['machine']['processor']}" for row in rows.values()})
    versions = {
        f"- {label}: " + ", ".join(f"{name} {version}" for name, version in row["versions"][key].items())
        for row in rows.values()
        for key, label in zip(SIDES, ("rljax", "TRL"), strict=True)
    }
    return "\n".join([*lines, "", f"Machine: {'; '.join(machines)}.", "", "Versions:", "", *sorted(versions), ""])


def main(arguments: Arguments) -> None:
    """Measure, and write the results after each case."""
    if unknown := {*arguments.cases} - {*CASES}:
        raise SystemExit(f"There is no {', '.join(sorted(unknown))}; cases: {', '.join(CASES)}.")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    model = locate(arguments.model, ["*"])
    pythons: dict[str, Path | str] = {"rljax": sys.executable, "trl": python_of("trl", arguments.work)}
    versions = {"rljax": own_versions(), "trl": package_versions(pythons["trl"])}
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "real_model.json"
    rows = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    for name in arguments.cases:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            write_folder(model, folder, CASES[name].step)
            found = measure_rounds(CASES[name], arguments.rounds, pythons, folder)
            rows[name] = row_of(CASES[name], found, read_config(folder), folder) | {"versions": versions}
        rows = {key: rows[key] for key in CASES if key in rows}
        file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        (arguments.out / "real_model.md").write_text(format_table(rows), encoding="utf-8")
        print(f"{name}: {rows[name]['ratio']:.2f} ({rows[name]['lowest']:.2f} to {rows[name]['highest']:.2f})", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
