"""Compare the critic after VAPO's value pretraining with the best possible critic, on short sums.

The ceiling for any critic is the explained variance of the true value function. To estimate it, each of two thousand states of
new responses is continued 64 times; the mean reward of a state's continuations is its Monte-Carlo value. The outcome of the
state's own response is not part of this mean. The ceiling and the critics are evaluated on the same states and outcomes, once for
training prompts and once for held-out prompts. Short problems are more frequent among the held-out prompts, which include most
of the few problems with two numbers.

Two critics of the same policy are measured: one that reads the tokens, as in the papers, and one that also reads the
log-probability of each token under the policy (`critic_surprisal`).

Command:

    python experiments/value_ceiling.py --seeds 0 1 2 --out experiments/value_ceiling

Deviations from VAPO (arXiv:2504.05118): more rollouts, each smaller, than VAPO's 50 rollouts of 8192 responses; two
passes over each rollout; a higher learning rate, since the model is small and starts from random weights; rewards are 1 / 0.

The command writes value_ceiling.json and value_ceiling.png, a plot of the explained variance on new rollouts over the steps of
value pretraining.
"""

import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from jaxtyping import Float
from matplotlib.figure import Figure

import rljax
from rljax import load_config
from rljax.models import Params
from rljax.ops.value import explained_variance
from rljax.rollout import Groups, RolloutWorker, sequences_of
from rljax.rollout.continuations import StateIndex, judge_continuations, sample_states
from rljax.tracking.rows import read_metrics
from rljax.training.checkpoints.checkpoint import LAST, restore
from rljax.training.lifecycle.initial_state import state_like
from rljax.training.rollout_data import scored_rows
from rljax.training.setup import Setup, make_setup
from rljax.training.state import TrainState
from rljax.training.value_update import make_values

CONFIG = load_config("arithmetic_algorithms").replace(
    name="value_ceiling",
    algorithm="vapo",
    algorithm_options={},
    value_pretraining_steps=200,
    value_pretraining_passes=2,
    steps=0,
)
CRITICS = {"reads tokens": False, "reads log-probabilities too": True}
"""Name of a critic -> its setting `critic_surprisal`."""
SMOOTHED = 10
"""Number of value-pretraining steps averaged for one point of the plot."""


@dataclass
class Arguments:
    """Arguments of the experiment."""

    out: Path = Path("experiments/value_ceiling")
    """Path of the output files, without the endings `.json` and `.png`."""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    """Random seeds, with one measurement each."""
    states: int = 2048
    """Number of states of new responses, for each kind of prompt."""
    continuations: int = 64
    """Number of continuations of each state."""
    responses: int = 4096
    """Number of new responses from which the states are sampled, spread over as many prompts as possible."""


class PretrainedRun(NamedTuple):
    """A run after value pretraining."""

    setup: Setup
    """Setup of the run: its models, workers and settings."""
    state: TrainState
    """The state after the last step of value pretraining."""
    curve: list[float]
    """Explained variance of each rollout, before the critic was trained on it."""

    def values(self, groups: Groups) -> Float[np.ndarray, "P G T"]:
        """Compute the critic's value before each response token."""
        values_of = make_values(self.setup.critic, self.setup.mesh, scored_rows(self.setup))
        return values_of(self.state.critic.params, sequences_of(groups)).reshape(groups.tokens.shape)


class SampledStates(NamedTuple):
    """New responses, some of their states, and the outcomes and Monte-Carlo values of these states."""

    groups: Groups
    """The responses."""
    states: list[StateIndex]
    """S states of these responses."""
    outcomes: Float[np.ndarray, " S"]
    """Reward of each state's own response."""
    monte_carlo_values: Float[np.ndarray, " S"]
    """Mean reward of each state's continuations: its Monte-Carlo value."""


def explained_variance_of_states(values: np.ndarray, outcomes: np.ndarray) -> float:
    """Compute the fraction of the outcomes' variance that the values explain, with one value per state."""
    return float(explained_variance(jnp.asarray(values), jnp.asarray(outcomes), jnp.ones(len(values), bool)))


def pretrain(seed: int, *, surprisal: bool) -> PretrainedRun:
    """Run the warm start and value pretraining."""
    config = CONFIG.replace(seed=seed, critic_surprisal=surprisal)
    run = rljax.train(config).run
    setup = make_setup(config)
    state = restore(run / "checkpoints" / LAST, partial(state_like, setup)).checkpoint.state
    rows = [row for row in read_metrics(run / "metrics.jsonl") if row["phase"] == "value"]
    return PretrainedRun(setup, state, [row["explained_variance"] for row in rows])


def sample(worker: RolloutWorker, params: Params, arguments: Arguments, seed: int) -> SampledStates:
    """Sample new responses to as many prompts as possible, and estimate the Monte-Carlo values of some of their states."""
    count = len(worker.prompts.tokens)
    size = -(-arguments.responses // count)
    prompt_ids = np.random.default_rng(seed).permutation(count)[: arguments.responses // size]
    groups = worker.generate(params, prompt_ids.tolist(), size, jax.random.key(seed + 1))
    states = sample_states(groups, arguments.states, seed=seed)
    rewards = judge_continuations(
        worker, params, groups, states, continuations=arguments.continuations, key=jax.random.key(seed + 2), rows=1024
    )
    outcomes = np.array([groups.rollout.rewards[state.group, state.response] for state in states], np.float32)
    return SampledStates(groups, states, outcomes, rewards.mean(-1))


def compare(critics: dict[str, PretrainedRun], sampled: SampledStates) -> dict:
    """Compute the ceiling, and compare each critic with the ceiling and with the Monte-Carlo values."""
    ceiling = explained_variance_of_states(sampled.monte_carlo_values, sampled.outcomes)
    figures = {}
    for name, critic in critics.items():
        token_values = critic.values(sampled.groups)
        values = np.array([token_values[state] for state in sampled.states], np.float32)
        reached = explained_variance_of_states(values, sampled.outcomes)
        figures[name] = {
            "explained_variance": reached,
            "share": reached / ceiling,
            "root_mean_square_distance_of_values": float(np.sqrt(np.square(values - sampled.monte_carlo_values).mean())),
        }
    return {"ceiling": ceiling, "mean_outcome": float(sampled.outcomes.mean()), "critics": figures}


def measure(arguments: Arguments, seed: int) -> dict:
    """Pretrain both critics of one policy, and evaluate them on new responses to training and held-out prompts."""
    critics = {name: pretrain(seed, surprisal=surprisal) for name, surprisal in CRITICS.items()}
    (setup, state, _), *others = critics.values()
    for other in others:
        jax.tree.map(np.testing.assert_array_equal, state.params, other.state.params)
    heldout = setup.heldout.with_sampling(temperature=setup.config.sampling.temperature)
    workers = {"training_prompts": setup.train, "heldout_prompts": heldout}
    figures = {name: compare(critics, sample(worker, state.params, arguments, seed)) for name, worker in workers.items()}
    return {"seed": seed, **figures, "curves": {name: critic.curve for name, critic in critics.items()}}


def smooth(curve: list[float]) -> Float[np.ndarray, " N"]:
    """Average a curve over blocks of `SMOOTHED` steps."""
    return np.array(curve[: len(curve) // SMOOTHED * SMOOTHED]).reshape(-1, SMOOTHED).mean(-1)


def draw(results: list[dict], path: Path) -> None:
    """Plot the explained variance over the steps of value pretraining, one line per seed, and the range of the seeds' ceilings."""
    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for index, result in enumerate(results):
        for color, (name, curve) in enumerate(result["curves"].items()):
            points = smooth(curve)
            steps = (np.arange(len(points)) + 1) * SMOOTHED
            label = None if index else f"critic that {name}"
            axes.plot(steps, points, color=f"C{color}", linewidth=1, label=label)
    ceilings = [result["training_prompts"]["ceiling"] for result in results]
    axes.axhspan(min(ceilings), max(ceilings), color="0.85", label="ceiling, lowest to highest seed", zorder=0)
    axes.set(xlabel="step of value pretraining", ylabel="explained variance of new responses", ylim=(-0.05, 0.35))
    axes.set_title("Two critics of one policy, against what no critic can pass", fontsize=10)
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main(arguments: Arguments) -> None:
    """Measure every seed, and write both files after each."""
    results = []
    for seed in arguments.seeds:
        results.append(measure(arguments, seed))
        print({name: value for name, value in results[-1].items() if name != "curves"})
        arguments.out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        draw(results, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main(tyro.cli(Arguments))
