"""Memory of an update on long sequences, with and without a context axis, according to the compiler of the TPU v5p.

    python experiments/benchmarks/long_sequences.py                 (all rows)
    python experiments/benchmarks/long_sequences.py --rows context  (only this one; the other rows are kept)

Needs the packages of `pip install 'jax[tpu]'`, but no TPU: programs are compiled, not run. The model has two layers with
the widths of Qwen3-0.6B; the update is GRPO without a reference, AdamW, bfloat16, full remat, splash attention. Writes
long_sequences.json and long_sequences.md next to this file.
"""

import json
import time
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import tyro
from shapes import QWEN_0_6B

from rljax import TrainConfig
from rljax.files import atomic_write
from rljax.parallel import mesh_of
from rljax.programs.compiled_updates import compile_policy_update, sent_bytes, temporaries
from rljax.programs.topology import topology_of

FILE = Path(__file__).resolve().with_suffix(".json")
TOPOLOGY, LAYERS, RESPONSES = "v5p:2x2x2", 2, 8
PROMPT, TOKENS = 1_024, 65_536
"""Tokens of each prompt, and of each prompt with its response."""
MESHES = {"fsdp": {"fsdp": 8}, "context": {"context": 8}, "context-tensor": {"context": 4, "tensor": 2}}
"""Name of a row -> settings of the mesh."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of the computation."""

    rows: tuple[str, ...] = tuple(MESHES)
    """Rows of the table."""


def compute_figures(name: str) -> dict[str, Any]:
    """Compile an update on `RESPONSES` full sequences, and count its memory and messages on each device."""
    topology = topology_of(TOPOLOGY)
    config = TrainConfig.flat(
        algorithm="grpo",
        algorithm_options={"beta": 0.0},
        prompts=1,
        minibatches=1,
        group_size=RESPONSES,
        max_prompt_tokens=PROMPT,
        max_response_tokens=TOKENS - PROMPT,
        dtype="bfloat16",
        remat="full",
        attention="splash",
        **MESHES[name],
    )
    begin = time.monotonic()
    shape = replace(QWEN_0_6B, layers=LAYERS, attention="splash", remat="full")
    program = compile_policy_update(config, shape, mesh_of(config.devices, devices=topology.devices), PROMPT)
    return {
        "compiler": topology.compiler,
        "temporaries": temporaries(program),
        "sent": sent_bytes(program),
        "seconds": round(time.monotonic() - begin),
        "date": date.today().isoformat(),
    }


def format_table(rows: dict[str, dict[str, Any]]) -> str:
    """Format the rows in Markdown."""
    lines = [
        "# Updates on long sequences",
        "",
        f"`python experiments/benchmarks/{FILE.stem}.py` writes this page. Figures of the compiler of TPUs; nothing ran.",
        "",
        f"{LAYERS} layers of the widths of Qwen3-0.6B, GRPO without a reference, AdamW, {RESPONSES} sequences of {TOKENS:,}",
        f"tokens, `--dtype bfloat16 --remat full --attention splash`, 8 devices of {TOPOLOGY}. GB per device.",
        "",
        "| mesh | temporaries in an update | sent | seconds to compile | compiler | date |",
        "| --- | ---: | ---: | ---: | --- | --- |",
    ]
    for name, axes in MESHES.items():
        if name in rows:
            row, flags = rows[name], " ".join(f"--{axis} {size}" for axis, size in axes.items())
            sizes = f"{row['temporaries'] / 1e9:.2f} | {row['sent'] / 1e9:.1f} | {row['seconds']}"
            lines.append(f"| `{flags}` | {sizes} | {row['compiler']} | {row['date']} |")
    return "\n".join([*lines, ""])


def main(arguments: Arguments) -> None:
    """Compute the rows, and write the results after each."""
    rows = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    for name in arguments.rows:
        rows[name] = compute_figures(name)
        atomic_write(FILE, f"{json.dumps(rows, indent=1)}\n".encode())
        atomic_write(FILE.with_suffix(".md"), format_table(rows).encode())
        print(name, rows[name])


if __name__ == "__main__":
    main(tyro.cli(Arguments))
