"""What `--scan-layers` does to an update: seconds to compile, memory, and on a TPU the compiler's estimate of the time.

    python experiments/benchmarks/scanned_updates.py                            (TPU v5e; needs the package libtpu)
    python experiments/benchmarks/scanned_updates.py --topologies v5e:2x2 h100x1       (needs JAX's CUDA plugin as well)

The devices need not be present: programs are compiled, not run. Each row is a separate process. The layers have the widths of
Qwen3-0.6B; the update is GRPO's on 64 responses of 512 tokens after 512 of the prompt, in micro-batches of 16 rows, in bfloat16,
with full recomputation. A second of a v5e has 1.5e9 cycles. Writes scanned_updates.json and scanned_updates.md next to this file.
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


@dataclass(frozen=True)
class Arguments:
    """Arguments of the measurement."""

    topologies: tuple[str, ...] = ("v5e:2x2",)
    """Devices to compile for, as for `rljax plan --topology`; one device of each is used."""
    layers: tuple[int, ...] = (4, 8)
    """Numbers of layers."""
    deepest: int = 28
    """Number of layers that is compiled only as a loop."""
    row: tuple[str, int, bool] | None = None
    """Measure this row alone: topology, layers, whether they are scanned."""


def measure(topology: str, layers: int, scanned: bool) -> dict[str, Any]:
    """Compile one update."""
    found = topology_of(topology)
    shape = replace(QWEN_0_6B, layers=layers, scan_layers=scanned, remat="full", compute_dtype="bfloat16")
    start = time.perf_counter()
    program = policy_update(CONFIG, shape, make_mesh(1, 1, devices=found.devices[:1]), CONFIG.data.max_prompt_tokens)
    seconds = time.perf_counter() - start
    memory = program.memory_analysis()
    row = {
        "topology": topology,
        "compiler": found.compiler,
        "layers": layers,
        "scanned": scanned,
        "seconds": round(seconds, 1),
    }
    row |= {"temporaries_GB": round(memory.temp_size_in_bytes / 1e9, 2)}
    return row if found.kind.startswith("h") else row | {"estimate_ms": round(milliseconds(program))}


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows in Markdown, each number of layers on one line."""
    lines = [
        f"`python experiments/benchmarks/scanned_updates.py` ({made_on()}): one update at the widths of Qwen3-0.6B, compiled for "
        "one device, layer by layer / as a loop.",
        "",
        "| compiler | layers | seconds to compile | temporaries, GB | estimated time, ms |",
        "| --- | --- | --- | --- | --- |",
    ]
    keys = dict.fromkeys((row["compiler"], row["layers"]) for row in rows)
    for compiler, layers in keys:
        both = {row["scanned"]: row for row in rows if (row["compiler"], row["layers"]) == (compiler, layers)}
        cells = [
            " / ".join(str(both[scanned].get(name, "-")) if scanned in both else "-" for scanned in (False, True))
            for name in ("seconds", "temporaries_GB", "estimate_ms")
        ]
        lines.append(f"| {compiler} | {layers} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main(arguments: Arguments) -> None:
    """Measure each row in its own process, and write the results."""
    if arguments.row is not None:
        print(json.dumps(measure(*arguments.row)))
        return
    wanted = [(layers, scanned) for layers in arguments.layers for scanned in (False, True)] + [(arguments.deepest, True)]
    rows = []
    for topology in arguments.topologies:
        for layers, scanned in wanted:
            command = [sys.executable, __file__, "--row", topology, str(layers), str(scanned)]
            rows.append(
                json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
            )
            print(rows[-1], flush=True)
            (HERE / "scanned_updates.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            (HERE / "scanned_updates.md").write_text(table(rows), encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
