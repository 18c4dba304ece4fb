"""Learning curves of a pretrained model: one training run per arm and seed, their rows, tables and pictures.

The experiments of this folder differ in their problems, their reward and their arms. Each finished run is a row of
`experiments/real/NAME.json`, so an experiment can be stopped and started again.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

import rljax

sys.path.append(str(Path(__file__).resolve().parents[1]))  # experiments/, which contains lab
from lab.rows import add_missing_rows, format_percent, made_on, write_page
from rljax.files import settings_hash
from rljax.tracking.rows import read_metrics

HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
SHOWN = 6
"""Number of held-out problems whose responses are kept, before and after."""
CURVES = {
    "sampled": "accuracy",
    "entropy": "entropy",
    "length": "response_length",
    "sampler_gap": "sampler_gap",
    "clipped": "clip_fraction",
}
"""Name of a curve in a row -> the metric of an RL step."""
ON_ACCELERATORS = {"scan_layers": True, "remat": "full"}
"""Settings on accelerators, where compiling the layers one by one takes longer than the steps; the results are the same."""
Rows = Sequence[Mapping[str, Any]]
mean_text = partial(format_percent, fewest=3)
"""Formats the mean of a share over seeds. Three seeds suffice for an interval, because a run on a pretrained model takes long."""


@dataclass(frozen=True)
class Experiment:
    """What one experiment trains, and on what."""

    name: str
    """Name of its files."""
    caption: str
    """What its table shows."""
    config: rljax.TrainConfig
    """Settings that all arms share, without files."""
    arms: Mapping[str, Mapping[str, Any]]
    """Name of an arm -> how its settings differ from `config`."""
    reward: Callable | None
    """The reward, or None for the one that the settings name."""
    write_problems: Callable[[Path], tuple[Path, Path]] | None = None
    """Writes the training and the held-out problems into a folder; None if the settings name the problems."""
    measures: Mapping[str, Callable[[str, str], bool | None]] = field(default_factory=dict)
    """Name of a property of a response -> whether a response has it, given the answer; None leaves the response out. Its share of
    the held-out responses is reported before and after training."""


@dataclass(frozen=True)
class Arguments:
    """Arguments of an experiment."""

    model: str = HUB
    """Folder or hub id of the model."""
    arms: tuple[str, ...] = ()
    """Arms to run; all of them by default."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Random seeds; every arm has the same ones."""
    out: Path | None = None
    """Path of the output files, without the endings `.json`, `.md` and `.png`; by default in experiments/real."""
    work: Path | None = None
    """Folder for the problems, the runs and the compiled programs; by default in runs."""


def write_jsonl(folder: Path, train: Rows, heldout: Rows) -> tuple[Path, Path]:
    """Write training and held-out problems, and return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / "train.jsonl", folder / "heldout.jsonl"
    for file, rows in zip(files, (train, heldout), strict=True):
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return files


def config_of(experiment: Experiment, arm: str, seed: int) -> rljax.TrainConfig:
    """Build the settings of a run, without its files."""
    return experiment.config.replace(seed=seed, **experiment.arms[arm])


def settings_of(experiment: Experiment, row: Mapping[str, Any]) -> str:
    """Compute a hash of what a row depends on."""
    return settings_hash(config_of(experiment, row["arm"], row["seed"]).to_flat())


def row_of(experiment: Experiment, model: str, work: Path, arm: str, seed: int) -> dict[str, Any]:
    """Train one arm with one seed. An interrupted run is resumed."""
    run = work / f"{arm.lower().replace(',', '').replace(' ', '-')}-{seed}"
    files: dict[str, Any] = {"model": model, "run": str(run)}
    if jax.default_backend() != "cpu":
        files |= ON_ACCELERATORS
    if experiment.write_problems is not None:
        train, heldout = experiment.write_problems(work / "problems")
        files |= {"dataset": str(train), "heldout_dataset": str(heldout)}
    rljax.train(config_of(experiment, arm, seed).replace(**files), reward=experiment.reward, resume="auto")
    return {
        **curves_of(read_metrics(run / "metrics.jsonl")),
        **responses_of(experiment, run / "heldout.jsonl"),
        "made_on": made_on(),
    }


def curves_of(rows: Rows) -> dict[str, Any]:
    """Collect the curves of a run: by step, and the held-out accuracy with the response tokens sampled until then."""
    steps, evaluations = ([row for row in rows if row["phase"] == phase] for phase in ("rl", "eval"))
    sampled = [
        (row["step"] if row["phase"] == "rl" else 0, row["tokens_per_second"] * row["seconds"])
        for row in rows
        if "tokens_per_second" in row
    ]
    return {
        "accuracy": {str(row["step"]): row["accuracy"] for row in evaluations},
        "tokens": {
            str(row["step"]): round(sum(tokens for step, tokens in sampled if step <= row["step"])) for row in evaluations
        },
        **{
            name: [None if metric not in row else round(row[metric], 6) for row in steps]  # no group to train on: no update
            for name, metric in CURVES.items()
        },
        "seconds": round(sum(row["seconds"] for row in rows), 1),
    }


def responses_of(experiment: Experiment, file: Path) -> dict[str, Any]:
    """Collect from `heldout.jsonl` some responses before and after training, and the shares of the measured properties."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    first, last = ({row["problem"]: row for row in rows if row["step"] == step} for step in (0, rows[-1]["step"]))
    return {
        "answers": [
            {"prompt": first[name]["prompt"], "before": first[name]["completion"], "after": last[name]["completion"]}
            for name in [*first][:SHOWN]
        ],
        "shares": {
            name: [share_of(measure, [*part.values()]) for part in (first, last)]
            for name, measure in experiment.measures.items()
        },
    }


def share_of(measure: Callable[[str, str], bool | None], rows: Rows) -> float:
    """Compute the share of responses that have a property, among those that it applies to.

    Example:
        >>> rows = [{"completion": text, "answer": "4"} for text in ("4", "5", "")]
        >>> share_of(lambda text, answer: text == answer if text else None, rows)
        0.5
    """
    found = [measure(row["completion"], str(row["answer"])) for row in rows]
    return float(np.mean([each for each in found if each is not None]))


def arms_of(experiment: Experiment, rows: Rows) -> dict[str, list[Mapping[str, Any]]]:
    """Return the rows of each arm that has any, in the order of the arms."""
    found = {arm: [row for row in rows if row["arm"] == arm] for arm in experiment.arms}
    return {arm: own for arm, own in found.items() if own}


def cut_short(experiment: Experiment, rows: Rows) -> str:
    """Say after how many steps an arm's runs were stopped; empty if all of them did all steps."""
    done = min(len(row["sampled"]) for row in rows)
    steps = config_of(experiment, rows[0]["arm"], rows[0]["seed"]).optimization.steps
    return f" (stopped after {done} of {steps} steps)" if done < steps else ""


def report(experiment: Experiment, rows: Rows) -> str:
    """Format in Markdown the held-out accuracy over RL steps, as means over seeds with 95 % t intervals, and some responses."""
    shown = [*max((row["accuracy"] for row in rows), key=len)]
    lines = [
        f"| arm | seeds | {' | '.join(f'{step} steps' for step in shown)} | minutes per seed |",
        "| --- |" + " --- |" * (len(shown) + 2),
    ]
    for arm, own in arms_of(experiment, rows).items():
        cells = [
            mean_text({row["seed"]: row["accuracy"][step] for row in own}) if step in own[0]["accuracy"] else ""
            for step in shown
        ]
        minutes = np.mean([row["seconds"] for row in own]) / 60
        lines.append(f"| {arm}{cut_short(experiment, own)} | {len(own)} | {' | '.join(cells)} | {minutes:.0f} |")
    for name in experiment.measures:
        lines += ["", f"Share of held-out responses: {name}.", "", "| arm | before | after |", "| --- | --- | --- |"]
        for arm, own in arms_of(experiment, rows).items():
            cells = [mean_text({row["seed"]: row["shares"][name][when] for row in own}) for when in (0, 1)]
            lines.append(f"| {arm} | {' | '.join(cells)} |")
    first = rows[0]
    lines += [
        "",
        f"Responses of {first['arm']} with seed {first['seed']}, before and after:",
        "",
        "| question | before | after |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| {' | '.join(' '.join(each[name].replace('|', '/').split()) for name in ('prompt', 'before', 'after'))} |"
        for each in first["answers"]
    ]
    return "\n".join(lines) + "\n"


def at_tokens(row: Mapping[str, Any], tokens: float) -> float:
    """Interpolate the held-out accuracy of a run at a number of sampled tokens.

    Example:
        >>> at_tokens({"tokens": {"0": 0, "10": 100}, "accuracy": {"0": 0.2, "10": 0.6}}, 50)
        0.4
    """
    return float(np.interp(tokens, [*row["tokens"].values()], [*row["accuracy"].values()]))


def report_by_tokens(experiment: Experiment, rows: Rows, parts: int = 4) -> str:
    """Format in Markdown the held-out accuracy at equal numbers of sampled tokens, up to the fewest that a run has sampled."""
    most = min([*row["tokens"].values()][-1] for row in rows)
    shown = [most * part / parts for part in range(1, parts + 1)]
    lines = [
        "Accuracy at equal numbers of sampled tokens, interpolated between evaluations:",
        "",
        f"| arm | {' | '.join(f'{tokens / 1000:,.0f}k tokens' for tokens in shown)} |",
        "| --- |" + " --- |" * parts,
    ]
    for arm, own in arms_of(experiment, rows).items():
        cells = [mean_text({row["seed"]: at_tokens(row, tokens) for row in own}) for tokens in shown]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def plot(experiment: Experiment, rows: Rows, file: Path) -> None:
    """Plot held-out accuracy, entropy and response length over RL steps: a line per seed, a color per arm."""
    figure = Figure(figsize=(9, 3.2), dpi=120, layout="constrained")
    accuracy, entropy, length = figure.subplots(1, 3)
    for arm_index, (arm, own) in enumerate(arms_of(experiment, rows).items()):
        for number, row in enumerate(own):
            style: dict[str, Any] = {
                "color": f"C{arm_index}",
                "linewidth": 1.3,
                "alpha": 0.85,
                "label": None if number else arm,
            }
            accuracy.plot(
                [int(step) for step in row["accuracy"]], [100 * each for each in row["accuracy"].values()], "o-", **style
            )
            entropy.plot(range(1, len(row["entropy"]) + 1), np.asarray(row["entropy"], float), **style)
            length.plot(range(1, len(row["length"]) + 1), row["length"], **style)
    accuracy.set(title="held-out accuracy, %", ylim=(0, 100))
    entropy.set(title="entropy, nats per token", ylim=(0, None))
    length.set(title="response length, tokens", ylim=(0, None))
    accuracy.legend(frameon=False, fontsize=8, loc="best")
    for axes in (accuracy, entropy, length):
        axes.set_xlabel("RL step")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)


def run_experiment(experiment: Experiment, arguments: Arguments) -> None:
    """Do the runs that the JSON file does not have yet; then write the table and the picture."""
    work = arguments.work or Path("runs") / experiment.name
    file = (arguments.out or Path("experiments/real") / experiment.name).with_suffix(".json")
    jax.config.update("jax_compilation_cache_dir", str((work / "compiled").absolute()))
    wanted = [{"arm": arm, "seed": seed} for arm in arguments.arms or experiment.arms for seed in arguments.seeds]
    make = partial(row_of, experiment, arguments.model, work)
    write_results(experiment, file, add_missing_rows(file, wanted, make, settings=partial(settings_of, experiment)))


def commands_of(experiment: Experiment, rows: Rows) -> str:
    """Write the commands that make these rows, one for all arms with the same seeds, as Markdown without the outer backticks."""
    arms: dict[tuple[int, ...], list[str]] = {}
    for arm, own in arms_of(experiment, rows).items():
        arms.setdefault(tuple(sorted(row["seed"] for row in own)), []).append(repr(arm))
    script = f"python experiments/real/{experiment.name}.py"
    return "` and `".join(
        f"{script} --arms {' '.join(names)} --seeds {' '.join(map(str, seeds))}" for seeds, names in arms.items()
    )


def write_results(experiment: Experiment, file: Path, rows: Rows) -> None:
    """Write the page and the picture of an experiment's rows next to their file."""
    text = report(experiment, rows)
    if all("tokens" in row for row in rows) and len(experiment.arms) > 1:
        text += "\n" + report_by_tokens(experiment, rows)
    write_page(
        file,
        commands_of(experiment, rows),
        f"{experiment.caption}, mean over the seeds with a 95 % t interval, from three seeds on. The weights were dequantized from "
        f"4 bits, so they are near, but not equal to, those of {HUB}.",
        text,
        machine=rows[-1].get("made_on"),
    )
    plot(experiment, rows, file.with_suffix(".png"))
