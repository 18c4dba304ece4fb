"""Time on a TPU v5e of the computations over the full vocabulary in a step, from the compiler's cycle estimates.

    python experiments/benchmarks/accelerator_cycles.py

Needs the package libtpu of `pip install 'jax[tpu]'`, but no TPU: programs are compiled, not run. The compiler estimates no
cycles for some operations, such as sorts; none of these programs has one. The times assume a clock rate of 1.5 GHz. Each
computation is compiled in its earlier and in its current form.

Writes accelerator_cycles.json and accelerator_cycles.md next to this file.
"""

import json
import re
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import SingleDeviceSharding
from shapes import QWEN_0_6B

from rljax.models.token_scores import default_chunk, token_scores
from rljax.parallel.collectives import count_line_runs
from rljax.programs.topology import topology_of
from rljax.rollout import top_k_and_top_p
from rljax.rollout.top_k_and_top_p import keep_top_k, keep_top_p

HERE = Path(__file__).resolve().parent
TOPOLOGY, HERTZ = "v5e:2x2", 1.5e9
ROWS, TOKENS = 64, (2_048, 8_192)
"""Number of rows that sample a token at once, and numbers of tokens in an update."""
OLD_DIGIT_BITS, OLD_CHUNK = 1, 263
"""Earlier settings: bits per pass of top-k and top-p, and tokens per chunk of the head."""
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


def milliseconds(program: jax.stages.Compiled) -> float:
    """Sum the estimated cycles of a program's operations, and convert them to milliseconds."""
    counted = ((line, times) for line, times in count_line_runs(program.as_text() or ""))
    return 1e3 / HERTZ * sum(times * int(found[1]) for line, times in counted if (found := _CYCLES.search(line)))


def truncate(logits: Array, *, keep: Callable[..., Array], digit_bits: int) -> Array:
    """Truncate logits with `digit_bits` bits per pass."""
    current, top_k_and_top_p.DIGIT_BITS = top_k_and_top_p.DIGIT_BITS, digit_bits
    try:
        return keep(logits)
    finally:
        top_k_and_top_p.DIGIT_BITS = current


def head_loss(hidden: Array, head: Array, tokens: Array, *, chunk: int) -> Array:
    """Sum the log-probabilities of tokens."""
    return token_scores(hidden, head, tokens, chunk=chunk)[0].sum()


def measure() -> list[dict[str, Any]]:
    """Compile all programs for one device, in their earlier and their current form."""
    sharding = SingleDeviceSharding(topology_of(TOPOLOGY).devices[0])
    size, width, rows = QWEN_0_6B.vocab_size, QWEN_0_6B.width, []

    def shape(*sizes: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=sharding)

    def add(part: str, before: Any, now: Any, *shapes: jax.ShapeDtypeStruct) -> None:
        row: dict[str, Any] = {"part": part}
        for when, function in (("before", before), ("now", now)):
            program = jax.jit(function).lower(*shapes).compile()
            memory = program.memory_analysis()
            row[when] = {"ms": round(milliseconds(program), 2), "temporaries": memory.temp_size_in_bytes}
        rows.append(row)
        print(row, flush=True)

    for name, keep in (("top-p 0.9", partial(keep_top_p, p=0.9)), ("top-k 50", partial(keep_top_k, k=50))):
        old, new = (partial(truncate, keep=keep, digit_bits=bits) for bits in (OLD_DIGIT_BITS, top_k_and_top_p.DIGIT_BITS))
        add(f"{name}, {ROWS} rows", old, new, shape(ROWS, size))
    for count in TOKENS:
        shapes = shape(1, count, width, dtype=jnp.bfloat16), shape(size, width), shape(1, count, dtype=jnp.int32)
        chunks = OLD_CHUNK, default_chunk(size, "tpu")
        old, new = (jax.grad(partial(head_loss, chunk=chunk), argnums=(0, 1)) for chunk in chunks)
        add(f"head and its gradient, {count:,} tokens", old, new, *shapes)
    return rows


def format_table(content: dict[str, Any]) -> str:
    """Format the results in Markdown."""
    lines = [
        "# Parts of a step that read the vocabulary, on a TPU v5e",
        "",
        f"`python experiments/benchmarks/accelerator_cycles.py` wrote this page on {content['date']}, with",
        f"{content['compiler']} and JAX {content['jax']}. The times are the compiler's estimated cycles at 1.5 GHz; nothing ran.",
        f"{QWEN_0_6B.vocab_size:,} logits, width {QWEN_0_6B.width:,}. Before: 32 passes of one comparison, and chunks of",
        f"{OLD_CHUNK} tokens. Top-p took 6.3 ms when each pass also read the probabilities, which it now computes.",
        "",
        "| part | before, ms | now, ms | temporaries before, GB | now |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in content["rows"]:
        before, now = row["before"], row["now"]
        sizes = f"{before['temporaries'] / 1e9:.2f} | {now['temporaries'] / 1e9:.2f}"
        lines.append(f"| {row['part']} | {before['ms']:.1f} | {now['ms']:.1f} | {sizes} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure, and write both files."""
    jax.config.update("jax_platforms", "cpu")  # the TPU is absent
    compiler = topology_of(TOPOLOGY).compiler
    content = {"date": date.today().isoformat(), "compiler": compiler, "jax": jax.__version__, "rows": measure()}
    (HERE / "accelerator_cycles.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (HERE / "accelerator_cycles.md").write_text(format_table(content), encoding="utf-8")


if __name__ == "__main__":
    main()
