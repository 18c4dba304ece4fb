"""Run folders that are written without a run: settings, metrics, answers, samples and starts."""

import json
import math

from rljax.tracking.run_folder import RunFolder
from rljax.training.config import TrainConfig

PROBLEMS = 40


def metric_rows(steps, *, entropy=0.5, accuracy=(0.25, 0.75)):
    """Yield the metrics of a run: evaluations before RL and after its last step, and a row for each step."""
    before, after = accuracy
    yield {"phase": "warm_start", "step": 1, "loss": 1.0}
    yield {"phase": "eval", "step": 0, "accuracy": before, "reward": before}
    for step in range(1, steps + 1):
        fraction = before + (after - before) * step / steps
        yield {
            "phase": "rl",
            "step": step,
            "reward": fraction,
            "accuracy": fraction,
            "entropy": entropy if step > 12 else 0.5,
            "reward_variance": fraction * (1 - fraction),
            "sampler_gap": 1e-7,
            "grad_norm": 1 + 0.1 * math.sin(step),
            "seconds": 2.0,
            "sample_seconds": 1.5,
            "update_seconds": 0.5,
        }
    yield {"phase": "eval", "step": steps, "accuracy": after, "reward": after}


def answers(steps, accuracy):
    """Yield held-out answers before RL and after the last step; the first problems are answered correctly."""
    for step, fraction in zip((0, steps), accuracy, strict=True):
        for problem in range(PROBLEMS):
            right = problem < fraction * PROBLEMS
            completion = f"{2 * problem if right else 'no idea <b>'}"
            row = {"step": step, "problem": problem, "prompt": f"{problem}+{problem}=", "answer": str(2 * problem)}
            yield row | {"completion": completion, "reward": float(right)}


def write_run(path, *, steps=30, total=30, accuracy=(0.25, 0.75), entropy=0.5, **settings):
    """Write the folder of a run of `total` steps that has made `steps` of them."""
    config = TrainConfig.flat(steps=total, run=str(path), **settings)
    folder = RunFolder.create(path, config.to_json() | {"seams": []})
    if steps:
        write(folder.metrics, metric_rows(steps, entropy=entropy, accuracy=accuracy))
        folder.add_heldout(list(answers(steps, accuracy)))
    write(
        folder.samples,
        [{"step": 20, "prompt": "<script>alert(1)</script>", "completion": "\x1b[31m", "answer": "&", "reward": None}],
    )
    write(folder.starts, [{"at": "2026-01-01T00:00:00", "step": 0, "command": ["rljax", "train"], "devices": "1 x cpu"}])
    return folder


def write(path, rows):
    """Write rows as JSON Lines."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
