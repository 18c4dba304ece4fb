"""Which model fits which accelerator with which flags, according to the accelerators' own compilers.

    python experiments/benchmarks/what_fits.py                      (all rows)
    python experiments/benchmarks/what_fits.py --rows 0.6b-h100x1   (only this one; the other rows are kept)

Needs the packages of `pip install 'jax[tpu]'` for TPUs and `pip install 'jax[cuda13]'` for H100s, but no such device:
programs are compiled, not run. Two shallow models are compiled for each row, and the figures for the full depth are
extrapolated from these, as in `rljax plan --topology`. Writes what_fits.json and what_fits.md next to this file.
"""

import json
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import jax
import tyro
from shapes import LLAMA_8B, QWEN_0_6B, QWEN_1_7B

from rljax import TrainConfig
from rljax.files import atomic_write
from rljax.parallel import make_mesh
from rljax.programs.plan import make_plan
from rljax.programs.roofline import device_of, speed_of
from rljax.programs.topology import topology_of
from rljax.training.memory_plan import USABLE_SHARE

HERE = Path(__file__).resolve().parent
PROMPT, RESPONSE, PROMPTS, GROUP = 512, 512, 8, 8
"""Tokens per prompt and per response, and number of prompts and responses in a step."""
SHAPES = {"Qwen3-0.6B": QWEN_0_6B, "Qwen3-1.7B": QWEN_1_7B, "Llama-3.1-8B": LLAMA_8B}


class Case(NamedTuple):
    """One row of the table."""

    model: str
    """Key of `SHAPES`."""
    topology: str
    """Devices, as `rljax plan --topology` names them."""
    flags: dict[str, Any]
    """Settings in addition to those that all rows share."""


CASES = {
    "0.6b-v5e": Case("Qwen3-0.6B", "v5e:2x2", {"fsdp": 4, "attention": "splash"}),
    "0.6b-h100x1": Case("Qwen3-0.6B", "h100x1", {"attention": "cudnn"}),
    "1.7b-h100x1": Case("Qwen3-1.7B", "h100x1", {"attention": "cudnn"}),
    "8b-nf4-h100x1": Case("Llama-3.1-8B", "h100x1", {"attention": "cudnn", "lora_rank": 16, "quantize": "nf4"}),
    "8b-h100x8": Case("Llama-3.1-8B", "h100x8", {"fsdp": 8, "attention": "cudnn"}),
}


@dataclass(frozen=True)
class Arguments:
    """Arguments of the computation."""

    rows: tuple[str, ...] = tuple(CASES)
    """Rows of the table."""


def config_of(case: Case) -> TrainConfig:
    """Build the settings: GRPO without a reference, in bfloat16, with layers recomputed in the backward pass."""
    return TrainConfig.flat(
        algorithm="grpo",
        algorithm_options={"beta": 0.0},
        prompts=PROMPTS,
        group_size=GROUP,
        max_prompt_tokens=PROMPT,
        max_response_tokens=RESPONSE,
        dtype="bfloat16",
        remat="full",
        **case.flags,
    )


def compute_figures(case: Case) -> dict[str, Any]:
    """Compute the bytes on each device, the bytes sent, and whether the case fits."""
    topology, config = topology_of(case.topology), config_of(case)
    device, count = device_of(topology.kind), len(topology.devices)
    mesh = make_mesh(1, config.devices.fsdp, devices=topology.devices)
    room = int(USABLE_SHARE * device.memory)
    plan = make_plan(config, replace(SHAPES[case.model], attention=config.model.attention), mesh, PROMPT, room=room)
    speed = speed_of(config.model.dtype)
    return {
        "compiler": topology.compiler,
        "memory": device.memory,
        "state": plan.parameters + plan.optimizer,
        "temporaries": plan.temporaries,
        "peak": plan.peak,
        "rows": plan.rows,
        "sent": plan.phases["update"].sent,
        "fits": plan.peak <= room,
        "seconds": sum(work.seconds(device, count, speed=speed) for work in plan.phases.values()),
        "date": date.today().isoformat(),
    }


def format_table(rows: dict[str, dict[str, Any]]) -> str:
    """Format the rows in Markdown."""
    lines = [
        "# Which model fits which accelerator",
        "",
        "`python experiments/benchmarks/what_fits.py` writes this page. Figures of the devices' own compilers; nothing ran.",
        "",
        f"GRPO without a reference, AdamW, {PROMPTS} x {GROUP} responses of {RESPONSE} tokens after prompts of {PROMPT}; flags of",
        "all rows: `--dtype bfloat16 --remat full`. GB per device; a plan may fill nine tenths of the memory. The seconds are a",
        "lower bound of one step: operations, bytes moved and bytes sent at the device's peaks.",
        "",
        "| model | devices | flags | fits | largest sum | of | state | temporaries in an update | rows decoded | sent | seconds |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, case in CASES.items():
        if name in rows:
            row = rows[name]
            flags = " ".join(f"--{flag.replace('_', '-')} {value}" for flag, value in case.flags.items())
            sizes = [f"{row[part] / 1e9:.2f}" for part in ("peak", "memory", "state", "temporaries")]
            cells = [case.model, case.topology, f"`{flags}`", "yes" if row["fits"] else "no", *sizes, str(row["rows"])]
            lines.append("| " + " | ".join([*cells, f"{row['sent'] / 1e9:.1f}", f"{row['seconds']:.2f}"]) + " |")
    compilers = sorted({row["compiler"] for row in rows.values()})
    return "\n".join([*lines, "", f"Compilers: {', '.join(compilers)}.", ""])


def main(arguments: Arguments) -> None:
    """Compute the rows, and write both files after each."""
    jax.config.update("jax_platforms", "cpu")  # the devices are absent
    file = HERE / "what_fits.json"
    rows = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    for name in arguments.rows:
        rows[name] = compute_figures(CASES[name])
        print(name, rows[name], flush=True)
        atomic_write(file, (json.dumps(rows, indent=1) + "\n").encode())
        atomic_write(HERE / "what_fits.md", format_table(rows).encode())


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
