"""A pretrained model learns to add: SmolLM2-135M-Instruct, two-digit sums in chat form, a reward of three lines.

The question is "What is 17 + 25? Answer with a number.", in the model's own chat template. The reward is 1 if the last number of
the response is the sum, and 0 otherwise. Responses have at most 24 tokens. The 256 held-out sums are not among the training sums.

Command (with any folder or hub id of the model). Each finished run is written as a row, so the command can be stopped and repeated;
`--arms` and `--seeds` run only a part:

    python experiments/real/addition.py --model HuggingFaceTB/SmolLM2-135M-Instruct

It writes OUT.json, OUT.md and OUT.png: held-out greedy accuracy over RL steps, entropy and length of the sampled responses, and
responses before and after.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from matplotlib.figure import Figure

import rljax

sys.path.append(str(Path(__file__).resolve().parents[1]))  # experiments/, which contains lab
from lab.rows import add_missing_rows, share_text, write_page
from rljax.files import settings_hash
from rljax.tracking.rows import read_metrics

HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
CONFIG = rljax.TrainConfig.flat(
    name="addition",
    model=HUB,
    chat=True,
    reward_messages=False,
    algorithm="grpo",
    algorithm_options={"beta": 0.0},
    heldout_problems=256,
    max_prompt_tokens=48,
    max_response_tokens=24,
    prompts=8,
    group_size=8,
    minibatches=1,
    microbatch_rows=16,
    steps=100,
    learning_rate=1e-5,
    learning_rate_warmup=3,
    schedule="cosine",
    eval_every=20,
    checkpoint_every=40,
    sample_every=0,
    models="last",
)
ARMS: Mapping[str, Mapping[str, Any]] = {
    "GRPO": {},
    "DAPO": {"algorithm": "dapo", "algorithm_options": {}},
    "GRPO, LoRA": {"lora_rank": 16, "learning_rate": 2e-4},
    "DAPO, LoRA": {"algorithm": "dapo", "algorithm_options": {}, "lora_rank": 16, "learning_rate": 2e-4},
}
"""Name of an arm -> how its settings differ from `CONFIG`."""
SHOWN = 6
"""Number of held-out sums whose responses are kept, before and after."""
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    model: str = HUB
    """Folder or hub id of the model."""
    arms: tuple[str, ...] = tuple(ARMS)
    """Arms to run."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Random seeds; every arm has the same ones."""
    out: Path = Path("experiments/real/addition")
    """Output files, without their endings `.json`, `.md` and `.png`."""
    work: Path = Path("runs/addition")
    """Folder of the problems, the runs and the compiled programs."""


def last_number(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float]:
    """Reward 1 for each completion whose last number is the answer."""
    numbers = [re.findall(r"\d+", completion) for completion in completions]
    return [float(found[-1:] == [right]) for found, right in zip(numbers, answer, strict=True)]


def write_sums(folder: Path) -> tuple[Path, Path]:
    """Write all sums of two two-digit numbers in a fixed random order: 256 for evaluation, the others for training."""
    pairs = np.random.default_rng(0).permutation([(a, b) for a in range(10, 100) for b in range(10, 100)])
    rows = [
        json.dumps(
            {"prompt": [{"role": "user", "content": f"What is {a} + {b}? Answer with a number."}], "answer": str(a + b)}
        )
        for a, b in pairs
    ]
    folder.mkdir(parents=True, exist_ok=True)
    train, heldout = folder / "train.jsonl", folder / "heldout.jsonl"
    for file, part in ((heldout, rows[:256]), (train, rows[256:])):
        file.write_text("\n".join(part) + "\n", encoding="utf-8")
    return train, heldout


def config_of(arm: str, seed: int) -> rljax.TrainConfig:
    """Build the settings of a run, without its files."""
    return CONFIG.replace(seed=seed, **ARMS[arm])


def settings_of(row: Mapping[str, Any]) -> str:
    """Compute a hash of what a row depends on."""
    return settings_hash(config_of(row["arm"], row["seed"]).to_flat())


def row_of(model: str, work: Path, arm: str, seed: int) -> dict[str, Any]:
    """Train one arm with one seed. An interrupted run is resumed."""
    train, heldout = write_sums(work)
    run = work / f"{arm.lower().replace(', ', '-')}-{seed}"
    files = {"model": model, "dataset": str(train), "heldout_dataset": str(heldout), "run": str(run)}
    rljax.train(config_of(arm, seed).replace(**files), reward=last_number, resume="auto")
    rows = read_metrics(run / "metrics.jsonl")
    steps, evaluations = ([row for row in rows if row["phase"] == phase] for phase in ("rl", "eval"))
    return {
        "accuracy": {str(row["step"]): row["accuracy"] for row in evaluations},
        "sampled": [round(row["accuracy"], 4) for row in steps],
        "entropy": [round(row["entropy"], 4) for row in steps],
        "length": [round(row["response_length"], 2) for row in steps],
        "seconds": round(sum(row["seconds"] for row in rows), 1),
        "answers": answers_of(run / "heldout.jsonl"),
    }


def answers_of(file: Path) -> list[dict[str, str]]:
    """Return the first held-out problems with their responses before and after training."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    first, last = ({row["problem"]: row for row in rows if row["step"] == step} for step in (0, rows[-1]["step"]))
    return [
        {"prompt": first[name]["prompt"], "before": first[name]["completion"], "after": last[name]["completion"]}
        for name in range(SHOWN)
    ]


def report(rows: Rows) -> str:
    """Format in Markdown the accuracy over RL steps, as means over seeds with 95 % t intervals, and responses before and after."""
    shown = [*rows[0]["accuracy"]]
    lines = [
        f"| arm | seeds | {' | '.join(f'{step} steps' for step in shown)} | minutes per seed |",
        "| --- |" + " --- |" * (len(shown) + 2),
    ]
    for arm in arms_of(rows):
        own = {row["seed"]: row for row in rows if row["arm"] == arm}
        cells = [share_text({seed: row["accuracy"][step] for seed, row in own.items()}) for step in shown]
        minutes = np.mean([row["seconds"] for row in own.values()]) / 60
        lines.append(f"| {arm} | {len(own)} | {' | '.join(cells)} | {minutes:.0f} |")
    first = rows[0]
    lines += [
        "",
        f"Responses of {first['arm']} with seed {first['seed']}, before and after:",
        "",
        "| question | before | after |",
    ]
    lines += ["| --- | --- | --- |"]
    lines += [
        f"| {' | '.join(' '.join(each[name].split()) for name in ('prompt', 'before', 'after'))} |"
        for each in first["answers"]
    ]
    return "\n".join(lines) + "\n"


def arms_of(rows: Rows) -> list[str]:
    """Return the arms that have rows, in the order of `ARMS`."""
    return [arm for arm in ARMS if any(row["arm"] == arm for row in rows)]


def plot(rows: Rows, file: Path) -> None:
    """Plot held-out accuracy, entropy and response length over RL steps: a line per seed."""
    figure = Figure(figsize=(9, 3.2), dpi=120, layout="constrained")
    accuracy, entropy, length = figure.subplots(1, 3)
    for place, arm in enumerate(arms_of(rows)):
        for number, row in enumerate(row for row in rows if row["arm"] == arm):
            style: dict[str, Any] = {
                "color": f"C{place}",
                "linewidth": 1.3,
                "alpha": 0.85,
                "label": None if number else arm,
            }
            accuracy.plot(
                [int(step) for step in row["accuracy"]], [100 * each for each in row["accuracy"].values()], "o-", **style
            )
            entropy.plot(range(1, len(row["entropy"]) + 1), row["entropy"], **style)
            length.plot(range(1, len(row["length"]) + 1), row["length"], **style)
    accuracy.set(title="held-out accuracy, %", ylim=(0, 100))
    entropy.set(title="entropy, nats per token", ylim=(0, None))
    length.set(title="response length, tokens", ylim=(0, None))
    accuracy.legend(frameon=False, fontsize=8, loc="lower right")
    for axes in (accuracy, entropy, length):
        axes.set_xlabel("RL step")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)


def main(arguments: Arguments) -> None:
    """Do the runs that the JSON file does not have yet; then write the table and the plot."""
    jax.config.update("jax_compilation_cache_dir", str((arguments.work / "compiled").absolute()))
    file = arguments.out.with_suffix(".json")
    wanted = [{"arm": arm, "seed": seed} for arm in arguments.arms for seed in arguments.seeds]
    rows = add_missing_rows(file, wanted, partial(row_of, arguments.model, arguments.work), settings=settings_of)
    seeds = sorted({row["seed"] for row in rows})
    write_page(
        file,
        f"python experiments/real/addition.py --arms {' '.join(map(repr, arms_of(rows)))} --seeds {' '.join(map(str, seeds))}",
        "greedy accuracy on 256 held-out sums, mean over the seeds with a 95 % t interval. The weights were dequantized from 4 "
        f"bits, so they are near, but not equal to, those of {HUB}.",
        report(rows),
    )
    plot(rows, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main(tyro.cli(Arguments))
