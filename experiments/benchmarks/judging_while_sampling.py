"""Time of sampling and judging with a slow reward: judging after sampling, compared with judging while sampling continues.

    python experiments/benchmarks/judging_while_sampling.py --result experiments/benchmarks/judging_while_sampling.json

The reward sleeps two seconds in each call, like a reward that waits for a server. In both runs, the reward is called on 8
groups at a time, with the same responses. In the first run, the engine (the built-in one, without its method `stream`)
returns all responses at once; in the second, it yields each as it ends. Everything that the two runs compute, except times,
is compared.

`draw_and_judge_seconds` is the sum of `sample_seconds` and `judge_seconds`, the only times that the setting affects. The
time of a complete step also contains the update, which varies between runs, especially on a busy machine; the result
contains the load.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path

import jax

import rljax
from rljax.rollout import DecodingEngine
from rljax.tracking.rows import read_metrics

CALL_SECONDS = 2.0
STEPS = 4
CONFIG = rljax.load_config("arithmetic_dapo").replace(
    algorithm="grpo",
    algorithm_options={},
    operands=(2, 4),
    unanswered_operands=4,
    train_problems=2200,
    max_prompt_tokens=8,
    tokenizer="bytes",
    max_response_tokens=80,
    decode_slots=8,
    learning_rate=2e-4,
    reward_groups=8,
    warm_start_steps=0,
    steps=STEPS,
    eval_every=0,
    sample_every=0,
    heldout_problems=8,
    models="none",
    quiet=True,
)


def slow_reward(completions: list[str]) -> list[float]:
    """Sleep two seconds per call; reward an even number of characters with 1."""
    time.sleep(CALL_SECONDS)
    return [float(len(completion) % 2 == 0) for completion in completions]


def measure(folder: Path) -> tuple[dict[str, float], list[dict]]:
    """Return median seconds of sampling and judging after the first step, which compiles, and all other metrics of the steps."""
    result = rljax.train(CONFIG.replace(run=str(folder)), slow_reward)
    rows = [row for row in read_metrics(result.run / "metrics.jsonl") if row["phase"] == "rl"]
    parts = {name: [row[name] for row in rows[1:]] for name in ("sample_seconds", "judge_seconds")}
    both = {"draw_and_judge_seconds": [sum(pair) for pair in zip(*parts.values(), strict=True)]}
    times = {name: round(statistics.median(seconds), 2) for name, seconds in (both | parts).items()}
    return times, [{name: row[name] for name in row if not name.endswith(("seconds", "per_second"))} for row in rows]


def main() -> None:
    """Train twice, compare, and write the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--result", type=Path, required=True)
    result, load = parser.parse_args().result, os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        stream = DecodingEngine.stream
        del DecodingEngine.stream
        afterwards, expected = measure(Path(folder) / "afterwards")
        DecodingEngine.stream = stream
        meanwhile, found = measure(Path(folder) / "meanwhile")
    content = {
        "date": date.today().isoformat(),
        "jax": jax.__version__,
        "cores": os.cpu_count(),
        "load": {"before": round(load, 1), "after": round(os.getloadavg()[0], 1)},
        "calls_a_step": CONFIG.sampling.prompts // CONFIG.reward.groups,
        "seconds_a_call": CALL_SECONDS,
        "ratio": round(afterwards["draw_and_judge_seconds"] / meanwhile["draw_and_judge_seconds"], 2),
        "afterwards": afterwards,
        "meanwhile": meanwhile,
        "same_numbers": found == expected,
    }
    result.write_text(json.dumps(content, indent=2) + "\n")
    print(json.dumps(content, indent=2))


if __name__ == "__main__":
    main()
