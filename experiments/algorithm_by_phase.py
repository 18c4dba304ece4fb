"""Can a bandit that chooses the algorithm of each phase of a run beat the best fixed algorithm, at equal sampled tokens?

A run is a chain of phases of four RL steps on the task `brackets` of experiments/tasks_that_separate.py, half of whose
demonstrations are malformed. The choice is among three of that experiment's algorithms, which differ clearly there: GRPO
alone, GRPO with a loss on demonstrations, and GRPO with a KL penalty of weight 4. In the arms `always A` all phases use one of
them; in `random` each phase uses a random one; in `bandit` UCB1 chooses. The bandit's reward for a phase is the phase's
gain in greedy accuracy on validation problems; these are neither trained on nor among the test problems that the table
reports. The chain ends with the first phase after which the sampled tokens have reached a budget, the same for all arms.

A switch carries the parameters of the model and nothing else: each phase, also in the fixed arms, begins with a new
optimizer state and with the current model as the reference of the KL penalty, so `always KL 4` only keeps the model near
its state at the beginning of the current phase.

Command:

    python experiments/algorithm_by_phase.py     (an estimated ten minutes on one CPU core)

A finished run is not repeated, unless the settings have changed; `--seeds` and `--minutes` run only a part.

Deviations: the idea is from a design document, which asks for a trained policy that chooses the algorithm for each phase,
but has no equation. UCB1 differs from its paper: the bandit's rewards are scaled by the range seen so far, because a phase
gains only a few points, and the exploration bonus has the weight 0.5 instead of √2, because a run has few phases. All
settings, including the bandit's, were fixed before the first run.

The command writes OUT.json, with a row for each seed and arm, and OUT.md.
"""

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro
from tasks_that_separate import config_of, config_of_arm, ensure_base_model

import rljax
from lab.rows import add_missing_rows, format_points, write_page
from rljax.files import settings_hash
from rljax.models import Policy
from rljax.models.policy import HostParams
from rljax.parallel import mesh_of
from rljax.tracking.rows import read_metrics
from rljax.training.objective.algorithm import resolved_settings
from rljax.training.parts.policy import make_policy
from rljax.training.parts.problems import make_problems
from rljax.training.parts.tokenizer import make_tokenizer

TASK, ALGORITHMS = "brackets", ("alone", "demonstrations", "KL 4")
STEPS = 4
"""RL steps of a phase."""
BUDGET = 20_000
"""Sampled tokens after which a run ends."""
VALIDATION, TEST = 128, 256
"""Number of held-out problems that measure the bandit's gains, and of those whose accuracy is reported."""
EXPLORATION = 0.5
"""Weight of the bandit's exploration bonus."""
CHOOSERS = ("bandit", "random")
ARMS = (*(f"always {name}" for name in ALGORITHMS), *CHOOSERS)
Rows = Sequence[Mapping[str, Any]]
Problems = Sequence[rljax.Problem]


@dataclass(frozen=True)
class Arguments:
    """Arguments of the experiment."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Random seeds of RL; all runs begin with the same model."""
    out: Path = Path("experiments/algorithm_by_phase")
    """Path of the output files, without the endings `.json` and `.md`."""
    minutes: float = 600.0
    """Number of minutes after which no new run is started."""
    work: Path = Path("runs/by-phase")
    """Folder for the base model and the compiled programs."""


class Phase(NamedTuple):
    """Result of one phase."""

    algorithm: str
    """The algorithm that the phase used."""
    tokens: int
    """Sampled tokens."""
    gain: float
    """Validation accuracy after the phase minus before it: the bandit's reward."""


def choose_by_ucb(names: Sequence[str], past: Sequence[tuple[str, float]]) -> str:
    """Choose the next phase's algorithm by UCB1: first each algorithm once, in order, then the one with the highest upper bound.

    ::

        argmax_k  mean of k's scaled gains + c √(ln n / n_k)        scaled gain = (gain - lowest) / (highest - lowest)

    Args:
        names: the K algorithms.
        past: algorithm and gain of each of the n phases so far.

    Example:
        >>> past = [("a", 0.1), ("b", 0.0), ("a", 0.1)]
        >>> choose_by_ucb("abc", past), choose_by_ucb("ab", past), choose_by_ucb("ab", past[:2])
        ('c', 'a', 'a')

    Source:
        Auer, Cesa-Bianchi and Fischer 2002, "Finite-time Analysis of the Multiarmed Bandit Problem", Figure 1 (UCB1, with c = √2
        and rewards in [0, 1]).
    """
    gains = {name: [gain for each, gain in past if each == name] for name in names}
    untried = [name for name in names if not gains[name]]
    if untried:
        return untried[0]
    low, high = (function(gain for _, gain in past) for function in (min, max))

    def bound(name: str) -> float:
        scaled = (np.mean(gains[name]) - low) / (high - low) if high > low else 0.0
        return float(scaled) + EXPLORATION * math.sqrt(math.log(len(past)) / len(gains[name]))

    return max(names, key=bound)


def choose(arm: str, phases: Sequence[Phase], random: np.random.Generator) -> str:
    """Choose the algorithm of the next phase of an arm."""
    if arm == "random":
        return ALGORITHMS[random.integers(len(ALGORITHMS))]
    if arm == "bandit":
        return choose_by_ucb(ALGORITHMS, [(phase.algorithm, phase.gain) for phase in phases])
    return arm.removeprefix("always ")


def config_of_phase(algorithm: str, seed: int) -> rljax.TrainConfig:
    """Build the settings of a phase, except for its run directory."""
    config = config_of_arm(TASK, algorithm, seed).replace(warm_start_steps=0, warm_start_accuracy=None)
    return config.replace(steps=STEPS, eval_every=STEPS, learning_rate_warmup=0, heldout_problems=VALIDATION + TEST)


def hash_settings(row: Mapping[str, Any]) -> str:
    """Hash the settings that a row depends on."""
    configs = [resolved_settings(config_of_phase(name, row["seed"])) for name in ALGORITHMS]
    return settings_hash(configs, VALIDATION, BUDGET, EXPLORATION)


def train_phase(
    config: rljax.TrainConfig, policy: Policy, params: HostParams, problems: tuple[Problems, Problems]
) -> tuple[HostParams, int, float, float]:
    """Train one phase from `params`, with a new optimizer state.

    Returns:
        The parameters after the phase, the number of sampled tokens, and the held-out accuracy before and after the phase.
    """
    with TemporaryDirectory() as folder:
        # only `init` changes, so the compiled programs of earlier phases are reused
        started = policy._replace(init=lambda key: jax.tree.map(jax.numpy.asarray, params))
        result = rljax.train(config.replace(run=f"{folder}/run"), policy=started, problems=problems)
        steps = [row for row in read_metrics(result.run / "metrics.jsonl") if row["phase"] == "rl"]
    rows = config.sampling.prompts * config.sampling.group_size
    tokens = round(sum(step["response_length"] * rows for step in steps))
    return jax.device_get(result.params), tokens, result.accuracy_before, result.accuracy_after


def train_chain(work: Path, seed: int, arm: str) -> dict[str, Any]:
    """Train phases until the sampled tokens reach the budget, and measure the last model on the test problems."""
    settings = config_of(TASK).replace(model=str(ensure_base_model(TASK, work)))
    policy = make_policy(settings.model, make_tokenizer(settings), mesh_of(settings.devices))
    params, random, phases = jax.device_get(policy.init(jax.random.key(0))), np.random.default_rng(seed), []
    train, heldout = make_problems(config_of_phase(ALGORITHMS[0], seed))[:2]
    before = None
    while sum(phase.tokens for phase in phases) < BUDGET:
        config = config_of_phase(algorithm := choose(arm, phases, random), 1000 * seed + len(phases))
        params, tokens, start, end = train_phase(config, policy, params, (train, heldout[:VALIDATION]))
        before = start if before is None else before
        phases.append(Phase(algorithm, tokens, round(end - start, 4)))
    config = config_of_phase(ALGORITHMS[0], seed).replace(steps=0)
    after = train_phase(config, policy, params, (train, heldout[VALIDATION:]))[-1]
    return {"validation before": before, "test": after, "phases": phases}


def by_seed(rows: Rows, arm: str) -> dict[int, float]:
    """Return the accuracy on the test problems, by seed."""
    return {row["seed"]: row["test"] for row in rows if row["arm"] == arm}


def report(rows: Rows) -> str:
    """Format the accuracies of the arms, and the bandit minus the best fixed algorithm and minus a random choice, in Markdown."""
    lines = ["| arm | mean accuracy (range over seeds) | phases | phases of each algorithm |", f"|{' --- |' * 4}"]
    for arm in ARMS:
        own, values = [row for row in rows if row["arm"] == arm], [*by_seed(rows, arm).values()]
        used = [phase[0] for row in own for phase in row["phases"]]
        shares = ", ".join(f"{name} {used.count(name) / len(own):.1f}" for name in ALGORITHMS)
        text = f"{np.mean(values):.1%} ({min(values):.1%} to {max(values):.1%})"
        lines.append(f"| {arm} | {text} | {len(used) / len(own):.1f} | {shares if arm in CHOOSERS else ''} |")
    fixed = max(ARMS[: -len(CHOOSERS)], key=lambda arm: np.mean([*by_seed(rows, arm).values()]))
    lines += ["", f"The best fixed arm in hindsight is `{fixed}`.", ""]
    bandit = by_seed(rows, "bandit")
    for other in (fixed, "random"):
        pairs = by_seed(rows, other)
        seeds = ", ".join(f"{100 * (bandit[seed] - pairs[seed]):+.1f}" for seed in bandit)
        lines.append(f"- `bandit` minus `{other}`: {format_points(bandit, pairs)} points; by seed {seeds}.")
    return "\n".join(lines) + "\n"


def main(arguments: Arguments) -> None:
    """Do the runs that the JSON file does not have yet; save it after each run, then write the page."""
    jax.config.update("jax_compilation_cache_dir", str((arguments.work / "compiled").absolute()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    file, start = arguments.out.with_suffix(".json"), time.monotonic()
    wanted = ({"seed": seed, "arm": arm} for seed, arm in itertools.product(arguments.seeds, ARMS))
    in_time = itertools.takewhile(lambda _: time.monotonic() - start <= 60 * arguments.minutes, wanted)
    rows = add_missing_rows(file, in_time, partial(train_chain, arguments.work), settings=hash_settings)
    if {row["arm"] for row in rows} == {*ARMS}:
        write_page(
            file,
            f"python experiments/algorithm_by_phase.py --seeds {' '.join(map(str, arguments.seeds))}",
            f"greedy accuracy on {TEST} test problems after {BUDGET:,} sampled tokens; phases of {STEPS} steps; differences are "
            "paired by seed, in points.",
            report(rows),
        )


if __name__ == "__main__":
    main(tyro.cli(Arguments))
