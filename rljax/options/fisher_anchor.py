"""`--anchor`: a penalty pulls the policy towards the parameters at the start of the run, so that it keeps what it learned earlier.

The penalty is weighted by the diagonal Fisher information, which is estimated once, on the policy's own responses.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from rljax.caching import cache_results
from rljax.data.problem import Problem
from rljax.data.problem_datasets import load_problems
from rljax.data.prompts import left_pad
from rljax.errors import InputError
from rljax.models import Packed, Params, Scores
from rljax.ops.regularization import diagonal_fisher, fisher_anchor
from rljax.parallel import put_rows, row_shards
from rljax.records import required
from rljax.rollout import RolloutWorker, Sequences, pack_one_per_row
from rljax.rollout.groups import pad_responses
from rljax.training.config import TrainConfig
from rljax.training.parts.problems import is_run, training_problems
from rljax.training.scoring import make_score
from rljax.training.setup import Setup, encode_nonempty
from rljax.training.state import Frozen, Option, Shardings, TrainState, shardings_of

NAME = "fisher_anchor"
SAMPLES = 256
"""Number of responses on which the Fisher information is estimated."""


class Anchor(NamedTuple):
    """Parameters that the policy is pulled towards."""

    params: Params
    """Parameters of the policy at the start of the run."""
    fisher: Params
    """Diagonal of their Fisher information, with the same structure as the parameters."""


def install(setup: Setup) -> Setup:
    """Add the anchor."""
    weight = required(setup.config.algorithm.anchor, "anchor")
    option = Option(
        NAME,
        init=make_anchor,
        from_start=True,
        begin=lambda state: estimate_fisher(setup, state),
        gradient=make_penalty_gradient(weight),
    )
    return setup.with_option(option)


def make_anchor(params: Params) -> Anchor:
    """Make an anchor at these parameters. It has no effect until its Fisher information, which is 0 at first, is estimated."""
    return Anchor(jax.tree.map(jnp.copy, params), jax.tree.map(jnp.zeros_like, params))


def estimate_fisher(setup: Setup, state: TrainState) -> TrainState:
    """Estimate the Fisher information at the start of a new run, on responses sampled without top-k or top-p."""
    prompts = encode_nonempty(setup.config, anchor_problems(setup.config, most=SAMPLES), setup.tokenizer)
    worker = replace(setup.train, prompts=prompts).with_sampling(top_k=None, top_p=None)
    score = make_score(setup.policy, setup.config.sampling.temperature)
    return with_fisher(state, worker, score, setup.mesh)


@cache_results
def make_penalty_gradient(weight: float) -> Callable[..., tuple[Params, dict[str, Array]]]:
    """Build the function that adds the gradient of the penalty, λ F (θ - θ*), where θ* are the anchor's parameters.

    Source:
        Kirkpatrick et al., arXiv:1612.00796, Eq. 3.
    """

    def add_penalty(state: TrainState, frozen: Frozen, gradient: Params, data: PyTree) -> tuple[Params, dict[str, Array]]:
        del frozen, data
        anchor = state.options[NAME]

        def penalty(params: Params) -> Float[Array, ""]:
            return fisher_anchor(params, anchor.params, anchor.fisher, coefficient=weight)

        value, slope = jax.value_and_grad(penalty)(state.params)
        return jax.tree.map(jnp.add, gradient, slope), {"anchor_penalty": value}

    return add_penalty


def anchor_problems(config: TrainConfig, *, most: int) -> list[Problem]:
    """Choose some of the problems that an anchored policy should keep solving: training problems of an earlier run, or a dataset.

    Args:
        config: the settings; if they do not name a source, the source is the run whose folder contains the model.
        most: maximum number of problems; if the source has more, they are chosen at random.

    Raises:
        InputError: there is no source, it cannot be read, or the run's problems were passed from Python.
    """
    data, source, model = config.data, config.algorithm.anchor_problems, config.model.path
    if source is None and model is not None and is_run(Path(model).parent):
        source = str(Path(model).parent)
    if source is None:
        raise InputError(
            f"anchor={config.algorithm.anchor}: the problems that the policy should keep solving are unknown, because --model "
            "is not in the folder of a run; name a run or a dataset with --anchor-problems."
        )
    if is_run(Path(source)):
        problems = training_problems(Path(source), source, flag="--anchor-problems")
    else:
        problems = load_problems(source, prompt_column=data.prompt_column, answer_column=data.answer_column)
    chosen = np.random.default_rng(config.run.seed).permutation(len(problems))[:most]
    return [problems[index] for index in chosen]


def with_fisher(
    state: TrainState,
    worker: RolloutWorker,
    score: Callable[[Params, Packed], Scores],
    mesh: Mesh,
    *,
    samples: int = SAMPLES,
) -> TrainState:
    """Estimate the Fisher information of a state's anchor on the policy's own responses, and store the estimate in the state.

    Args:
        state: the state at the beginning of the run; the anchor's arrays are donated.
        worker: samples the responses, one per prompt; it cycles through its prompts.
        score: scores responses at the sampling temperature.
        mesh: the devices.
        samples: number of responses.
    """
    anchor: Anchor = state.options[NAME]
    unused_draw = jnp.uint32(2**32 - 1)  # `state.draws` never reaches this number
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), unused_draw)
    responses, mask = sample_responses(worker, state.params, samples, key)
    add, fisher = _squares_program(score, shardings_of(anchor.fisher), samples), anchor.fisher
    for row in range(samples):
        # Each device needs a row, so the response is copied; `counted` masks all copies except the first.
        rows = jax.tree.map(lambda array, row=row: array[[row] * row_shards(mesh)], responses)
        counted = mask[[row] * row_shards(mesh)]
        counted[1:] = False
        fisher = add(fisher, state.params, put_rows(mesh, pack_one_per_row(rows)), put_rows(mesh, counted))
    return state._replace(options=state.options | {NAME: Anchor(anchor.params, fisher)})


def sample_responses(
    worker: RolloutWorker, params: Params, count: int, key: PRNGKeyArray
) -> tuple[Sequences, Bool[np.ndarray, "B T"]]:
    """Sample `count` responses, one per prompt, cycling through the worker's prompts.

    Returns:
        The prompts and responses, and a mask of the response tokens that the policy sampled.
    """
    tokens = worker.prompts.tokens
    prompt_ids = [index % len(tokens) for index in range(count)]
    prompts = left_pad([tokens[prompt_id] for prompt_id in prompt_ids], max(map(len, tokens)), 0)
    rows = pad_responses(worker.answer(params, prompt_ids, key), worker.sampling.max_tokens)
    return Sequences(*prompts, rows["tokens"], rows["attention"], rows["policy_logp"]), rows["mask"]


@cache_results
def _squares_program(score: Callable[[Params, Packed], Scores], shardings: Shardings, samples: int) -> Any:
    """Compile `(sum so far, params, packed row, mask) -> sum`, which adds a response's Fisher information, divided by `samples`."""

    def add(fisher: Params, params: Params, packed: Packed, mask: Bool[Array, "B T"]) -> Params:
        def log_likelihood(params: Params) -> Float[Array, ""]:
            return jnp.where(mask, score(params, packed).logp, 0.0).sum()

        gradient = jax.grad(log_likelihood)(params)
        response_fisher = diagonal_fisher(jax.tree.map(lambda leaf: leaf[None], gradient))
        return jax.tree.map(lambda total, one: total + one / samples, fisher, response_fisher)

    return jax.jit(add, donate_argnums=0, out_shardings=shardings.tree())
