"""The Fisher anchor of a run: how it is estimated once, and what it adds to the gradient of every update."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from rljax.data.prompts import left_pad
from rljax.models import Packed, Params, Scores
from rljax.ops.regularise import diagonal_fisher, fisher_anchor
from rljax.parallel import put_rows, row_shards
from rljax.records import required
from rljax.rollout import RolloutWorker, Sequences, pack
from rljax.rollout.groups import padded_responses
from rljax.sharing import shared
from rljax.training.state import Anchor, Places, TrainState, places

SAMPLES = 256
"""Responses on which the Fisher information is estimated."""
Pull = Callable[[TrainState, Params], tuple[Params, Float[Array, ""] | None]]
"""(state, gradient of the loss) -> (gradient of the loss and a penalty on the parameters, the penalty); None without a penalty."""


def no_pull(state: TrainState, gradient: Params) -> tuple[Params, None]:
    """The gradient as it is."""
    del state
    return gradient, None


@shared
def make_pull(weight: float | None) -> Pull:
    """Build the function that adds the gradient of the anchor of the state, λ F (θ - θ*); without a weight it adds nothing.

    Source:
        Kirkpatrick et al., arXiv:1612.00796, Eq. 3.
    """
    if weight is None:
        return no_pull

    def pull(state: TrainState, gradient: Params) -> tuple[Params, Float[Array, ""]]:
        anchor = required(state.anchor, "state.anchor")

        def penalty(params: Params) -> Float[Array, ""]:
            return fisher_anchor(params, anchor.params, anchor.fisher, coefficient=weight)

        value, slope = jax.value_and_grad(penalty)(state.params)
        return jax.tree.map(jnp.add, gradient, slope), value

    return pull


def with_fisher(
    state: TrainState,
    worker: RolloutWorker,
    score: Callable[[Params, Packed], Scores],
    mesh: Mesh,
    *,
    samples: int = SAMPLES,
) -> TrainState:
    """The state with the Fisher information of its anchor, which is estimated on the policy's own responses.

    Args:
        state: at the beginning of the run; the anchor's arrays are donated.
        worker: draws the responses, one to each of its prompts in turn.
        score: scores responses at the temperature at which they are drawn.
        mesh: the devices.
        samples: number of responses.
    """
    anchor = required(state.anchor, "state.anchor")
    key = jax.random.fold_in(jax.random.wrap_key_data(state.key), jnp.uint32(2**32 - 1))  # no other draw gets that far
    drawn, mask = responses_of(worker, state.params, samples, key)
    add, fisher = _squares_program(score, places(anchor.fisher), samples), anchor.fisher
    for row in range(samples):
        # A row for each device, because they share the rows; the first alone counts, because each response is squared by itself.
        rows = jax.tree.map(lambda array, row=row: array[[row] * row_shards(mesh)], drawn)
        counted = mask[[row] * row_shards(mesh)]
        counted[1:] = False
        fisher = add(fisher, state.params, put_rows(mesh, pack(rows)), put_rows(mesh, counted))
    return state._replace(anchor=Anchor(anchor.params, fisher))


def responses_of(
    worker: RolloutWorker, params: Params, count: int, key: PRNGKeyArray
) -> tuple[Sequences, Bool[np.ndarray, "B T"]]:
    """Draw `count` responses, one to each of the worker's prompts in turn.

    Returns:
        Prompts and responses, and which tokens of the responses the policy has drawn.
    """
    tokens = worker.prompts.tokens
    prompt_ids = [place % len(tokens) for place in range(count)]
    prompts = left_pad([tokens[prompt_id] for prompt_id in prompt_ids], max(map(len, tokens)), 0)
    rows = padded_responses(worker.answer(params, prompt_ids, key), worker.sampling.max_tokens)
    return Sequences(*prompts, rows["tokens"], rows["attention"], rows["policy_logp"]), rows["mask"]


@shared
def _squares_program(score: Callable[[Params, Packed], Scores], where: Places, samples: int) -> Any:
    """Compile `(sum so far, params, packed row, mask) -> sum`, of the Fisher information of one response over `samples`."""

    def add(fisher: Params, params: Params, packed: Packed, mask: Bool[Array, "B T"]) -> Params:
        def log_likelihood(params: Params) -> Float[Array, ""]:
            return jnp.where(mask, score(params, packed).logp, 0.0).sum()

        gradient = jax.grad(log_likelihood)(params)
        of_one = diagonal_fisher(jax.tree.map(lambda leaf: leaf[None], gradient))
        return jax.tree.map(lambda total, one: total + one / samples, fisher, of_one)

    return jax.jit(add, donate_argnums=0, out_shardings=where.tree())
