"""Compile time and size of a step's programs for a TPU and a GPU, layer by layer and with `--scan-layers`.

    python experiments/benchmarks/compile_times.py --topologies v5e:2x2              (needs the package libtpu)
    python experiments/benchmarks/compile_times.py --topologies v5e:2x2 h100x1       (needs JAX's CUDA plugin as well)

The devices need not be present: programs are compiled, not run, and a GPU's kernels are not tuned. Each row is a separate
process, and its times are the CPU seconds of that process, which grow less than wall time if other work shares the machine.
Rows that are already in compile_times.json are not measured again. Rows marked "wall time" were measured by an earlier form
of this script, on one device, with blockwise attention and micro-batches of 16 rows.

The layers have the widths of Qwen3-0.6B. The step is the one in `what_fits.py`: GRPO on 64 responses of 512 tokens after
prompts of 512 tokens, in bfloat16 with full recomputation; `v5e:2x2` with `--fsdp 4 --attention splash`, `h100x1` with
`--attention cudnn`. With `--scan-layers`, updates and the processing of prompts loop over the layers; decoding does not. The
estimated times assume the v5e's clock rate of 1.5 GHz. Writes compile_times.json and compile_times.md next to this file.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import jax
import tyro
from accelerator_cycles import milliseconds
from shapes import QWEN_0_6B
from what_fits import CASES, PROMPT, config_of

sys.path.append(str(Path(__file__).resolve().parents[1]))  # experiments/, which contains lab
from lab.rows import made_on
from rljax.parallel import make_mesh
from rljax.programs.compiled_sampling import compile_sampling
from rljax.programs.compiled_updates import compile_policy_update
from rljax.programs.topology import topology_of

HERE = Path(__file__).resolve().parent
STEPS = {"v5e:2x2": CASES["0.6b-v5e"], "h100x1": CASES["0.6b-h100x1"]}
"""Devices, and the step that is compiled for them."""
ROWS = 64
"""Rows that are decoded at once."""


PROGRAMS = ("update", "sampling")
"""What is compiled: an update, and the programs that sample."""
COLUMNS = {
    "update": ("seconds", "MB", "temporaries_GB", "estimate_ms"),
    "sampling": ("seconds", "MB"),
}
"""Program -> its figures in the table."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of the measurement."""

    topologies: tuple[str, ...] = tuple(STEPS)
    """Devices to compile for: v5e:2x2, h100x1."""
    layers: tuple[int, ...] = (4, 8, 28, 36, 64)
    """Numbers of layers."""
    programs: tuple[Literal["update", "sampling"], ...] = PROGRAMS
    """What to compile."""
    row: tuple[str, str, int, bool] | None = None
    """Measure this row alone: topology, program, layers, whether they are scanned."""


def cpu_seconds() -> float:
    """Return the CPU seconds of all threads of this process and of the processes that it waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def program_size(*programs: Any) -> float:
    """Return the size of the serialized programs, in megabytes."""
    return round(sum(len(program.runtime_executable().serialize()) for program in programs) / 1e6, 1)


def measure(topology: str, program: str, layers: int, scanned: bool) -> dict[str, Any]:
    """Compile an update, or the programs that sample."""
    jax.config.update("jax_platforms", "cpu")  # the devices are absent
    found, config = topology_of(topology), config_of(STEPS[topology])
    shape = replace(QWEN_0_6B, layers=layers, scan_layers=scanned, attention=config.model.attention)
    mesh, start = make_mesh(1, config.devices.fsdp, devices=found.devices), cpu_seconds()
    row = {"topology": topology, "program": program, "layers": layers, "scanned": scanned, "compiler": found.compiler}
    if program == "sampling":
        programs, _ = compile_sampling(config, shape, mesh, PROMPT, ROWS)
        return row | {"seconds": round(cpu_seconds() - start), "MB": program_size(*programs)}
    update = compile_policy_update(config, shape, mesh, PROMPT)
    row |= {"seconds": round(cpu_seconds() - start), "MB": program_size(update)}
    row |= {"temporaries_GB": round(update.memory_analysis().temp_size_in_bytes / 1e9, 2)}
    return row if found.kind.startswith("h") else row | {"estimate_ms": round(milliseconds(update))}


def row_key(row: dict[str, Any]) -> tuple[str, str, int, bool]:
    """Return the key that identifies a row."""
    return row["topology"], row["program"], row["layers"], row["scanned"]


def format_table(rows: list[dict[str, Any]]) -> str:
    """Format the rows in Markdown, each number of layers on one line."""
    lines = [
        f"`python experiments/benchmarks/compile_times.py` ({made_on()}): CPU seconds to compile programs at the widths of "
        "Qwen3-0.6B, on a busy machine, and megabytes of the compiled programs; layer by layer / as a loop. 'Wall time': with "
        "blockwise attention and micro-batches of 16 rows.",
        "",
        "| devices, compiler | layers | update, seconds | MB | temporaries, GB | estimated time, ms | sampling, seconds | MB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    found = {row_key(row): row for row in rows}
    for topology, compiler, layers in sorted({(row["topology"], row["compiler"], row["layers"]) for row in rows}):
        cells = [
            " / ".join(str(found.get((topology, program, layers, each), {}).get(name, "-")) for each in (False, True))
            for program in PROGRAMS
            for name in COLUMNS[program]
        ]
        lines.append(f"| {topology}, {compiler} | {layers} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main(arguments: Arguments) -> None:
    """Measure each row in its own process, and write the results."""
    if arguments.row is not None:
        print(json.dumps(measure(*arguments.row)))
        return
    file = HERE / "compile_times.json"
    rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    measured, scanning = {row_key(row) for row in rows}, (True, False)
    for wanted in product(arguments.topologies, arguments.programs, arguments.layers, scanning):
        if wanted in measured:
            continue
        command = [sys.executable, __file__, "--row", *map(str, wanted)]
        rows.append(
            json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
        )
        print(rows[-1], flush=True)
        file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        (HERE / "compile_times.md").write_text(format_table(rows), encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
