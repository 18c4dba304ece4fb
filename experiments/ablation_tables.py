"""Do the ablation tables of the DAPO and VAPO papers hold on a small transformer, and are their rows in the same order?

DAPO's Table 1 (arXiv:2503.14476) adds five parts to naive GRPO, one more per row. VAPO's Table 1 (arXiv:2504.05118) starts with
vanilla PPO; each further row leaves out one of seven parts of the full method. Here each row is an arm that trains a
transformer of 0.1 million parameters on sums with written-out steps, with five seeds. A third table is Table 6 of the
design document (unpublished). Three further arms are used to test claims of other papers (`claims_on_transformer.py`).

Command:

    python experiments/ablation_tables.py     (repeat the command to continue after a stop)

Setting: sums of 2 to 5 single-digit numbers. Two in three demonstrations with four or five numbers stop before they state the
answer. A response is cut off after 34 tokens; written out as in the demonstrations, most sums of five numbers take 35. All runs
start from one base model, whose supervised warm start has its own seed. The seeds of the arms change only RL: its problems,
their order, and sampling. The order of the rows might differ with another base model. All arms have the same number of updates,
four per step, and train on the same number of responses per step, 64 (8 prompts with 8 responses each). They sample different
numbers of tokens, which the page shows: dynamic sampling samples up to 4.5 times as many prompts, and a critic is pretrained on
additional rollouts. The accuracy is that of responses sampled at temperature 1 to problems of the training set; a run sees less
than half of these problems.

Deviations from the papers: the model has 0.1 million parameters and starts from random weights, the warm start replaces
pretraining, and learning rate, batch and lengths differ. There are 4 updates per rollout instead of 16. The rewards are 1
and -1 in all arms, including VAPO's. No row of DAPO's table has a KL penalty here. The soft length penalty covers the
last fifth of the length limit, as in the paper. VAPO's α is 1 instead of 0.05, so that λ is 0.95 for a response of 20
tokens; with the paper's α, λ is 0.95 only at 400 tokens, and would be 0 for every response of at most 20 tokens. The
critic is pretrained for 10 rollouts instead of 50. Without groups, a step has 64 prompts with one response each.
Otherwise all arms use the defaults of the papers and the library. All arms use the learning rate 3e-4. The other rate
that was tried, 1e-3, lost what the warm start had taught (full DAPO, pilot seed 100, another base model). No arm was
tuned separately.
"""

import fcntl
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro

import rljax
from lab.claims import over_seeds
from lab.rank_correlation import kendall, permutation_test
from lab.rows import format_percent, format_points, rows_of, write_page, write_rows
from lab.separation import draw_comparisons
from rljax.tracking.rows import read_metrics

LIMIT = 34
"""Largest number of tokens in a response."""
SEEDS = range(5)
PILOT_SEED = 100
"""Seed of the pilot runs and of their base model."""
BASE_SEED = 0
"""Seed of the base model from which all other runs start."""
WARM_START: dict[str, Any] = {
    "task": "sums",
    "operands": (2, 5),
    "train_problems": 4096,
    "unfinished_share": 0.65,
    "unfinished_operands": 4,
    "tokenizer": "characters",
    "layers": 2,
    "width": 64,
    "hidden": 192,
    "max_prompt_tokens": 10,
    "max_response_tokens": LIMIT,
    "warm_start_steps": 220,
    "warm_start_optimizer": "muon",
    "warm_start_learning_rate": 4e-3,
}
"""Settings of the task, the model and its warm start."""
COMMON_SETTINGS: dict[str, Any] = WARM_START | {
    "heldout_problems": 96,
    "prompts": 8,
    "group_size": 8,
    "minibatches": 4,
    "oversample": 1.5,
    "max_tries": 3,
    "steps": 40,
    "learning_rate": 3e-4,
    "learning_rate_warmup": 5,
    "eval_every": 0,
    "checkpoint_every": 10_000,
    "sample_every": 0,
    "models": "none",
    "quiet": True,
}
CONFIG = rljax.TrainConfig.flat(**COMMON_SETTINGS, algorithm="grpo", algorithm_options={"beta": 0.0})

SIGNED, FILTER = "outcome_reward=rule", "filter_tokens=overlong"
PARTS = ("clip_higher", "soft_overlong", "token_level", "dynamic_sampling")
"""DAPO's parts in the order of its table, after overlong filtering."""


def row_of_dapo(parts: int, *with_parts: str) -> dict[str, Any]:
    """Build a row of DAPO's table: DAPO with only the first `parts` of `PARTS`, plus `with_parts`."""
    options = {"max_length": LIMIT, "cache": LIMIT // 5}
    return {
        "algorithm": "dapo",
        "algorithm_options": options,
        "without": PARTS[parts:],
        "with": (SIGNED, *with_parts),
    }


def grpo(*with_parts: str) -> dict[str, Any]:
    """Build an arm of GRPO without a KL penalty, as in the first row of DAPO's table, plus `with_parts`."""
    return {"algorithm": "grpo", "algorithm_options": {"beta": 0.0}, "with": (SIGNED, *with_parts)}


def row_of_vapo(*without: str, **settings: Any) -> dict[str, Any]:
    """Build a row of VAPO's table: VAPO without the parts in `without`."""
    options = {"alpha": 1.0, "pretraining_steps": 10}
    return {"algorithm": "vapo", "algorithm_options": options, "without": without, "with": (SIGNED,)} | settings


ARMS: Mapping[str, Mapping[str, Any]] = {
    "naive GRPO": row_of_dapo(0),
    "+ overlong filtering": row_of_dapo(0, FILTER),
    "+ clip-higher": row_of_dapo(1, FILTER),
    "+ soft overlong": row_of_dapo(2, FILTER),
    "+ token-level loss": row_of_dapo(3, FILTER),
    "+ dynamic sampling": row_of_dapo(4, FILTER),
    "GRPO without deviation": grpo("advantage=centered"),
    "Dr.GRPO": {"algorithm": "dr_grpo", "algorithm_options": {"max_length": LIMIT}, "with": (SIGNED,)},
    "GSPO": {"algorithm": "gspo", "algorithm_options": {}, "with": (SIGNED,)},
    "VAPO": row_of_vapo(),
    "VAPO without value pretraining": row_of_vapo("value_pretraining"),
    "VAPO without decoupled GAE": row_of_vapo("decoupled_gae"),
    "VAPO without length-adaptive GAE": row_of_vapo("length_adaptive"),
    "VAPO without clip-higher": row_of_vapo("clip_higher"),
    "VAPO without token-level loss": row_of_vapo("token_level"),
    "VAPO without positive examples": row_of_vapo("positive_examples"),
    "VAPO without group sampling": row_of_vapo("group_sampling", group_size=1, prompts=64),
    "GRPO with quality weights": grpo("advantage=length_quality"),
    "GRPO with hierarchical groups": grpo("advantage=hierarchical"),
    "vanilla PPO": {"algorithm": "ppo", "algorithm_options": {"lambda_": 0.95}, "with": (SIGNED,)},
}


class AblationTable(NamedTuple):
    """An ablation table of a paper, whose rows are arms."""

    title: str
    """Title of the table on the page."""
    source: str
    """The paper, its metric and model, and how the rows are built."""
    scores: Mapping[str, float]
    """Arm -> the paper's score, in the order of its rows."""
    compared: Mapping[str, str]
    """Arm -> the arm that it is compared with; arms that are not compared are absent."""


DAPO_ROWS = dict(zip([*ARMS][:6], (30, 36, 38, 41, 42, 50), strict=True))
VAPO_ROWS = {
    "vanilla PPO": 5,
    "VAPO without value pretraining": 11,
    "VAPO without decoupled GAE": 33,
    "VAPO without length-adaptive GAE": 45,
    "VAPO without clip-higher": 46,
    "VAPO without token-level loss": 53,
    "VAPO without positive examples": 54,
    "VAPO without group sampling": 55,
    "VAPO": 60,
}
VARIANTS = {"naive GRPO": 89.1, "GRPO with quality weights": 90.7, "GRPO with hierarchical groups": 91.5}
TABLES = (
    AblationTable(
        "DAPO, Table 1",
        "arXiv:2503.14476, AIME 2024, average of 32 responses, Qwen2.5-32B; each row adds a part to the row above",
        DAPO_ROWS,
        dict(itertools.pairwise([*DAPO_ROWS][::-1])),
    ),
    AblationTable(
        "VAPO, Table 1",
        "arXiv:2504.05118, AIME 2024, average of 32 responses, Qwen2.5-32B; the last row is the full method, and each row "
        "between it and the first leaves out one part",
        VAPO_ROWS,
        {arm: "VAPO" for arm in VAPO_ROWS if arm != "VAPO"},
    ),
    AblationTable(
        "Variants of GRPO, Table 6 of the design document",
        "unpublished, GSM8K, a model of 8B parameters",
        VARIANTS,
        {arm: "naive GRPO" for arm in VARIANTS if arm != "naive GRPO"},
    ),
)
ABSENT = (
    "The document's table is cumulative, and these rows do not exist here. Hierarchical groups on top of quality weights do "
    "not: both are ways to compute an advantage (`--advantage hierarchical`, `--advantage length_quality`), an algorithm has "
    "one, and the document defines no combination; the table shows each by itself. Temporal groups (`--remembered-rewards N`) "
    "are refused together with hierarchical groups, which do not compare the responses to a prompt. By themselves they need "
    "prompts that recur, and within these runs only the shortest do; `rljax claims temporal_groups` tests them in a small world."
)


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    out: Path = Path("experiments/ablation_tables")
    """Path of the output files, without the endings `.json`, `.md` and `.png`."""
    arms: tuple[str, ...] = tuple(ARMS)
    """Arms to run."""
    seeds: tuple[int, ...] = tuple(SEEDS)
    """Seeds to run, in this order."""
    rates: tuple[float, ...] = ()
    """Learning rates of pilot runs; if empty, the regular runs with the common rate."""
    work: Path = Path("runs/ablation_tables")
    """Folder for the warm starts and the compiled programs."""
    report: bool = False
    """Only write the page and the plot from existing rows; train nothing."""


def config_of(arm: str, seed: int, rate: float | None) -> rljax.TrainConfig:
    """Build the settings of a run, without its model and its folder; `rate` is the learning rate of a pilot run, else None."""
    return CONFIG.replace(**ARMS[arm], seed=seed, **({} if rate is None else {"learning_rate": rate}))


def hash_of(key: Mapping[str, Any]) -> str:
    """Compute a hash of the settings of a row."""
    hashed = [COMMON_SETTINGS, dict(ARMS.get(key["arm"], {})), key["rate"]]
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:16]


def ensure_warm_start(seed: int, work: Path) -> Path:
    """Return the folder of a base model; train the model if the folder does not exist."""
    settings = hashlib.sha256(json.dumps(WARM_START).encode()).hexdigest()[:8]
    folder = work / f"warm-{settings}-{seed}"
    work.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be training it
        if not (folder / "last" / "config.json").exists():
            rljax.train(CONFIG.replace(seed=seed, steps=0, eval_every=0, models="last", run=str(folder)), resume="auto")
    return folder / "last"


def train_and_measure(arm: str, seed: int, rate: float | None, work: Path, **settings: Any) -> dict[str, Any]:
    """Train one arm with one seed from the base model, with additional `settings`, and return the measurements."""
    base = ensure_warm_start(BASE_SEED if rate is None else PILOT_SEED, work)
    config = config_of(arm, seed, rate).replace(model=str(base), warm_start_steps=0, **settings)
    with TemporaryDirectory() as folder:
        result = rljax.train(config.replace(run=f"{folder}/run"))
        metrics = read_metrics(result.run / "metrics.jsonl")
        answers = [json.loads(line) for line in (result.run / "heldout.jsonl").read_text(encoding="utf-8").splitlines()]
    return measurements(metrics, answers)


STEP_METRICS = ("accuracy", "entropy", "response_length", "truncated_share", "groups_all_right", "groups_all_wrong")
"""Metrics that a row keeps for every step; the metrics of groups are absent if prompts have only one response."""


def measurements(metrics: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compute the measurements of a run.

    Args:
        metrics: rows of `metrics.jsonl`.
        answers: rows of `heldout.jsonl`.

    Returns:
        `heldout`, accuracy of greedy answers before RL and at the end; `spread`, the lengths' standard deviation divided by their
        mean for the greedy answers at the end; and `wrong_length`, the mean length of the wrong answers among them, in
        characters. For each step: `tokens`, the tokens sampled up to its end (those of value pretraining are estimated from the
        first step), `clipped`, the clip fraction, and `STEP_METRICS`. For each step of value pretraining: `value_loss`.
    """
    steps = [row for row in metrics if row["phase"] == "rl"]
    value = [row for row in metrics if row["phase"] == "value"]
    heldout = [row["accuracy"] for row in metrics if row["phase"] == "eval"]
    last = [answer for answer in answers if answer["step"] == len(steps)]
    lengths = [len(answer["completion"]) for answer in last]
    wrong = [len(answer["completion"]) for answer in last if answer["reward"] <= 0]
    pretraining = len(value) * tokens_of(steps[0])  # the first RL step still has the policy of the value pretraining
    tokens = pretraining + np.cumsum([tokens_of(row) for row in steps])
    return {
        "heldout": [round(heldout[0], 4), round(heldout[-1], 4)],
        "spread": round(float(np.std(lengths) / np.mean(lengths)), 3),
        "wrong_length": round(float(np.mean(wrong)), 2) if wrong else None,
        "tokens": np.round(tokens).astype(int).tolist(),
        "value_loss": [round(row["value_loss"], 4) for row in value],
        "clipped": [round(row["clip_fraction"], 4) for row in steps],
    } | {name: [round(row[name], 4) for row in steps] for name in STEP_METRICS if name in steps[0]}


def tokens_of(row: Mapping[str, Any]) -> float:
    """Return the number of tokens that a step sampled."""
    return row["tokens_per_second"] * row["seconds"]


def add_row(file: Path, row: dict[str, Any], work: Path) -> None:
    """Add a row to a file, with a lock because other processes with the same `work` folder may add rows at the same time."""
    key = row["arm"], row["seed"], row["rate"]
    with (work / "rows.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        others = [other for other in rows_of(file, hash_of) if (other["arm"], other["seed"], other["rate"]) != key]
        write_rows(file, [*others, row])


def run(arguments: Arguments) -> None:
    """Do the runs that the file does not have yet."""
    jax.config.update("jax_compilation_cache_dir", str((arguments.work / "compiled").absolute()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    file = arguments.out.with_suffix(".json")
    rates = arguments.rates or (None,)
    for seed, rate, arm in itertools.product(arguments.seeds, rates, arguments.arms):
        key = {"arm": arm, "seed": seed, "rate": rate}
        if not any(key.items() <= row.items() for row in rows_of(file, hash_of)):
            add_row(
                file, {**key, "settings": hash_of(key), **train_and_measure(**key, work=arguments.work)}, arguments.work
            )
            print(key, flush=True)


Rows = Sequence[Mapping[str, Any]]
END, MEAN = "accuracy at the end", "mean accuracy"
LAST = 10
"""Number of final steps over which the accuracy at the end is averaged."""


def values_of(rows: Rows, arm: str, metric: str) -> dict[int, float]:
    """Return the accuracy of an arm's samples by seed, averaged over the last `LAST` steps (`END`) or over all (`MEAN`)."""
    mine = {row["seed"]: row["accuracy"] for row in rows if row["arm"] == arm and row["rate"] is None}
    return {seed: float(np.mean(steps[-LAST:] if metric == END else steps)) for seed, steps in sorted(mine.items())}


def at_equal_tokens(rows: Rows, arms: Sequence[str]) -> tuple[int, dict[str, dict[int, float]]]:
    """Compute the accuracy of arms at an equal number of sampled tokens, averaged over the last `LAST` steps before it.

    Returns:
        The largest number of tokens that all runs of these arms sampled, and for each arm the accuracy by seed.
    """
    mine = [row for row in rows if row["arm"] in arms and row["rate"] is None]
    most = min(row["tokens"][-1] for row in mine)

    def read(row: Mapping[str, Any]) -> float:
        steps = int(np.searchsorted(row["tokens"], most, side="right"))
        return float(np.mean(row["accuracy"][max(0, steps - LAST) : max(1, steps)]))

    return most, {arm: {row["seed"]: read(row) for row in mine if row["arm"] == arm} for arm in arms}


def arms_with_runs(rows: Rows, table: AblationTable) -> list[str]:
    """Return the arms of a table that have at least one run, in the order of the rows."""
    return [arm for arm in table.scores if values_of(rows, arm, END)]


def is_complete(rows: Rows, table: AblationTable) -> bool:
    """Return whether all arms of a table have all seeds."""
    return all([*values_of(rows, arm, END)] == [*SEEDS] for arm in table.scores)


def rank_text(rows: Rows, table: AblationTable, metric: str) -> str:
    """Describe how well the order of a metric's means agrees with the order of the source's scores."""
    scores = [*table.scores.values()]
    values = [values_of(rows, arm, metric) for arm in table.scores]
    test = permutation_test(scores, [float(np.mean([*of_arm.values()])) for of_arm in values])
    per_seed = over_seeds([kendall(scores, [of_arm[seed] for of_arm in values]) for seed in SEEDS])
    return f"- {metric}: {test.text()}. Mean of the seeds' own τ: {per_seed.text()}."


def section(rows: Rows, table: AblationTable) -> str:
    """Format our results for a paper's table and, if all runs are done, the rank correlations, in Markdown."""
    arms = arms_with_runs(rows, table)
    most, equal = at_equal_tokens(rows, arms)
    head = (
        f"| row | score in the source | seeds | {END} | minus the row it is compared with, points | {MEAN} "
        f"| accuracy at {most / 1000:.0f}k sampled tokens | sampled tokens |"
    )
    lines = [f"## {table.title}", "", f"Source: {table.source}.", "", head, f"|{' --- |' * 8}"]
    for arm in arms:
        end, other = values_of(rows, arm, END), table.compared.get(arm)
        change = "" if other is None else format_points(end, values_of(rows, other, END))
        tokens = np.mean([row["tokens"][-1] for row in rows if row["arm"] == arm and row["rate"] is None])
        cells = [
            len(end),
            format_percent(end),
            change,
            format_percent(values_of(rows, arm, MEAN)),
            format_percent(equal[arm]),
        ]
        lines.append(f"| {arm} | {table.scores[arm]:g} | {' | '.join(map(str, cells))} | {tokens / 1000:.0f}k |")
    if not is_complete(rows, table):
        done = sum(len(values_of(rows, arm, END)) for arm in arms)
        text = f"{done} of {len(table.scores) * len(SEEDS)} runs are done, so no order is compared"
        return "\n".join([*lines, "", f"{text}; `python experiments/ablation_tables.py` continues."])
    lines += ["", "Kendall's rank correlation of the means with the scores in the source:", ""]
    lines += [rank_text(rows, table, metric) for metric in (END, MEAN)]
    return "\n".join(lines)


def pilot_section(rows: Rows) -> str:
    """Format the pilot runs in Markdown."""
    lines = [
        f"## Learning rates on pilot seed {PILOT_SEED}",
        "",
        f"| arm | learning rate | {END} | {MEAN} |",
        f"|{' --- |' * 4}",
    ]
    for row in (row for row in rows if row["rate"] is not None):
        end, mean = np.mean(row["accuracy"][-LAST:]), np.mean(row["accuracy"])
        lines.append(f"| {row['arm']} | {row['rate']:g} | {100 * end:.1f} % | {100 * mean:.1f} % |")
    return "\n".join(lines)


def report(rows: Rows) -> str:
    """Format the page below its caption in Markdown; a table is left out if fewer than two of its arms have runs."""
    first = {row["seed"]: row for row in rows if row["rate"] is None}
    before = format_percent({seed: row["accuracy"][0] for seed, row in first.items()})
    greedy = format_percent({seed: row["heldout"][0] for seed, row in first.items()})
    parts = [f"Before RL, {before} of the samples are right, and {greedy} of the greedy answers to held-out problems."]
    for table in TABLES:
        if len(arms_with_runs(rows, table)) > 1:
            parts.append(section(rows, table))
            if table.scores is VARIANTS:
                parts.append(ABSENT)
    return "\n\n".join([*parts, pilot_section(rows)]) + "\n"


CAPTION = (
    f"a transformer of 0.1 million parameters on sums, {CONFIG.optimization.steps} RL steps, {len(SEEDS)} seeds of RL from one "
    "base model, with 95 % t intervals. Equal in all rows: updates, and trained responses per update; not equal: sampled "
    "tokens. The accuracy is of samples at temperature 1, to problems of the training set; a run sees less than half of them. "
    f"At the end, it is that of the last {LAST} steps. Settings and deviations are in `experiments/ablation_tables.py`."
)


def write_report(arguments: Arguments) -> None:
    """Write the page and the plot from the rows."""
    rows = rows_of(arguments.out.with_suffix(".json"), hash_of)
    write_page(arguments.out, "python experiments/ablation_tables.py", CAPTION, report(rows))
    arms = {table.title: arms_with_runs(rows, table) for table in TABLES}
    shown = {title: {arm: values_of(rows, arm, END) for arm in found} for title, found in arms.items() if len(found) > 1}
    draw_comparisons(shown, arguments.out.with_suffix(".png"))


def main(arguments: Arguments) -> None:
    """Do the missing runs, and write the page."""
    if not arguments.report:
        run(arguments)
    write_report(arguments)


if __name__ == "__main__":
    main(tyro.cli(Arguments))
