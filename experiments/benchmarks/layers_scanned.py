"""Layers in a Python loop, as in rljax, compared with `lax.scan` over stacked parameters: compile time and run time.

    python experiments/benchmarks/layers_scanned.py        (about five minutes on two CPU cores)

Both forms run the same layers and compute the same results. Two programs are measured: one computes a gradient over 16
rows of 128 tokens; the other decodes 16 tokens for each of 16 rows, with a cache of 256 slots. A round runs one form and
then the other in one process, so a busy machine slows both; the ratio of a round is the loop's time divided by the
scan's. Tracing counts as compilation, and no compiled program is read from a cache.

Writes layers_scanned.json and layers_scanned.md next to this file.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from flax import nnx
from jax import Array

sys.path.append(str(Path(__file__).resolve().parents[1]))  # experiments/, which contains lab

from lab.rows import made_on, write_rows
from rljax.models import Params, TransformerConfig, init_params
from rljax.models.transformer import Cache, Layer, LayerCache, RotaryAngles, rotary_angles

HERE = Path(__file__).resolve().parent
ROWS, TOKENS, SLOTS, STEPS = 16, 128, 256, 16


class SharedInputs(NamedTuple):
    """Inputs that all layers share."""

    angles: RotaryAngles
    """Rotations at the positions of the tokens."""
    segments: Array
    """Index of the sequence to which each slot belongs."""
    slot: Array | int = 0
    """First slot to write."""


@dataclass
class Arguments:
    """The options of the measurement."""

    depths: tuple[int, ...] = (4, 12, 24, 36)
    """Numbers of layers."""
    width: int = 64
    """Width of the residual stream; each head has 16 features."""
    rounds: int = 9
    """Measured rounds."""


def layer_of(config: TransformerConfig, params: Params) -> Layer:
    """Build one layer with its parameters."""
    graph = nnx.split(nnx.eval_shape(lambda: Layer(config, rngs=nnx.Rngs(0))))[0]
    return nnx.merge(graph, params)


def run_loop(
    config: TransformerConfig, layers: Params, x: Array, rest: SharedInputs, cache: Cache | None
) -> tuple[Array, Any]:
    """Run the layers in a loop; each has its own parameters and cache."""
    caches = []
    for index in range(config.layers):
        layer = layer_of(config, layers[index])
        x, written = layer(x, rest.angles, rest.segments, None if cache is None else cache[index], rest.slot)
        caches.append(written)
    return x, tuple(caches)


def run_scan(
    config: TransformerConfig, layers: Params, x: Array, rest: SharedInputs, cache: LayerCache | None
) -> tuple[Array, Any]:
    """Scan one layer over stacked parameters and caches, whose leading axis is the layer."""

    def step(x: Array, own: tuple[Params, LayerCache | None]) -> tuple[Array, LayerCache | None]:
        x, written = layer_of(config, own[0])(x, rest.angles, rest.segments, own[1], rest.slot)
        return x, None if cache is None else written

    return jax.lax.scan(step, x, (layers, cache))


def build_programs(config: TransformerConfig, forward: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Build two programs: one computes the gradient with respect to the parameters, the other decodes."""

    def gradient(layers: Params, x: Array) -> Params:
        positions = jnp.broadcast_to(jnp.arange(TOKENS), (ROWS, TOKENS))
        rest = SharedInputs(rotary_angles(positions, config), jnp.ones((ROWS, TOKENS), jnp.int32))
        return jax.grad(lambda layers: jnp.square(forward(config, layers, x, rest, None)[0]).mean())(layers)

    def decode(layers: Params, x: Array, cache: Any) -> Any:
        def step(count: Array, carried: tuple[Array, Any]) -> tuple[Array, Any]:
            slot = TOKENS + count
            angles = rotary_angles(jnp.broadcast_to(slot, (ROWS, 1)), config)
            return forward(
                config, layers, carried[0], SharedInputs(angles, jnp.ones((ROWS, SLOTS), jnp.int32), slot), carried[1]
            )

        return jax.lax.fori_loop(0, STEPS, step, (x[:, :1], cache))

    return {"gradient": gradient, "decode": decode}


def measure(layers: int, width: int, rounds: int) -> list[dict[str, Any]]:
    """Compile and time both forms at one depth."""
    heads = width // 16
    config = TransformerConfig(64, width, layers, heads, heads, head_dim=16, hidden=4 * width)
    params = init_params(config, jax.random.key(0))["layers"]
    x = jax.random.normal(jax.random.key(1), (ROWS, TOKENS, width))
    one = LayerCache(jnp.zeros((ROWS, heads, 16, SLOTS)), jnp.zeros((ROWS, heads, SLOTS, 16)))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(params[index] for index in range(layers)))
    inputs = {
        "loop": (run_loop, params, (one,) * layers),
        "scan": (run_scan, stacked, jax.tree.map(lambda leaf: jnp.stack([leaf] * layers), one)),
    }
    rows = []
    for name in ("gradient", "decode"):
        compiled, compile_times, results = {}, {}, {}
        for form, (forward, weights, cache) in inputs.items():
            arguments = (weights, x) if name == "gradient" else (weights, x, cache)
            begin = time.perf_counter()
            program = jax.jit(build_programs(config, forward)[name]).lower(*arguments).compile()
            compile_times[form] = time.perf_counter() - begin
            compiled[form] = (program, arguments)
            results[form] = jax.block_until_ready(program(*arguments))
        assert_equal_results(name, results, layers)
        times: dict[str, list[float]] = {form: [] for form in inputs}
        for _ in range(rounds):
            for form, (program, arguments) in compiled.items():
                begin = time.perf_counter()
                jax.block_until_ready(program(*arguments))
                times[form].append(time.perf_counter() - begin)
        ratios = [loop / scan for loop, scan in zip(times["loop"], times["scan"], strict=True)]
        rows.append(
            {
                "work": name,
                "layers": layers,
                **{f"compile_{form}_s": round(compile_times[form], 2) for form in inputs},
                **{f"{form}_ms": round(1e3 * statistics.median(times[form]), 1) for form in inputs},
                "ratio": [round(value, 2) for value in (statistics.median(ratios), min(ratios), max(ratios))],
            }
        )
    return rows


def assert_equal_results(name: str, results: dict[str, Any], layers: int) -> None:
    """Assert that both forms give the same results."""
    if name == "decode":
        pairs = [(results["loop"][0], results["scan"][0])]
    else:
        own = results["loop"]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(own[index] for index in range(layers)))
        pairs = list(zip(jax.tree.leaves(stacked), jax.tree.leaves(results["scan"]), strict=True))
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5 * float(np.abs(one).max()) + 1e-9)


def format_page(rows: list[dict[str, Any]], width: int) -> str:
    """Format the table of the results."""
    lines = [
        f"Made by `experiments/benchmarks/layers_scanned.py` on {made_on()}; layers of width {width}.",
        "",
        "| work | layers | compile, loop | compile, scan | run, loop | run, scan | loop / scan | lowest to highest |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        ratio, low, high = row["ratio"]
        compilation = f"{row['compile_loop_s']:.1f} s | {row['compile_scan_s']:.1f} s"
        runs = f"{row['loop_ms']:.0f} ms | {row['scan_ms']:.0f} ms"
        lines.append(
            f"| {row['work']} | {row['layers']} | {compilation} | {runs} | {ratio:.2f} | {low:.2f} to {high:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure every depth, and write both files."""
    arguments = tyro.cli(Arguments, description=__doc__)
    jax.config.update("jax_enable_compilation_cache", False)
    rows: list[dict[str, Any]] = []
    for layers in arguments.depths:
        rows += measure(layers, arguments.width, arguments.rounds)
        write_rows(HERE / "layers_scanned.json", rows)
        print(rows[-2], rows[-1], sep="\n", flush=True)
    (HERE / "layers_scanned.md").write_text(format_page(rows, arguments.width), encoding="utf-8")


if __name__ == "__main__":
    main()
