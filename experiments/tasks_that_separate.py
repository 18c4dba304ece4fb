"""Do the generated tasks separate algorithms? Four arms per task are compared by confidence intervals over several seeds.

Each task of `rljax.tasks` is designed to show one effect. Four algorithms or variants that should differ in this effect,
according to theory, are compared on the task: see `CASES`. All runs of a task start from the same base model, whose warm start has
its own seed. The seeds of the arms change only RL: its problems, their order, sampling, and the held-out problems. Arms are apart
if their 95 % t intervals over these seeds are disjoint. The order of the arms might differ with another base model.

Command:

    python experiments/tasks_that_separate.py     (an estimated hour and a half on one CPU core)

A finished run is not repeated; use `--tasks` and `--minutes` to do only some of the runs. A row is dropped if the hash of its
settings and of its task's problems has changed. The command writes OUT.json, OUT.md and OUT.png. The accuracy of samples is always
the fraction of right answers, even if the training reward differs, as in `exploit` and `outliers`.

Deviations: none, because no paper uses these tasks. Arms, steps and learning rates were chosen by pilot runs with seeds from
100 upwards. Earlier attempts, which were measured again with new seeds:

- `tight` first had 40 steps (seeds 0 to 7); three arms were apart.
- `lengths` first compared the length of wrong answers for the exponents α = 0.5, 1 and 2 of the length weighting (seeds 0 to 4);
  no arms were apart. The second attempt compared the length of samples, which varies less, for α = 1, 2 and 4. It was stopped
  after eight seeds (8 to 15), because the arms with α = 1 and 2 were too close. `lengths` now has α = 1, 2.5 and 6, and sixteen
  seeds to shorten the intervals.
- `iteration` first used λ = 0.5, 0.8, 0.95 and 1 and a learning rate of 3e-4. It was stopped after one seed (40), in which the
  first three arms were not in the pilot's order. It now has λ = 0.5, 0.9, 0.98 and 1, a learning rate of 5e-4, and only five
  seeds, because its runs are the longest.

`outliers` and `exploit` were repeated from another base model when the accuracy of samples was changed to count right answers.
From the first base model, the arm with centered rewards was apart from the arm without outliers; in `exploit` all arms were apart,
as in the committed results.
"""

import hashlib
import itertools
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np
import tyro

import rljax
from lab.rows import made_on, write_rows
from lab.separation import Case, Rows, draw_comparisons, report, values_of
from rljax.data.problem import Problem, reward_columns
from rljax.records import required
from rljax.rewards import resolve
from rljax.tracking.rows import read_metrics

COMMON_SETTINGS = {
    "algorithm": "grpo",
    "tokenizer": "characters",
    "layers": 2,
    "width": 64,
    "hidden": 192,
    "heldout_problems": 256,
    "max_prompt_tokens": 8,
    "max_response_tokens": 32,
    "warm_start_steps": 600,
    "warm_start_accuracy": 0.3,
    "warm_start_eval_every": 20,
    "warm_start_optimizer": "muon",
    "warm_start_learning_rate": 4e-3,
    "prompts": 8,
    "group_size": 8,
    "steps": 40,
    "learning_rate": 3e-4,
    "learning_rate_warmup": 5,
    "eval_every": 10,
    "checkpoint_every": 10_000,
    "sample_every": 0,
    "models": "none",
    "quiet": True,
}
BASE_SEED = 1000
"""Seed of the base models; it must differ from the seeds of the arms."""
CONFIG = rljax.TrainConfig.flat(**COMMON_SETTINGS)


def make_arm(**settings: Any) -> dict[str, Any]:
    """Build an arm: GRPO without a KL penalty, changed by `settings`."""
    return {"algorithm": "grpo", "algorithm_options": {"beta": 0.0}} | settings


def full_batch(*parts: str) -> dict[str, Any]:
    """Build an arm of REINFORCE++, whose baseline is the mean of the full batch, with the algorithm's parts changed to `parts`."""
    return {"algorithm": "reinforce_pp", "algorithm_options": {}, "with": parts}


def ppo(lambda_: float) -> dict[str, Any]:
    """Build an arm of PPO with this λ and a critic with random initial weights, without value pretraining."""
    critic = {"critic": "fresh", "value_pretraining_steps": 0, "critic_learning_rate": 1e-3}
    return {"algorithm": "ppo", "algorithm_options": {"lambda_": lambda_}} | critic


def dapo(*without: str) -> dict[str, Any]:
    """Build an arm of DAPO without dynamic sampling and the parts `without`; the soft penalty covers the last 24 of 32 tokens."""
    return make_arm(
        algorithm="dapo", algorithm_options={"max_length": 32, "cache": 24}, without=("dynamic_sampling", *without)
    )


END, MEAN, SAMPLED_END = "accuracy at the end", "mean accuracy", "accuracy of samples at the end"
GAIN = "accuracy at the end, less that before RL"
WRONG_LENGTH, SAMPLED_LENGTH = "length of wrong answers at the end", "length of samples at the end"
KEPT = "accuracy of the kind sum at the end"
ALSO = (END, MEAN)
"""Measurements that the page shows for every task, in addition to the one that its arms are compared by."""
CASES: Mapping[str, Case] = {
    "outliers": Case(
        {"max_response_tokens": 8, "prompts": 16, "eval_every": 20},
        {
            "no outliers": make_arm(reward="exact"),
            "rank": make_arm(**{"with": ("advantage=rank",)}),
            "z-score": make_arm(),
            "centered": make_arm(**{"with": ("advantage=centered",)}),
        },
        GAIN,
        "How a reward becomes an advantage. As a rank, an outlier is only one of eight; in a z-score it dominates the "
        "scale of its group, and if rewards are only centered, the scale of the batch. Ranks should learn most; the arm "
        "without outliers is the upper bound.",
        seeds=range(5),
    ),
    "lengths": Case(
        {"max_response_tokens": 16, "warm_start_accuracy": 0.4, "prompts": 16, "learning_rate": 5e-4, "eval_every": 20},
        {
            "token mean": full_batch(),
            **{f"tilt {alpha:g}": full_batch(f"weights=length_reweighted,alpha={alpha}") for alpha in (1.0, 2.5, 6.0)},
        },
        SAMPLED_LENGTH,
        "How the loss weights the tokens of a response: by its length to the power of -α, in REINFORCE++, whose baseline "
        "is the batch's mean. α = 0 is a mean over all tokens, α = 1 a mean over each response. The larger α, the less a "
        "long wrong answer is penalized, and the longer responses should grow.",
        (WRONG_LENGTH,),
        range(24, 40),
    ),
    "countdown": Case(
        {"max_response_tokens": 24, "learning_rate": 5e-4, "eval_every": 20},
        {f"groups of {size}": make_arm(group_size=size) for size in (2, 4, 16, 64)},
        GAIN,
        "How many tries each of 8 problems gets in a step. A group without a right answer teaches nothing, so larger "
        "groups should learn more, at the cost of proportionally more responses.",
    ),
    "mixed": Case(
        {"max_response_tokens": 8, "warm_start_accuracy": 0.55, "prompts": 16, "learning_rate": 1e-3},
        {
            "z-score": make_arm(),
            "no group": full_batch(),
            "hierarchical": make_arm(**{"with": ("advantage=hierarchical",)}),
            "dynamic sampling": make_arm(**{"with": ("keep_group=mixed_outcomes",)}),
        },
        MEAN,
        "What a reward is compared with: the full batch (no group), in which copies are always good and products always "
        "bad; problems of the same kind; or responses to the same prompt, which in most groups do not differ. Dynamic "
        "sampling samples prompts until enough groups have differences, so it should learn most, and the arm `no group` "
        "least.",
        seeds=range(5),
    ),
    "drift": Case(
        {"max_response_tokens": 8, "stage_prompts": 320, "prompts": 16, "learning_rate": 1e-3},
        {
            "alone": make_arm(),
            "KL": make_arm(algorithm_options={"beta": 0.1}),
            "demonstrations": make_arm(auxiliary=0.3),
            "anchor": make_arm(anchor=100.0),
        },
        KEPT,
        "How well sums, which are trained first, are retained while differences are trained. Demonstrations of both kinds "
        "during RL rehearse them; a KL penalty and a Fisher anchor keep the policy near the model before RL, which had "
        "learned little of either kind.",
        ("accuracy of the kind difference at the end",),
        range(5),
    ),
    "brackets": Case(
        {"max_response_tokens": 24},
        {
            "alone": make_arm(),
            "demonstrations": make_arm(auxiliary=1.0),
            "KL 1": make_arm(algorithm_options={"beta": 1.0}),
            "KL 4": make_arm(algorithm_options={"beta": 4.0}),
        },
        SAMPLED_END,
        "How far the policy may move from its demonstrations, half of which are malformed. A loss on them during RL "
        "teaches them again; a KL penalty keeps the policy near the model that imitates them, the more so the larger its "
        "coefficient.",
    ),
    "exploit": Case(
        {},
        {
            "truth": make_arm(reward="exact"),
            "learned": make_arm(),
            "learned, KL 1": make_arm(algorithm_options={"beta": 1.0}),
            "learned, KL 4": make_arm(algorithm_options={"beta": 4.0}),
        },
        GAIN,
        "Which reward is trained on, and how far the policy may move to get it. The learned reward can be exploited, and "
        "a policy finds out how; a KL penalty holds it back, the more so the larger its coefficient. The true reward is "
        "the upper bound.",
        ("training reward at the end",),
    ),
    "tight": Case(
        {"eval_every": 20, "steps": 80},
        {
            "no penalty": dapo("soft_overlong"),
            "penalty, KL 1": dapo() | {"with": ("term=reference_kl,beta=1.0",)},
            "penalty, KL 0.3": dapo() | {"with": ("term=reference_kl,beta=0.3",)},
            "penalty": dapo(),
        },
        SAMPLED_LENGTH,
        "A penalty for responses near the limit should make them shorter, but less so the larger the coefficient of an "
        "additional KL penalty.",
        ("cut off at the end",),
        range(8, 16),
    ),
    "stale": Case(
        {
            "task": "sums",
            "operands": (2, 5),
            "train_problems": 4096,
            "unfinished_share": 0.9,
            "unfinished_operands": 4,
            "heldout_problems": 512,
            "max_prompt_tokens": 10,
            "max_response_tokens": 40,
            "warm_start_steps": 300,
            "warm_start_accuracy": None,
            "steps": 80,
        },
        {f"delay {delay}": make_arm(sampler_delay=delay) for delay in (0, 16, 32, 64)},
        MEAN,
        "The age, in steps, of the parameters that sample the responses to `sums`. Nine in ten demonstrations with four "
        "or five numbers stop before the answer, so RL has to make a rare ending the usual one. The clip limits how far "
        "the policy moves from the sampling policy. The older the sampling policy is, the slower the policy should learn. "
        "The accuracy of samples is not the metric that decides, because it is the accuracy of the old parameters.",
        seeds=range(40, 48),
    ),
    "iteration": Case(
        {
            "iterations": (8, 16),
            "train_problems": 400,
            "lapse_share": 0.65,
            "heldout_problems": 60,
            "max_prompt_tokens": 10,
            "max_response_tokens": 144,
            "warm_start_steps": 300,
            "warm_start_accuracy": None,
            "learning_rate": 5e-4,
        },
        {f"λ {lambda_:g}": ppo(lambda_) for lambda_ in (0.5, 0.9, 0.98, 1.0)},
        SAMPLED_END,
        "How far back the reward at the end of a chain reaches. Two in three demonstrations of eleven lines or more "
        "contain an error, about eighty tokens before the end, and most errors stay uncorrected. With an untrained critic, "
        "a token k positions before the end gets the reward times λ to the power of k: a fifth of the reward at the error "
        "for λ = 0.98, next to nothing for 0.9 and 0.5. The larger λ, the more should be learned.",
        seeds=range(48, 53),
    ),
}


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    out: Path = Path("experiments/tasks_that_separate")
    """Path of the output files, without the endings `.json`, `.md` and `.png`."""
    tasks: tuple[str, ...] = tuple(CASES)
    """Tasks to run."""
    minutes: float = 600.0
    """Time in minutes after which no new run is started."""
    work: Path = Path("runs/separate")
    """Folder for the warm starts and the compiled programs."""


def config_of(task: str) -> rljax.TrainConfig:
    """Build the settings that all arms of a case share; the case's name is also its task unless its settings contain `task`."""
    return CONFIG.replace(**{"task": task} | dict(CASES[task].settings))


def config_of_arm(task: str, arm: str, seed: int) -> rljax.TrainConfig:
    """Build the settings of a run, without its model and its folder."""
    return config_of(task).replace(**CASES[task].arms[arm]).replace(seed=seed)


@cache
def problems_of(task: str) -> list[Problem]:
    """Generate the problems that enter the hash of a task's rows."""
    parts = required(config_of(task).generated_task, "task").problems(32, seed=0)
    return [problem for part in parts for problem in part[:32]]


def hash_of(task: str, arm: str) -> str:
    """Compute a hash of what a row depends on: its settings, and the task's problems with their demonstrations' rewards."""
    config, case, problems = config_of_arm(task, arm, 0), CASES[task], problems_of(task)
    texts = [problem.prompt for problem in problems], [str(problem.demonstration) for problem in problems]
    rewards = resolve(config.reward.name)(*texts, **reward_columns(problems))
    hashed = [COMMON_SETTINGS, BASE_SEED, dict(case.settings), dict(case.arms[arm]), texts, rewards]
    return hashlib.sha256(json.dumps(hashed, sort_keys=True, default=str).encode()).hexdigest()[:16]


def ensure_base_model(task: str, work: Path) -> Path:
    """Return the folder of a task's base model; train the model if the folder does not exist."""
    config = config_of(task).replace(**make_arm(), seed=BASE_SEED, steps=0, eval_every=0, models="last")
    folder = work / f"{task}-{hashlib.sha256(json.dumps(config.to_json()).encode()).hexdigest()[:8]}"
    if not (folder / "last" / "config.json").exists():
        rljax.train(config.replace(run=str(folder)), resume="auto")
    return folder / "last"


def train_and_measure(task: str, arm: str, seed: int, work: Path) -> dict[str, Any]:
    """Train one arm with one seed from the base model of its task, and return the row of the run."""
    model, begin = ensure_base_model(task, work), time.monotonic()
    config = config_of_arm(task, arm, seed).replace(model=str(model), warm_start_steps=0, warm_start_accuracy=None)
    with TemporaryDirectory() as folder:
        result = rljax.train(config.replace(run=f"{folder}/run"))
        metrics = read_metrics(result.run / "metrics.jsonl")
        answers = [json.loads(line) for line in (result.run / "heldout.jsonl").read_text(encoding="utf-8").splitlines()]
    numbers, curve = measurements_of(config, metrics, answers)
    row = {"task": task, "arm": arm, "seed": seed, "settings": hash_of(task, arm), "curve": curve, "numbers": numbers}
    return row | {"seconds": round(time.monotonic() - begin, 1)}


def measurements_of(config: rljax.TrainConfig, metrics: Rows, answers: Rows) -> tuple[dict[str, float], list[float]]:
    """Compute the measurements of a run, and its held-out accuracy from the first evaluation to the last."""
    curve = [row["accuracy"] for row in metrics if row["phase"] == "eval"]
    steps = [row for row in metrics if row["phase"] == "rl"]
    last = [row for row in answers if row["step"] == config.optimization.steps]
    wrong = [len(row["completion"]) for row in last if row["reward"] <= 0]
    numbers = {
        END: float(np.mean(curve[-2:])),
        GAIN: float(np.mean(curve[-2:])) - curve[0],
        MEAN: float(np.mean(curve[1:])),
        WRONG_LENGTH: float(np.mean(wrong)) if wrong else 0.0,
        SAMPLED_LENGTH: float(np.mean([row["response_length"] for row in steps[-10:]])),
        "cut off at the end": float(np.mean([row["truncated_share"] for row in steps[-10:]])),
        SAMPLED_END: float(np.mean([row["accuracy"] for row in steps[-10:]])),
        "training reward at the end": float(np.mean([row["reward"] for row in steps[-10:]])),
    }
    problems = required(config.generated_task, "task").problems(config.data.heldout_problems, seed=config.run.seed)[1]
    kinds = {row["problem"]: problems[row["problem"]].columns.get("type") for row in last}
    for kind in sorted({str(kind) for kind in kinds.values() if kind is not None}):
        right = [row["reward"] > 0 for row in last if kinds[row["problem"]] == kind]
        numbers[f"accuracy of the kind {kind} at the end"] = float(np.mean(right))
    return {name: round(value, 4) for name, value in numbers.items()}, [round(value, 4) for value in curve]


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Read the rows of a file that were made with the current settings and seeds."""
    rows = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    known = {(task, arm): hash_of(task, arm) for task, case in CASES.items() for arm in case.arms}
    present = [row for row in rows if known.get((row["task"], row["arm"])) == row["settings"]]
    return [row for row in present if row["seed"] in CASES[row["task"]].seeds]


def main(arguments: Arguments) -> None:
    """Do the runs that the file does not have yet, and save it after each run."""
    jax.config.update("jax_compilation_cache_dir", str((arguments.work / "compiled").absolute()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    file, start = arguments.out.with_suffix(".json"), time.monotonic()
    rows = read_rows(file)
    done = {(row["task"], row["arm"], row["seed"]) for row in rows}
    for task in arguments.tasks:
        for seed, arm in itertools.product(CASES[task].seeds, CASES[task].arms):
            if (task, arm, seed) in done or time.monotonic() - start > 60 * arguments.minutes:
                continue
            rows.append(train_and_measure(task, arm, seed, arguments.work))
            write_rows(file, rows)
            print(json.dumps(rows[-1]), flush=True)
    if rows:
        arguments.out.with_suffix(".md").write_text(
            f"`python experiments/tasks_that_separate.py` ({made_on()})\n{report(rows, CASES, also=ALSO)}",
            encoding="utf-8",
        )
        decisive = {f"{task}: {case.decides}": values_of(rows, task, case, case.decides) for task, case in CASES.items()}
        draw_comparisons(decisive, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main(tyro.cli(Arguments))
