"""Two clients keep their data private: does federated averaging learn as much as one run on the pooled data?

A small transformer starts from public demonstrations of sums of two and three numbers with `+` and `-`; four in five of the
demonstrations with three numbers stop before the answer, so RL has to teach the model to finish. One client has only problems
with `+`; the other has half as many problems, only with `-`. A client trains the model by GRPO on its own problems and sends back
only the model. A server averages the models, weighted by the clients' numbers of problems (`rljax average`). Four arms begin with
the same model and sample the same number of responses:

    pooled         one run on the problems of both clients, with twice as many prompts per step
    three rounds   each client makes 10 steps, then the models are averaged; this is done three times
    one round      each client makes 30 steps, then the models are averaged
    alone          the two clients' models of `one round` before averaging: the mean of their accuracies

Equivalent commands, for the first round:

    rljax train --dataset plus.jsonl --model MODEL --steps 10 --run runs/plus-1
    rljax train --dataset minus.jsonl --model MODEL --steps 10 --run runs/minus-1
    rljax average runs/plus-1 runs/minus-1 round-1 --checkpoint last --weights 600 300

The next round starts with `--model round-1`.

Command:

    python experiments/federated.py     (a quarter of an hour on one CPU core)

Result (2026-11-27, two cores that others used too, Python 3.11.7, JAX 0.10.2; means of five seeds with 95 % t intervals): RL raises
the share of right answers from 13 to 57 % in the pooled run and in both federated arms; three rounds minus the pooled run is +0.5
points (-2.9 to +3.9). Clients alone reach 51 %, 6.0 points less than three rounds (2.5 to 9.5). Three rounds and one differ by 0.4
points (-2.5 to +3.2), so five seeds do not tell them apart.

Deviations from the paper (FedAvg, arXiv:1602.05629, Algorithm 1): both clients take part in every round; a client's local steps
are policy updates with AdamW, whose state is reset in each round, instead of SGD on labeled data. The average is not protected:
secure aggregation, which hides the model of a single client from the server, and noise for differential privacy are left out. The
demonstrations and the number of steps were chosen on seed 100, which is not in the table.

Finished runs are kept in --work and are not repeated, unless the settings have changed. The command writes OUT.json, which has a
row for each seed, and OUT.md: accuracies before and after, means over the seeds with 95 % t intervals, and differences from the
pooled run, paired by seed.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tyro

import rljax
from lab.claims import FEWEST_SEEDS
from lab.rows import Comparison, add_missing_rows, format_percent, format_points, verdict_table, write_page
from rljax.data.arithmetic import arithmetic
from rljax.files import settings_hash
from rljax.programs.averaging import average
from rljax.training.objective.algorithm import resolved_settings

OPERANDS = (2, 3)
CONFIG = rljax.TrainConfig.flat(
    name="federated",
    task="sums",
    operators="+-",
    operands=OPERANDS,
    unfinished_share=0.8,
    unfinished_operands=3,
    train_problems=1000,
    heldout_problems=64,
    max_prompt_tokens=6,
    max_response_tokens=20,
    layers=2,
    width=64,
    hidden=192,
    warm_start_optimizer="muon",
    warm_start_learning_rate=4e-3,
    algorithm="grpo",
    algorithm_options={"beta": 0.0},
    prompts=8,
    group_size=8,
    learning_rate=3e-4,
    learning_rate_warmup=0,
    eval_every=0,
    checkpoint_every=10_000,
    sample_every=0,
    models="last",
    quiet=True,
)
START = {"warm_start_steps": 240, "steps": 0}
"""Settings of the run that trains the public model."""
CLIENTS: Mapping[str, int] = {"+": 600, "-": 300}
"""Operator of a client's problems -> number of its problems."""
HELDOUT = 80
"""Number of held-out problems for each operator."""
ROUNDS: Mapping[str, tuple[int, int]] = {"three rounds": (3, 10), "one round": (1, 30)}
"""Federated arm -> number of rounds, and each client's steps per round."""
ARMS = ("pooled", *ROUNDS, "alone")
Problems = Sequence[rljax.Problem]
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Random seeds; each has its own public model and its own problems."""
    out: Path = Path("experiments/federated")
    """Path of the output files, without the endings `.json` and `.md`."""
    work: Path = Path("runs/federated")
    """Folder for the runs."""


class Data(NamedTuple):
    """The problems of the clients, and held-out problems of the same kinds."""

    train: Mapping[str, Problems]
    """Operator -> the problems of its client."""
    heldout: Mapping[str, Problems]
    """Operator -> problems that nobody trains on."""


def make_data(seed: int) -> Data:
    """Generate the problems of a seed."""
    task = {"seed": seed, "operands": OPERANDS, "digits": 1}
    train = {operator: arithmetic("train", count, operators=operator, **task) for operator, count in CLIENTS.items()}
    return Data(train, {operator: arithmetic("heldout", HELDOUT, operators=operator, **task) for operator in CLIENTS})


def hash_settings(row: Mapping[str, Any]) -> str:
    """Hash the settings that a row depends on."""
    config = CONFIG.replace(seed=row["seed"])
    return settings_hash(resolved_settings(config), START, list(CLIENTS.items()), HELDOUT, list(ROUNDS.items()))


def finish_run(folder: Path, config: rljax.TrainConfig, problems: tuple[Problems, Problems] | None = None) -> Path:
    """Train, unless the run is finished; continue an interrupted run."""
    if not (folder / "last" / "config.json").exists():
        rljax.train(config.replace(run=str(folder)), problems=problems, resume="auto")
    return folder


def train_from(model: Path, folder: Path, problems: Problems, heldout: Problems, **settings: Any) -> Path:
    """Train a model on problems without a warm start, and return the folder of the run."""
    config = CONFIG.replace(model=str(model), warm_start_steps=0, **settings)
    return finish_run(folder, config, (problems, heldout))


def train_in_rounds(start: Path, work: Path, data: Data, seed: int, *, rounds: int, steps: int) -> tuple[Path, list[Path]]:
    """Let all clients train the same model, average their models, and repeat with the average.

    ::

        θ_{r+1} = Σ_k n_k θ_{r,k} / Σ_k n_k        θ_{r,k}: θ_r after `steps` steps on the problems of client k

    Args:
        start: folder of the first model, θ_0.
        work: folder for the runs and the averages.
        data: the problems; n_k is the number of problems of client k.
        seed: random seed of the row. Each run derives its own seed from it, so that no round repeats the order of the problems.
        rounds: number of rounds.
        steps: each client's steps per round.

    Returns:
        Folder of the last average, and the clients' runs in the last round.

    Source:
        arXiv:1602.05629, Algorithm 1, with all clients in every round.
    """
    model, sizes, runs = start, [len(problems) for problems in data.train.values()], []
    for round_index in range(rounds):
        runs = [
            train_from(
                model, work / f"{round_index}-{client}", problems, data.heldout[operator], steps=steps, seed=client_seed
            )
            for client, (operator, problems) in enumerate(data.train.items())
            for client_seed in [seed * 10_000 + round_index * 100 + client]
        ]
        model = work / f"{round_index}-mean"
        if not model.exists():
            average(runs, model, weights=sizes, which="last")
    return model, runs


def accuracies_of(model: Path, data: Data) -> dict[str, float]:
    """Measure the accuracy of greedy answers to the held-out problems of each operator."""
    options = {"reward": CONFIG.reward.name, "max_response_tokens": CONFIG.sampling.max_response_tokens}
    reports = {operator: rljax.evaluate(model, problems=problems, **options) for operator, problems in data.heldout.items()}
    return {operator: report.whole.measures["avg@1"].value for operator, report in reports.items()}


def run_seed(work: Path, seed: int) -> dict[str, Any]:
    """Train all arms of a seed, and measure their accuracies."""
    began, data = time.monotonic(), make_data(seed)
    folder = work / f"seed{seed}-{hash_settings({'seed': seed})}"
    start = finish_run(folder / "start", CONFIG.replace(seed=seed, **START)) / "last"
    total_steps = {rounds * steps for rounds, steps in ROUNDS.values()}
    if len(total_steps) > 1:
        raise ValueError(f"all arms in ROUNDS must have the same number of steps, got {ROUNDS}")
    pooled, heldout = ([problem for problems in split.values() for problem in problems] for split in data)
    prompts = len(CLIENTS) * CONFIG.sampling.prompts
    run = train_from(start, folder / "pooled", pooled, heldout, steps=total_steps.pop(), prompts=prompts, seed=seed)
    row = {"before": accuracies_of(start, data), "pooled": accuracies_of(run / "last", data)}
    for arm, (rounds, steps) in ROUNDS.items():
        model, clients = train_in_rounds(start, folder / arm.replace(" ", "-"), data, seed, rounds=rounds, steps=steps)
        row[arm] = accuracies_of(model, data)
        if rounds == 1:
            alone = [accuracies_of(client / "last", data) for client in clients]
            row["alone"] = {operator: sum(found[operator] for found in alone) / len(alone) for operator in CLIENTS}
    return row | {"seconds": round(time.monotonic() - began, 1)}


def by_seed(rows: Rows, arm: str, operator: str | None = None) -> dict[int, float]:
    """Return an arm's accuracy on an operator, or if that is None, the mean over the operators, by seed."""
    return {row["seed"]: sum(row[arm].values()) / len(row[arm]) if operator is None else row[arm][operator] for row in rows}


def report(rows: Rows) -> str:
    """Format means over the seeds with their intervals, and differences from the pooled run, in Markdown."""
    header = [*(f"`{operator}`" for operator in CLIENTS), "mean of both", "mean, minus `pooled`"]
    lines = [f"| arm | {' | '.join(header)} |", f"|{' --- |' * (len(header) + 1)}"]
    for arm in ("before", *ARMS):
        cells = [format_percent(by_seed(rows, arm, operator)) for operator in (*CLIENTS, None)]
        difference = "" if arm in ("before", "pooled") else format_points(by_seed(rows, arm), by_seed(rows, "pooled"))
        lines.append(f"| {arm} | {' | '.join([*cells, difference])} |")
    if len(rows) >= FEWEST_SEEDS:
        lines += ["", *verdict_table(claims(rows), when="before")]
    return "\n".join(lines) + "\n"


def claims(rows: Rows) -> Iterator[Comparison]:
    """Yield the claims about the mean accuracy."""
    means = {arm: by_seed(rows, arm) for arm in ("before", *ARMS)}
    yield Comparison(
        "averaging in three rounds is as good as pooling the data", means["three rounds"], means["pooled"], "equal"
    )
    yield Comparison("three rounds are better than clients alone", means["three rounds"], means["alone"])
    yield Comparison("three rounds are better than one", means["three rounds"], means["one round"])


def main(arguments: Arguments) -> None:
    """Run the seeds that are missing from the JSON file, save the file after each seed, and write the table at the end."""
    file = arguments.out.with_suffix(".json")
    wanted = [{"seed": seed} for seed in arguments.seeds]
    rows = add_missing_rows(file, wanted, partial(run_seed, arguments.work), settings=hash_settings)
    write_page(
        file,
        f"python experiments/federated.py --seeds {' '.join(map(str, arguments.seeds))}",
        f"accuracy of greedy answers to {HELDOUT} held-out problems of each operator, means over the seeds with 95 % t intervals; "
        "differences are paired by seed, in points.",
        report(rows),
    )


if __name__ == "__main__":
    main(tyro.cli(Arguments))
