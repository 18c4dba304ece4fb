"""Number of kernels per layer that an H100 runs to decode one token of every row, according to its compiler.

    python experiments/benchmarks/decode_kernels.py        (needs JAX's CUDA plugin; no GPU)

The decode of 64 rows, each with 512 prompt tokens and 512 response tokens, is compiled with 3 and with 5 layers. Half of
the difference is the number per layer; all other kernels belong to the embedding, the head and the sampling of the token.
Kernels are not tuned without a GPU, so a program compiled on a GPU may split or fuse a few of them. Writes
decode_kernels.json and decode_kernels.md next to this file; "before" is the program that selected the visible scores in a
separate kernel.
"""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from compile_times import ROWS
from shapes import QWEN_0_6B, SMOLLM2_135M
from what_fits import CASES, PROMPT, config_of

sys.path.append(str(Path(__file__).resolve().parents[1]))  # experiments/, which contains lab
from lab.rows import made_on
from rljax.parallel import make_mesh
from rljax.programs.compiled_sampling import compile_sampling
from rljax.programs.topology import topology_of

HERE = Path(__file__).resolve().parent
TOPOLOGY, FEWER, MORE = "h100x1", 3, 5
MODELS = {"Qwen3-0.6B, bfloat16": QWEN_0_6B, "SmolLM2-135M, float32": SMOLLM2_135M}
BEFORE = {"Qwen3-0.6B, bfloat16": (17, 19), "SmolLM2-135M, float32": (15, 18)}
"""Kernels per layer, and kernels outside the layers, in the earlier program."""
WITHOUT_KERNEL = {"parameter", "get-tuple-element", "tuple", "bitcast", "constant"}
"""Operations of a program that run no kernel."""


def count_kernels(program: str) -> int:
    """Count the kernels in the body of the largest loop of a compiled program.

    Example:
        >>> count_kernels('''
        ... %step (x: f32[2]) -> f32[2] {
        ...   %x = f32[2]{0} parameter(0)
        ...   ROOT %sum = f32[2]{0} fusion(%x), kind=kLoop, calls=%add
        ... }
        ... ENTRY %main (x: f32[2]) -> f32[2] {
        ...   ROOT %loop = f32[2]{0} while(%x), condition=%is_left, body=%step
        ... }''')
        1
    """
    bodies = []
    for name in re.findall(r" while\(.*?body=%?([\w.\-]+)", program):
        found = re.search(rf"^%?{re.escape(name)} \([^\n]*\{{$(.*?)^\}}", program, re.MULTILINE | re.DOTALL)
        lines = [] if found is None else found[1].splitlines()
        matches = (re.match(r"\s+(?:ROOT )?%?[\w.\-]+ = (?:\(.*?\)|\S+) ([\w\-]+)\(", line) for line in lines)
        bodies.append(sum(each is not None and each[1] not in WITHOUT_KERNEL for each in matches))
    return max(bodies)


def measure() -> list[dict[str, Any]]:
    """Compile both models at both depths."""
    found, rows = topology_of(TOPOLOGY), []
    mesh, config = make_mesh(1, 1, devices=found.devices), config_of(CASES["0.6b-h100x1"])
    for name, shape in MODELS.items():
        counts = []
        for layers in (FEWER, MORE):
            programs, _ = compile_sampling(config, replace(shape, layers=layers), mesh, PROMPT, ROWS)
            counts.append(count_kernels(str(programs.decode.as_text())))
        per_layer = (counts[1] - counts[0]) / (MORE - FEWER)
        now = {"per_layer": per_layer, "others": counts[0] - FEWER * per_layer}
        before = dict(zip(now, BEFORE[name], strict=True))
        rows.append({"model": name, "layers": shape.layers, "before": before, "now": now, "compiler": found.compiler})
        print(rows[-1], flush=True)
    return rows


def format_table(rows: list[dict[str, Any]]) -> str:
    """Format the rows in Markdown."""
    lines = [
        f"`python experiments/benchmarks/decode_kernels.py` ({made_on()}): kernels for one more token of {ROWS} rows on an "
        f"H100, by {rows[0]['compiler']}; nothing ran.",
        "",
        "| model | layers | per layer, before | now | for the rest of the token | for a token, before | now |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        before, now = row["before"], row["now"]
        totals = [each["others"] + row["layers"] * each["per_layer"] for each in (before, now)]
        cells = (row["layers"], before["per_layer"], now["per_layer"], now["others"], *totals)
        lines.append(f"| {row['model']} | " + " | ".join(f"{cell:g}" for cell in cells) + " |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure, and write both files."""
    jax.config.update("jax_platforms", "cpu")  # the GPU is absent
    rows = measure()
    (HERE / "decode_kernels.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (HERE / "decode_kernels.md").write_text(format_table(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
