"""Measure the cost of saves and alarms: `python tests/soak/save_cost.py --result tests/soak/save_cost.json`.

The run uses the default task. A step waits while the state is copied (foreground); the write then shares the cores with
later steps (background). `share_foreground` and `share_both` are fractions of the step time at the default checkpoint
interval. `share_both` is an upper bound, which counts the write as if the steps stopped meanwhile.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import rljax
from rljax.tracking.alarms import AlarmState
from rljax.tracking.rows import read_metrics
from rljax.training.checkpoints import checkpoint as checkpoints
from rljax.training.checkpoints.saver import Saver
from rljax.training.config import TrainConfig


def with_timing(function: Callable, seconds: list[float]) -> Callable:
    """Wrap a function so that it appends its duration to a list."""

    def call(*arguments: Any) -> Any:
        begun = time.monotonic()
        try:
            return function(*arguments)
        finally:
            seconds.append(time.monotonic() - begun)

    return call


def main() -> None:
    """Train a few steps with a save after every second step, and write the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--result", type=Path, required=True)
    result = parser.parse_args().result
    load = os.getloadavg()[0]
    foreground: list[float] = []
    background: list[float] = []
    alarms: list[float] = []
    AlarmState.after_row = with_timing(AlarmState.after_row, alarms)
    Saver.save = with_timing(Saver.save, foreground)
    checkpoints.save = with_timing(checkpoints.save, background)
    with tempfile.TemporaryDirectory() as folder:
        config = rljax.load_config("arithmetic_dapo").replace(
            run=f"{folder}/run",
            operands=(2, 4),
            unanswered_operands=4,
            train_problems=2200,
            max_prompt_tokens=8,
            max_response_tokens=32,
            algorithm_options={"max_length": 32, "cache": 4},
            learning_rate=2e-4,
            warm_start_steps=0,
            steps=10,
            eval_every=0,
            checkpoint_every=2,
            heldout_problems=32,
            quiet=True,
        )
        rljax.train(config)
        rows = [row["seconds"] for row in read_metrics(Path(folder) / "run" / "metrics.jsonl") if row["phase"] == "rl"]
        size = sum(path.stat().st_size for path in (Path(folder) / "run/checkpoints/last").rglob("*") if path.is_file()) / 2
    step, every = statistics.median(rows[2:]), TrainConfig().run.checkpoint_every
    fore, back = statistics.median(foreground), statistics.median(background)
    result_row = {
        "command": "python tests/soak/save_cost.py --result tests/soak/save_cost.json",
        "date": str(date.today()),
        "load_before": round(load, 1),
        "step_seconds": round(step, 3),
        "checkpoint_megabytes": round(size / 1e6, 1),
        "foreground_seconds": round(fore, 4),
        "background_seconds": round(back, 4),
        "share_foreground": round(fore / (every * step), 5),
        "share_both": round((fore + back) / (every * step), 5),
        "alarm_seconds": round(statistics.median(alarms), 6),
        "share_alarms": round(statistics.median(alarms) / step, 6),
    }
    result.write_text(json.dumps(result_row, indent=1) + "\n")
    print(json.dumps(result_row, indent=1))


if __name__ == "__main__":
    main()
