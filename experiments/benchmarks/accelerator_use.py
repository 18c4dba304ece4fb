"""How much of an accelerator rljax uses, with random weights in bfloat16 at the shapes of Qwen3-0.6B and Qwen3-1.7B.

    python experiments/benchmarks/accelerator_use.py                                  (on one GPU with 80 GB)
    python experiments/benchmarks/accelerator_use.py --attention blockwise cudnn      (training cases with both programs)
    python experiments/benchmarks/accelerator_use.py --peers trl --trace /tmp/trace
    python experiments/benchmarks/accelerator_use.py --shapes toy --platform cpu --peak 1e12 1e11 --out /tmp    (a trial run)

| case | work | what is reported |
| --- | --- | --- |
| `train_16k`, `train_65k` | an update, 8 rows at once: 8 or 32 responses of 1,536 tokens to prompts of 512 tokens | tokens/s, MFU |
| `train_65k_1`, `train_65k_16` | the same, 1 or 16 rows at once | tokens/s, MFU |
| `decode_500` | 128 tokens for each of 500 prompts of 512 tokens, 256 rows at once | tokens/s of the responses |
| `decode_64` | 64 prompts at once; the time to the first token is subtracted | tokens/s, share of the memory's bandwidth |
| `rl_step` | a complete step: 64 responses of 512 tokens; with `--peers trl` also TRL's | seconds, ratio |

MFU is 3 x forward operations / seconds / peak operations per second: the backward pass counts as two forward passes,
recomputation does not count, and each token counts as attending to the mean number of earlier tokens. The share of the
bandwidth is bytes read per token x tokens / seconds / peak bytes per second, where the bytes are those of the weights and,
on average, of the keys and values of the tokens so far. Each case is a separate process. Libraries on the
same device run one after the other. To let several runs of this script compile at once but measure one after the other,
pass a separate `--out` to each and the same `--turns` to all.

Writes accelerator_use.json and accelerator_use.md next to this file. Existing rows that are not measured again are kept if
they come from this device and these versions.
"""

import fcntl
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import tyro
import workloads as work
from report import describe_machine
from run import side, write_random_model
from shapes import QWEN_0_6B, QWEN_1_7B, TOY
from virtual_environments import environment_variables, own_versions, package_versions, python_of

sys.path.append(str(Path(__file__).resolve().parents[1]))  # experiments/, which contains lab

from lab.rows import made_on
from rljax.models import TransformerConfig, abstract_params, count_parameters
from rljax.programs.roofline import DEVICES, Device, forward_flops

HERE = Path(__file__).resolve().parent
SHAPES = {"qwen3-0.6b": QWEN_0_6B, "qwen3-1.7b": QWEN_1_7B, "toy": TOY}
PEAK_KEYS = {
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H200": "h200",
    "NVIDIA B200": "b200",
    "TPU v5 lite": "v5e",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
}
"""JAX's name for a device -> the key of its peak figures in `rljax.programs.roofline.DEVICES`."""
TRAINED = work.Step(prompts=1, group=8, prompt_tokens=512, trained=1536, microbatch=8, slots=64, on_cpu=False)
DECODED = work.Step(prompts=500, group=1, prompt_tokens=512, limit=128, slots=256, on_cpu=False)
STEPS = {
    "train_16k": TRAINED,
    "train_65k": TRAINED._replace(prompts=4),
    "train_65k_1": TRAINED._replace(prompts=4, microbatch=1),
    "train_65k_16": TRAINED._replace(prompts=4, microbatch=16),
    "decode_500": DECODED,
    "decode_64": DECODED._replace(prompts=64, slots=64),
    "rl_step": work.Step(prompts=8, group=8, prompt_tokens=512, limit=512, microbatch=16, slots=64, on_cpu=False),
}
"""Sizes of each case."""
TOY_STEP = work.Step(prompts=2, group=4, prompt_tokens=8, limit=64, trained=24, microbatch=4, slots=8, on_cpu=False)
"""Sizes of all cases for the shape `toy`."""
TARGETS = {
    "train_16k": ("mfu", 0.25),
    "train_65k": ("mfu", 0.40),
    "decode_500": ("tokens_per_second", 12_100),
    "decode_64": ("bandwidth_share", 0.60),
}
"""Case -> its metric with a target, and the target."""
HEADINGS = {
    "seconds": "seconds",
    "tokens_per_second": "tokens/s",
    "mfu": "MFU",
    "bandwidth_share": "share of the bandwidth",
    "ratio": "times faster than TRL",
}
"""Metric -> its heading in the table."""
WARM = 2
"""Number of warm-up rounds before the measured rounds."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of the measurement."""

    shapes: tuple[str, ...] = ("qwen3-0.6b", "qwen3-1.7b")
    """Models: qwen3-0.6b, qwen3-1.7b, toy."""
    cases: tuple[str, ...] = tuple(STEPS)
    """Cases to measure; see the table above."""
    attention: tuple[Literal["blockwise", "dense", "cudnn", "splash"], ...] = ("blockwise",)
    """Attention implementations for complete sequences; training cases are measured with each."""
    scan_layers: bool = False
    """Compile the layers of an update once, as a loop; adds `scanned` to the rows' names."""
    remat: Literal["none", "full", "dots", "dots_no_batch"] = "full"
    """What an update's backward pass recomputes, as in `rljax train`; a value other than `full` is added to the rows' names."""
    platform: Literal["cuda", "tpu", "cpu"] = "cuda"
    """JAX's platform."""
    peers: tuple[Literal["trl"], ...] = ()
    """Libraries whose complete step is also measured."""
    rounds: int = 5
    """Measured rounds of each case, after two warm-up rounds."""
    peak: tuple[float, float] | None = None
    """Peak bfloat16 operations and memory bytes per second, for a device that is not in the table."""
    trace: Path | None = None
    """Folder for a profiler's trace of a round of each case."""
    turns: Path | None = None
    """Lock file: runs of this script that share it measure one at a time, each after compiling."""
    work: Path = field(default_factory=lambda: Path.home() / ".cache" / "rljax" / "benchmarks")
    """Folder for the other libraries' environments."""
    out: Path = HERE
    """Folder for the results."""


def training_flops(shape: TransformerConfig, step: work.Step) -> float:
    """Count the operations of an update: three forward passes, in which each token attends to the earlier tokens."""
    rows, tokens = step.prompts * step.group, step.prompt_tokens + step.trained
    return 3 * forward_flops(shape, rows * tokens, (tokens + 1) / 2, scored=rows * step.trained)


def decoding_bytes(shape: TransformerConfig, rows: int, tokens: float) -> float:
    """Count the bytes to read for one more token of each row: the weights, and the keys and values of the `tokens` so far.

    If the embedding is not also the head, only the rows of the current tokens are read from it.
    """
    itemsize = jnp.dtype(shape.compute_dtype).itemsize
    weights = count_parameters(abstract_params(shape))
    unread = 0 if shape.tied_head else (shape.vocab_size - rows) * shape.width
    cache = 2 * shape.layers * shape.kv_heads * shape.head_dim * rows * tokens
    return itemsize * (weights - unread + cache)


def peak_of(kind: str, peak: tuple[float, float] | None) -> Device:
    """Return the peak figures of a device.

    Raises:
        SystemExit: the device is unknown, and no figures are passed.
    """
    if peak is not None:
        return Device(*peak, link=0.0, memory=0)
    if kind not in PEAK_KEYS:
        raise SystemExit(f"{kind!r} is not in the table of peak figures ({', '.join(PEAK_KEYS)}); pass --peak FLOPS BYTES.")
    return DEVICES[PEAK_KEYS[kind]]


def metrics_of(case: str, shape: TransformerConfig, step: work.Step, seconds: float, device: Device) -> dict[str, float]:
    """Compute the metrics of a case from the seconds of a round."""
    rows = step.prompts * step.group
    if case.startswith("train"):
        tokens = rows * (step.prompt_tokens + step.trained)
        flops = training_flops(shape, step)
        return {"tokens_per_second": tokens / seconds, "mfu": flops / seconds / device.flops}
    if case == "rl_step":
        return {"tokens_per_second": rows * (step.prompt_tokens + step.limit) / seconds}
    found = {"tokens_per_second": rows * step.limit / seconds}
    if case == "decode_64":
        sampled = step.limit - 1
        moved = sampled * decoding_bytes(shape, rows, step.prompt_tokens + step.limit / 2)
        found = {"tokens_per_second": rows * sampled / seconds, "bandwidth_share": moved / seconds / device.bandwidth}
    return found


@contextmanager
def measuring_lock(file: Path | None) -> Iterator[None]:
    """Hold a lock on `file`, so that only one run measures at a time; do nothing if it is None."""
    if file is None:
        yield
        return
    with file.open("a") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


class ModelBenchmark:
    """Measures the cases on one model, whose folder it writes first.

    Args:
        folder: folder to write the model to.
        name: name of the model's shape.
        arguments: arguments of the measurement.
    """

    def __init__(self, folder: Path, name: str, arguments: Arguments):
        self._folder = folder
        self._name = name
        self._arguments = arguments
        write_random_model(folder, SHAPES[name])

    def measure(self, case: str, attention: str, device: Device) -> dict[str, Any]:
        """Measure a case with an attention program."""
        shape = SHAPES[self._name]
        step = TOY_STEP if self._name == "toy" else STEPS[case]
        step = step._replace(vocabulary=shape.vocab_size, attention=attention)
        step = step._replace(scan_layers=self._arguments.scan_layers, remat=self._arguments.remat)
        name = {"t": "training_step", "d": "decode", "r": "rl_step"}[case[0]]
        trace = self._arguments.trace
        rounds = self._rounds("rljax", name, step if trace is None else step._replace(trace=str(trace / case / attention)))
        first = self._rounds("rljax", name, step._replace(limit=1)) if case == "decode_64" else [0.0]
        seconds = statistics.median(rounds) - statistics.median(first)
        if seconds <= 0:
            raise SystemExit(f"{case}: a decode took no longer than its first token; measure it with more --rounds.")
        row: dict[str, Any] = {"seconds": seconds, "rounds": rounds, "sizes": step._asdict()}
        row |= metrics_of(case, shape, step, seconds, device)
        for peer in self._arguments.peers if case == "rl_step" else ():
            theirs = self._rounds(peer, name, step)
            row |= {"peer_rounds": theirs, "ratio": statistics.median(theirs) / seconds}
        return row

    def _rounds(self, library: str, case: str, step: work.Step) -> list[float]:
        """Return the seconds of the measured rounds."""
        python = sys.executable if library == "rljax" else python_of(library, self._arguments.work)
        sizes = json.dumps(step._replace(on_cpu=self._arguments.platform == "cpu")._asdict())
        (self._folder / work.STEP_FILE).write_text(sizes, encoding="utf-8")
        with side(library, case, python, self._folder, self._arguments.platform) as opened:
            opened.round()
            with measuring_lock(self._arguments.turns):
                return [opened.round()["seconds"] for _ in range(WARM - 1 + self._arguments.rounds)][WARM - 1 :]


def cases_with_attention(arguments: Arguments) -> list[tuple[str, str]]:
    """Pair each case with each attention program; decoding cases are measured once, because they use no such program."""
    return [
        (case, attention)
        for case in arguments.cases
        for attention in (("blockwise",) if case.startswith("decode") else arguments.attention)
    ]


def suffix_of(arguments: Arguments) -> str:
    """Build the suffix of a row's name: the update's settings that differ from the defaults."""
    return (" scanned" if arguments.scan_layers else "") + ("" if arguments.remat == "full" else f" {arguments.remat}")


def device_kind(platform: str) -> str:
    """Return JAX's name of the device, from a separate process: a process that opens a GPU reserves most of the GPU's memory."""
    code = "import jax; print(jax.devices()[0].device_kind)"
    command, variables = [sys.executable, "-c", code], environment_variables("rljax", platform)
    found = subprocess.run(command, check=False, env=variables, capture_output=True, text=True)
    if found.returncode:
        raise SystemExit(f"JAX finds no device of --platform {platform}; name another platform:\n{found.stderr[-2000:]}")
    return found.stdout.strip()


def target_text(case: str, row: dict[str, Any]) -> str:
    """Format the target and whether it is reached."""
    if case not in TARGETS:
        return "-"
    name, target = TARGETS[case]
    return f"{HEADINGS[name]} ≥ {target:,g} {'✓' if row[name] >= target else 'missed'}"


def format_table(content: dict[str, Any]) -> str:
    """Format the results in Markdown."""
    lines = [
        "# rljax on an accelerator",
        "",
        f"{content['made_on']}; {content['device']}: at its peak {content['flops']:.4g} operations per second and",
        f"{content['bandwidth']:.4g} bytes per second.",
        "`python experiments/benchmarks/accelerator_use.py` writes this page and explains the cases.",
        "",
        f"| model | case | attention | {' | '.join(HEADINGS.values())} | target |",
        f"| --- | --- | --- |{' ---: |' * len(HEADINGS)} --- |",
    ]
    for key, row in content["rows"].items():
        shape, case, attention = key.split("/")
        cells = [f"{row[name]:,.4g}" if name in row else "-" for name in HEADINGS]
        lines.append(f"| {shape} | {case} | {attention} | {' | '.join(cells)} | {target_text(case, row)} |")
    lines += ["", "Versions:", ""]
    for name, found in content["versions"].items():
        lines.append(f"- {name}: " + ", ".join(f"{package} {version}" for package, version in found.items()))
    return "\n".join([*lines, ""])


def main(arguments: Arguments) -> None:
    """Measure, and write the results after each case."""
    unknown = {*arguments.shapes} - {*SHAPES} | {*arguments.cases} - {*STEPS}
    if unknown:
        raise SystemExit(
            f"There is no {', '.join(sorted(unknown))}; shapes: {', '.join(SHAPES)}; cases: {', '.join(STEPS)}."
        )
    jax.config.update("jax_platforms", "cpu")  # this process computes nothing on the device
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # one device for all libraries
    kind = device_kind(arguments.platform)
    device = peak_of(kind, arguments.peak)
    known = {"rljax": own_versions()} | {
        peer: package_versions(python_of(peer, arguments.work)) for peer in arguments.peers
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "accelerator_use.json"
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    rows = content["rows"] if (content.get("device"), content.get("versions")) == (kind, known) else {}
    for name in arguments.shapes:
        with tempfile.TemporaryDirectory() as scratch:
            benchmark = ModelBenchmark(Path(scratch), name, arguments)
            for case, attention in cases_with_attention(arguments):
                row = benchmark.measure(case, attention, device)
                key = f"{name}/{case}/{attention}{suffix_of(arguments)}"
                rows[key] = row
                head = {"made_on": made_on(), "device": kind, "machine": describe_machine(), "versions": known}
                head |= {"flops": device.flops, "bandwidth": device.bandwidth}
                content = head | {"rows": rows}
                file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
                (arguments.out / "accelerator_use.md").write_text(format_table(content), encoding="utf-8")
                print(
                    f"{key}: {row['seconds']:.3g} s, {row['tokens_per_second']:,.4g} tokens/s",
                    flush=True,
                )


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
