"""Games whose turns are single letters, for experiments with agents: settings, one game, its training, and a page with a plot."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro
from matplotlib.figure import Figure

import rljax
from lab.claims import over_seeds
from lab.rows import Comparison, add_missing_rows, format_percent, verdict_table, write_page
from rljax.tracking.rows import read_metrics

LETTERS = "abcdefghijklmno"
HINTS = "<>"
"""Answers to a wrong guess: the letter comes before the guess, or after it."""
FIRST_ID = 2
"""Token id of the first letter."""
GAME = rljax.TrainConfig.flat(
    tokenizer=f"characters:{LETTERS}{HINTS}?",
    stop_ids=tuple(range(FIRST_ID, FIRST_ID + len(LETTERS))),
    layers=2,
    width=48,
    heads=4,
    kv_heads=4,
    hidden=96,
    algorithm="grpo",
    algorithm_options={"beta": 0.0},
    heldout_problems=len(LETTERS),
    max_prompt_tokens=12,
    max_response_tokens=12,
    prompts=len(LETTERS),
    group_size=16,
    learning_rate_warmup=5,
    checkpoint_every=10_000,
    sample_every=0,
    models="none",
    quiet=True,
)
"""Settings of a policy with random initial parameters; a turn ends with its first letter, so the policy needs no demonstrations."""


class GuessState(NamedTuple):
    """State of an episode."""

    letter: str
    """The letter to find."""
    turns: int
    """Number of turns left."""


class GuessTheLetter:
    """Find one of 15 letters in at most four turns, for a reward of 1; a wrong guess is answered with "<" or ">".

    A perfect player halves the interval with each guess and always wins. A problem's column `turns` replaces the number of turns.
    """

    max_turns = 4

    def reset(self, problem: rljax.Problem) -> GuessState:
        """Begin an episode."""
        turns: Any = problem.columns.get("turns", self.max_turns)
        return GuessState(problem.answer, turns)

    def step(self, state: GuessState, completion: str) -> rljax.Step:
        """Answer a guess, the last character of the turn."""
        guess, left = completion[-1:], state.turns - 1
        if guess == state.letter:
            return rljax.Step(state, reward=1.0, correct=True)
        hint = HINTS[guess < state.letter] if guess and guess in LETTERS else "?"
        return rljax.Step(state._replace(turns=left), hint, reward=0.0, done=left == 0, correct=False)


def train_game(
    config: rljax.TrainConfig,
    environment: rljax.Environment | None,
    problems: tuple[Sequence[rljax.Problem], Sequence[rljax.Problem]],
    observed: Callable[[Mapping[str, float]], float] = lambda row: row["turns"] - 1,
    **parts: Any,
) -> dict[str, Any]:
    """Train a policy on a game, and return its learning curve.

    Args:
        config: the settings.
        environment: the game; None if a response is one turn, which a reward function scores.
        problems: training and held-out problems.
        observed: metrics of a step -> mean number of an episode's tokens that the game wrote; by default, one between two turns.
        **parts: further arguments of `rljax.train`.

    Returns:
        `accuracy` and `tokens`: at each evaluation, the held-out accuracy and the number of tokens sampled so far. An episode
        without a verdict counts as unsolved.
    """
    with TemporaryDirectory() as folder:
        config = config if config.run.folder is not None else config.replace(run=f"{folder}/run")
        run = rljax.train(config, environment=environment, problems=problems, **parts).run
        rows = read_metrics(run / "metrics.jsonl")
    lengths = [row["response_length"] - observed(row) for row in rows if row["phase"] == "rl"]
    sampled = np.cumsum([0, *lengths]) * config.sampling.prompts * config.sampling.group_size
    shown = [row for row in rows if row["phase"] == "eval"]
    return {
        "accuracy": [round(row["accuracy"] * row["judged"] / len(problems[1]), 4) for row in shown],
        "tokens": [int(sampled[row["step"]]) for row in shown],
    }


def accuracy_at(row: Mapping[str, Any], tokens: float) -> float:
    """Interpolate the held-out accuracy of a run at a number of sampled tokens.

    Example:
        >>> accuracy_at({"tokens": [0, 100], "accuracy": [0.2, 0.6]}, 50)
        0.4
    """
    return float(np.interp(tokens, row["tokens"], row["accuracy"]))


@dataclass(frozen=True)
class Arguments:
    """Arguments of an experiment."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Random seeds; all arms use the same ones."""
    out: Path | None = None
    """Path of the output files, without the endings `.json`, `.md` and `.png`; by default those of the experiment."""


AccuracyBySeed = Mapping[str, Sequence[Mapping[int, float]]]
"""Arm -> its accuracy by seed at 0, 1/4, 1/2, 3/4 and all of the sampled tokens."""


def run_experiment(
    name: str,
    arms: Collection[str],
    run_arm: Callable[[str, int], Mapping[str, Any]],
    hash_settings: Callable[[Mapping[str, Any]], str],
    compare: Callable[[AccuracyBySeed], Sequence[Comparison]],
    *,
    title: str,
    caption: str,
) -> None:
    """Do the runs that are missing from the JSON file, then write the table and the plot.

    Args:
        name: name of the script, and of the files that it writes.
        arms: names of the arms.
        run_arm: arm and seed -> what `train_game` returns.
        hash_settings: row -> hash of the settings that it depends on.
        compare: accuracies at equal numbers of sampled tokens -> the comparisons to report.
        title: title of the plot.
        caption: what the table shows.
    """
    arguments = tyro.cli(Arguments)
    keep_compiled(Path("runs", name, "compiled"))
    file = (arguments.out or Path("experiments", name)).with_suffix(".json")
    wanted = [{"arm": arm, "seed": seed} for seed in arguments.seeds for arm in arms]
    rows = add_missing_rows(file, wanted, run_arm, settings=hash_settings)
    rows_of_arm = {arm: [row for row in rows if row["arm"] == arm] for arm in arms}
    caption = f"{caption}, at equal numbers of sampled tokens, mean over the seeds with a 95 % t interval."
    write_page(file, f"python experiments/{name}.py", caption, report(rows_of_arm, compare))
    draw_curves({title: rows_of_arm}, file.with_suffix(".png"))


def report(
    arms: Mapping[str, Sequence[Mapping[str, Any]]], compare: Callable[[AccuracyBySeed], Sequence[Comparison]]
) -> str:
    """Format the accuracy of each arm at equal numbers of sampled tokens, and the comparisons."""
    most = min(row["tokens"][-1] for rows in arms.values() for row in rows)
    shown = [most * quarter / 4 for quarter in range(5)]
    found = {arm: [{row["seed"]: accuracy_at(row, at) for row in rows} for at in shown] for arm, rows in arms.items()}
    lines = [f"| arm | {' | '.join(f'{tokens / 1000:.0f}k tokens' for tokens in shown)} |", f"|{' --- |' * 6}"]
    lines += [f"| {arm} | {' | '.join(map(format_percent, cells))} |" for arm, cells in found.items()]
    return "\n".join([*lines, "", *verdict_table(compare(found), margin=0.02, when="before")]) + "\n"


def keep_compiled(folder: Path) -> None:
    """Cache compiled programs in a folder, so that the runs of an experiment share them."""
    jax.config.update("jax_compilation_cache_dir", str(folder.absolute()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def draw_curves(panels: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]], file: Path) -> None:
    """Plot the accuracy of arms over the tokens sampled: mean over the seeds, with its interval.

    Args:
        panels: title -> arm -> rows of `train_game`, one for each seed.
        file: image file to write.
    """
    figure = Figure(figsize=(5.2 * len(panels), 3.4), dpi=120, layout="constrained")
    for axes, (title, arms) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for color, (arm, rows) in enumerate(arms.items()):
            tokens = np.mean([row["tokens"] for row in rows], axis=0)
            intervals = [over_seeds(column) for column in np.array([row["accuracy"] for row in rows]).T]
            axes.plot(tokens / 1000, [each.value for each in intervals], "o-", color=f"C{color}", label=arm, markersize=3)
            low, high = [each.low for each in intervals], [each.high for each in intervals]
            axes.fill_between(tokens / 1000, low, high, color=f"C{color}", alpha=0.15, linewidth=0)
        axes.set(xlabel="sampled tokens, thousands", ylabel="held-out accuracy", ylim=(0, 1.02))
        axes.set_title(title, fontsize=9)
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file)
