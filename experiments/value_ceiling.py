"""How well can a critic know the outcome? VAPO's value pretraining on the default task, against what no critic can pass.

The ceiling is the explained variance of the true value function. It is estimated by finishing each of two thousand states of
new responses 64 times: the mean reward of a state's continuations is its Monte-Carlo value. Both figures are of the same states and
the same outcomes; the outcome of a state's own response takes no part in its Monte-Carlo value. They are measured on training
prompts, and on held-out prompts, which have more short problems (most of the few that there are of two numbers).

Command:

    python experiments/value_ceiling.py --seeds 0 1 2 --out experiments/value_ceiling

Deviations from VAPO (arXiv:2504.05118): more, smaller rollouts than its 50 of 8192 responses and a higher learning rate, since the
model is small and starts from random weights; rewards are 1 / 0.

It writes value_ceiling.json and value_ceiling.png (explained variance of new rollouts over the steps of value pretraining).
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from matplotlib.figure import Figure

import rljax
from rljax.cli import load_experiment
from rljax.models import Params
from rljax.ops.value import explained_variance
from rljax.rollout import Engine, Groups
from rljax.rollout.continuations import continued_rewards, draw_states
from rljax.training import checkpoint as checkpoints
from rljax.training.critic import Valuer, make_values
from rljax.training.loop import initial_state
from rljax.training.rollouts import as_sequences
from rljax.training.run_folder import read_metrics
from rljax.training.setup import make_setup

CONFIG = replace(
    load_experiment("arithmetic_dapo"),
    name="value_ceiling",
    algorithm="vapo",
    algorithm_options={},
    value_pretraining_steps=200,
    steps=0,
)


@dataclass
class Arguments:
    """What to measure."""

    out: Path = Path("experiments/value_ceiling")
    """Where the figures go, less .json and .png."""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    """One run each."""
    states: int = 2048
    """States of new responses, for each kind of prompts."""
    continuations: int = 64
    """Of each state."""
    responses: int = 4096
    """New responses that the states are drawn from, over as many prompts as there are."""


def explained(values: np.ndarray, outcomes: np.ndarray) -> float:
    """Explained variance of one number a state."""
    return float(explained_variance(jnp.asarray(values), jnp.asarray(outcomes), jnp.ones(len(values), bool)))


def sampled(engine: Engine, params: Params, arguments: Arguments, seed: int) -> Groups:
    """New responses to the engine's prompts, to as many as possible."""
    count = len(engine.prompts.tokens)
    size = -(-arguments.responses // count)
    problems = np.random.default_rng(seed).permutation(count)[: arguments.responses // size]
    return engine.generate(params, problems.tolist(), size, jax.random.key(seed + 1))


def compared(engine: Engine, params: Params, groups: Groups, values: np.ndarray, arguments: Arguments, seed: int) -> dict:
    """The critic beside the Monte-Carlo value, on states of one rollout."""
    states = draw_states(groups, arguments.states, seed=seed)
    rewards = continued_rewards(
        engine, params, groups, states, continuations=arguments.continuations, key=jax.random.key(seed + 2)
    )
    outcomes = np.array([groups.rewards[state.group, state.response] for state in states], np.float32)
    critic = np.array([values[state] for state in states], np.float32)
    ceiling, reached = explained(rewards.mean(-1), outcomes), explained(critic, outcomes)
    return {
        "ceiling": ceiling,
        "critic": reached,
        "share": reached / ceiling,
        "root_mean_square_distance_of_values": float(np.sqrt(np.square(critic - rewards.mean(-1)).mean())),
        "mean_outcome": float(outcomes.mean()),
    }


def measure(arguments: Arguments, seed: int) -> dict:
    """Pretrain a critic, and compare it with the Monte-Carlo value on new responses to training and to held-out prompts."""
    config = replace(CONFIG, seed=seed)
    run = rljax.train(config).run
    setup, first_params = make_setup(config)
    state = checkpoints.restore(run / "checkpoints" / "last", initial_state(setup, first_params())).state
    valuer = Valuer(setup.critic, setup.algorithm.critic.head, setup.prompt_length)
    values_of = make_values(valuer, setup.mesh, config.microbatch)
    heldout = setup.sampler(temperature=config.temperature, top_k=None, top_p=None)
    results = {}
    for name, engine in {"training_prompts": setup.train, "heldout_prompts": heldout}.items():
        groups = sampled(engine, state.params, arguments, seed)
        values = values_of(state.critic.params, as_sequences(groups)).reshape(groups.mask.shape)
        results[name] = compared(engine, state.params, groups, values, arguments, seed)
    curve = [row["explained_variance"] for row in read_metrics(run / "metrics.jsonl") if row["phase"] == "value"]
    return {"seed": seed, **results, "curve": curve}


def draw(results: list[dict], path: Path) -> None:
    """Explained variance over the steps of value pretraining, with each seed's ceiling."""
    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for index, result in enumerate(results):
        colour = f"C{index}"
        axes.plot(range(1, len(result["curve"]) + 1), result["curve"], color=colour, label=f"critic, seed {result['seed']}")
        axes.axhline(result["training_prompts"]["ceiling"], color=colour, linestyle="--", linewidth=1)
    axes.set(xlabel="step of value pretraining", ylabel="explained variance of new responses", ylim=(-0.1, 0.6))
    axes.set_title("Critic against what no critic can pass (dashed: 64 continuations a state)", fontsize=10)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main(arguments: Arguments) -> None:
    """Measure every seed, and write both files."""
    results = [measure(arguments, seed) for seed in arguments.seeds]
    for result in results:
        print({name: value for name, value in result.items() if name != "curve"})
    arguments.out.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    draw(results, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main(tyro.cli(Arguments))
