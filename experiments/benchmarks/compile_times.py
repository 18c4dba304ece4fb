"""How long the programs of a step compile for a TPU and a GPU, layer by layer and with `--scan-layers`.

    python experiments/benchmarks/compile_times.py                            (TPU v5e; needs the package libtpu)
    python experiments/benchmarks/compile_times.py --topologies v5e:2x2 h100x1       (needs JAX's CUDA plugin as well)

The devices need not be present: programs are compiled, not run, and a GPU's kernels are not tuned. Each row is a separate process
and should be alone on the machine. The layers have the widths of Qwen3-0.6B, in bfloat16. The update is GRPO's on 64 responses of
512 tokens after 512 of the prompt, in micro-batches of 16 rows, with full recomputation; 8 prompts are read at once, and 64 rows
decoded. The loop is for updates and prompts; decoding has none. A second of a v5e has 1.5e9 cycles. Writes compile_times.json and
compile_times.md next to this file; rows of other devices are kept.
"""

import json
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro
from accelerator_cycles import milliseconds
from shapes import QWEN_0_6B

sys.path.append(str(Path(__file__).resolve().parents[1]))  # experiments/, which contains lab
import rljax
from lab.rows import made_on
from rljax.parallel import make_mesh
from rljax.programs.compiled_sampling import compile_sampling
from rljax.programs.compiled_updates import policy_update
from rljax.programs.topology import topology_of

HERE = Path(__file__).resolve().parent
CONFIG = rljax.TrainConfig.flat(
    algorithm="grpo",
    algorithm_options={"beta": 0.0},
    prompts=8,
    group_size=8,
    max_prompt_tokens=512,
    max_response_tokens=512,
    microbatch_rows=16,
    dtype="bfloat16",
    remat="full",
)
ROWS = 64
"""Rows that are decoded at once."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of the measurement."""

    topologies: tuple[str, ...] = ("v5e:2x2",)
    """Devices to compile for, as for `rljax plan --topology`; one device of each is used."""
    layers: tuple[int, ...] = (4, 8, 28)
    """Numbers of layers."""
    row: tuple[str, int, bool] | None = None
    """Measure this row alone: topology, layers, whether they are scanned."""


def measure(topology: str, layers: int, scanned: bool) -> dict[str, Any]:
    """Compile an update, and the programs that sample."""
    found = topology_of(topology)
    shape = replace(QWEN_0_6B, layers=layers, scan_layers=scanned, remat="full", compute_dtype="bfloat16")
    mesh = make_mesh(1, 1, devices=found.devices[:1])
    start = time.perf_counter()
    update = policy_update(CONFIG, shape, mesh, CONFIG.data.max_prompt_tokens)
    updated = time.perf_counter()
    compile_sampling(CONFIG, shape, mesh, CONFIG.data.max_prompt_tokens, ROWS)
    row = {
        "topology": topology,
        "compiler": found.compiler,
        "layers": layers,
        "scanned": scanned,
        "update_seconds": round(updated - start, 1),
        "sampling_seconds": round(time.perf_counter() - updated, 1),
        "temporaries_GB": round(update.memory_analysis().temp_size_in_bytes / 1e9, 2),
    }
    return row if found.kind.startswith("h") else row | {"estimate_ms": round(milliseconds(update))}


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows in Markdown, each number of layers on one line."""
    lines = [
        f"`python experiments/benchmarks/compile_times.py` ({made_on()}): programs at the widths of Qwen3-0.6B, compiled for one "
        "device, layer by layer / as a loop.",
        "",
        "| compiler | layers | update, seconds | sampling, seconds | temporaries of the update, GB | its estimated time, ms |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    keys = dict.fromkeys((row["compiler"], row["layers"]) for row in rows)
    for compiler, layers in keys:
        both = {row["scanned"]: row for row in rows if (row["compiler"], row["layers"]) == (compiler, layers)}
        cells = [
            " / ".join(str(both[scanned].get(name, "-")) if scanned in both else "-" for scanned in (False, True))
            for name in ("update_seconds", "sampling_seconds", "temporaries_GB", "estimate_ms")
        ]
        lines.append(f"| {compiler} | {layers} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main(arguments: Arguments) -> None:
    """Measure each row in its own process, and write the results."""
    if arguments.row is not None:
        print(json.dumps(measure(*arguments.row)))
        return
    wanted = [(layers, scanned) for layers in arguments.layers for scanned in (False, True)]
    file = HERE / "compile_times.json"
    rows = (
        [row for row in json.loads(file.read_text(encoding="utf-8")) if row["topology"] not in arguments.topologies]
        if file.exists()
        else []
    )
    for topology in arguments.topologies:
        for layers, scanned in wanted:
            command = [sys.executable, __file__, "--row", topology, str(layers), str(scanned)]
            rows.append(
                json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
            )
            print(rows[-1], flush=True)
            file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            (HERE / "compile_times.md").write_text(table(rows), encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
