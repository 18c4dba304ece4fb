"""Memory, operations, communication and shortest time of one RL step of real models, as counted by the compiler.

    python experiments/benchmarks/compiled_figures.py                       (all rows)
    python experiments/benchmarks/compiled_figures.py --rows qwen3-0.6b/1   (only this one; the others are kept)

There are no weights and nothing is run: the updates are compiled ahead of time for fake devices, as in `rljax plan`. The
counts come from the CPU compiler, and tend to be too high rather than too low. The shortest time follows from an H100's
peak figures, which no program reaches.

Writes compiled_figures.json and compiled_figures.md next to this file.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from shapes import LLAMA_8B, QWEN_0_6B, QWEN_1_7B
from virtual_environments import own_versions

sys.path.append(str(Path(__file__).resolve().parents[1]))  # experiments/, which contains lab

from lab.rows import made_on
from rljax import TrainConfig
from rljax.cli.plan import simulate_devices
from rljax.parallel import make_mesh
from rljax.programs.plan import make_plan
from rljax.programs.roofline import device_of, speed_of

HERE = Path(__file__).resolve().parent
NAME = "compiled_figures"
SHAPES = {"qwen3-0.6b": QWEN_0_6B, "qwen3-1.7b": QWEN_1_7B, "llama-3.1-8b": LLAMA_8B}
ROWS = tuple(f"{name}/{count}" for name in SHAPES for count in (1, 8))
"""Keys of the rows: a shape and a number of devices."""
DEVICE = "h100"
PROMPT, RESPONSE, PROMPTS, GROUP = 512, 512, 16, 16
"""Tokens per prompt and per response, and number of prompts and responses in a step: 262,144 tokens."""
SLOTS, MICROBATCH = 64, 8
"""Responses that are sampled at once, and rows that are trained on at once, on all devices together."""
COLUMNS = {
    "parameters": "parameters",
    "optimizer": "optimizer",
    "reference": "reference",
    "temporaries": "activations, gradients, logits",
    "sampler": "weights for sampling",
    "cache": "cache",
    "peak": "largest sum",
}
"""Field of a plan, in bytes per device -> its heading in the table."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of the computation."""

    rows: tuple[str, ...] = ROWS
    """Rows to compute: a shape and a number of devices, separated by a slash."""
    out: Path = HERE
    """Folder for the results."""


def config_for(count: int) -> TrainConfig:
    """Build the settings: GRPO with a reference, in bfloat16, with the parameters sharded over all devices."""
    return TrainConfig.flat(
        algorithm="grpo",
        algorithm_options={"beta": 0.04},
        prompts=PROMPTS,
        group_size=GROUP,
        max_prompt_tokens=PROMPT,
        max_response_tokens=RESPONSE,
        decode_slots=SLOTS,
        microbatch_rows=MICROBATCH,
        dtype="bfloat16",
        remat="full",
        fsdp=count,
    )


def compute_figures(row: str) -> dict[str, Any]:
    """Compute the bytes on each device, and the work of each phase of a step."""
    name, _, count = row.partition("/")
    config, devices = config_for(int(count)), int(count)
    plan = make_plan(config, SHAPES[name], make_mesh(1, devices, devices=fake_devices(devices)), PROMPT)
    device, speed = device_of(DEVICE), speed_of(config.model.dtype)
    phases = {
        phase: work._asdict() | {"seconds": work.seconds(device, devices, speed=speed)}
        for phase, work in plan.phases.items()
    }
    return {"bytes": {column: getattr(plan, column) for column in COLUMNS}, "phases": phases}


def fake_devices(count: int) -> list[Any]:
    """Return the first `count` of the fake devices that `main` requests from JAX."""
    import jax  # noqa: PLC0415  the first computation fixes the number of devices

    return jax.devices()[:count]


def format_table(content: dict[str, Any]) -> str:
    """Format the results in Markdown."""
    head = ["model", "devices", *COLUMNS.values(), "fits"]
    room = device_of(DEVICE).memory
    lines = [
        "# Figures of one step, as the compiler counts them",
        "",
        f"{content['made_on']}; rljax {content['versions']['rljax']}.",
        f"`python experiments/benchmarks/{NAME}.py` writes this page.",
        "",
        f"GRPO with a reference and AdamW, {PROMPTS} x {GROUP} responses of {RESPONSE} tokens after prompts of {PROMPT}, all of",
        f"their full length; products in bfloat16, layers computed again in the backward pass, micro-batches of {MICROBATCH}",
        f"rows on all devices together, {SLOTS} responses sampled at once, parameters sharded over all devices. Compiled for",
        "CPUs, which multiply and send bfloat16 as float32.",
        "",
        f"GB on each device; the last column says whether the largest sum is below the {room / 1e9:g} GB of an H100:",
        "",
        "| " + " | ".join(head) + " |",
        "| " + " | ".join(["---"] * 2 + ["---:"] * (len(head) - 3) + ["---"]) + " |",
    ]
    for row, found in content["rows"].items():
        name, _, count = row.partition("/")
        sizes = [f"{found['bytes'][column] / 1e9:.2f}" for column in COLUMNS]
        fits = "yes" if found["bytes"]["peak"] < room else "no"
        lines.append("| " + " | ".join([name, count, *sizes, fits]) + " |")
    lines += [
        "",
        "Work of a step: operations of all devices together; bytes of weights, optimizer and cache that each device reads or",
        "writes; bytes that each device sends; and the least time on H100s by the largest of the three.",
        "",
        "| model | devices | phase | operations | GB moved | GB sent | seconds at least |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for row, found in content["rows"].items():
        name, _, count = row.partition("/")
        for phase, work in found["phases"].items():
            numbers = f"{work['flops']:.2e} | {work['moved'] / 1e9:.1f} | {work['sent'] / 1e9:.1f} | {work['seconds']:.3f}"
            lines.append(f"| {name} | {count} | {phase} | {numbers} |")
    return "\n".join([*lines, ""])


def main(arguments: Arguments) -> None:
    """Compute the rows, and write the results after each."""
    unknown = {*arguments.rows} - {*ROWS}
    if unknown:
        raise SystemExit(f"There is no {', '.join(sorted(unknown))}; rows: {', '.join(ROWS)}.")
    simulate_devices(os.environ, max(int(row.partition("/")[2]) for row in ROWS))
    file, known = arguments.out / f"{NAME}.json", own_versions()
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    rows = content["rows"] if content.get("versions") == known else {}
    for row in arguments.rows:
        rows[row] = compute_figures(row)
        content = {
            "made_on": made_on(),
            "versions": known,
            "rows": {key: rows[key] for key in ROWS if key in rows},
        }
        file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        (arguments.out / f"{NAME}.md").write_text(format_table(content), encoding="utf-8")
        print(f"{row}: {rows[row]['bytes']['peak'] / 1e9:.2f} GB", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
