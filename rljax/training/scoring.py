"""Score response tokens under a policy: differentiably in an update, or without gradients for all sequences of a rollout."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from rljax.caching import cache_results
from rljax.errors import InputError
from rljax.models import Packed, Params, Policy, Scores
from rljax.models.adapters import Base, unmerged_params
from rljax.models.policy import Copies, with_copies
from rljax.parallel import fetch, put_rows, row_shards
from rljax.rollout import Layout, Sequences, lay_out, pack_one_per_row
from rljax.text import one_line

Score = Callable[[Params, Packed], Scores]
"""(parameters, packed rows) -> scores of the response tokens."""

Copy = Callable[[Params], Copies | None]
"""Parameters -> copies in the precision of the matrix products; see `Policy.copies`."""

Output = TypeVar("Output")

Forward = Callable[[Params, Any, Layout], tuple[Scores, dict[str, Array]]]
"""(parameters, frozen arrays and the options' data, micro-batch) -> (scores, loss inputs such as a teacher's divergence)."""


def policy_params(base: Base | None, params: Params | None, copies: Copies | None = None) -> Params:
    """Return the parameters that `Policy.score` takes: the trained parameters, with the frozen base if they are an adapter.

    Args:
        base: the frozen model under the adapter; None if there is no adapter.
        params: the trained parameters.
        copies: copies of the base's parameters, or of `params` if there is no base; see `Policy.copies`.
    """
    return with_copies(params, copies) if base is None else unmerged_params(base, params, copies)


def make_score(policy: Policy, temperature: float) -> Score:
    """Build the function that scores the response tokens of a batch at the sampling temperature.

    Raises:
        InputError: in a call of the function, if the scores do not have the batch's shape.
    """
    return _score(policy.score, "policy.score", temperature)


def make_supervised_score(policy: Policy, temperature: float) -> Score:
    """Build the function that scores demonstrations: `policy.supervised_score` if there is one, else `policy.score`."""
    if policy.supervised_score is None:
        return make_score(policy, temperature)
    return _score(policy.supervised_score, "policy.supervised_score", temperature)


@cache_results
def _score(score_at: Callable[[Params, Packed, float], Scores], name: str, temperature: float) -> Score:
    def score(params: Params, packed: Packed) -> Scores:
        scores = score_at(params, packed, temperature)
        expected = packed.place.shape
        found = [getattr(part, "shape", type(part).__name__) for part in scores]
        if not isinstance(scores, Scores) or found != [expected, expected]:
            raise InputError(
                f"{name}: expected rljax.models.Scores(logp, entropy), both of the batch's shape [B, T] = {list(expected)}; got "
                f"{type(scores).__name__} of the shapes {', '.join(map(str, found))}."
            )
        return scores

    return score


def check_score(
    policy: Policy, params: Params | PyTree[jax.ShapeDtypeStruct], *, rows: int, prompt_length: int, response_length: int
) -> None:
    """Reject a policy that cannot score responses of these lengths; its functions are only traced, not run.

    Raises:
        InputError: its scores have the wrong shape, or `score` cannot be traced or differentiated.
    """
    prompts, responses = np.ones((rows, prompt_length), np.int32), np.ones((rows, response_length), np.int32)
    logp = np.zeros(responses.shape, np.float32)
    packed = pack_one_per_row(Sequences(prompts, prompts.astype(bool), responses, responses.astype(bool), logp))
    scores = {"policy.score": make_score(policy, 1.0)}
    if policy.supervised_score is not None:
        scores["policy.supervised_score"] = make_supervised_score(policy, 1.0)
    for name, score in scores.items():
        try:
            jax.eval_shape(_logp_gradient(score), params, packed)
        except InputError:
            raise
        except Exception as error:  # a policy is user code, and may raise anything
            raise InputError(
                f"{name}: expected a function of parameters, packed rows and a temperature that JAX can trace and differentiate; "
                f"got {one_line(error):.200}"
            ) from error


@cache_results
def _logp_gradient(score: Score) -> Callable[[Params, Packed], Params]:
    return jax.grad(lambda params, packed: score(params, packed).logp.sum())


@cache_results
def scores_alone(score: Score) -> Forward:
    """Build a `Forward` that returns only the scores, without further inputs of the loss."""

    def forward(params: Params, frozen: Any, part: Layout) -> tuple[Scores, dict[str, Array]]:
        del frozen
        return score(params, part.packed), {}

    return forward


_compile = cache_results(jax.jit)


def compile_for_sequences(
    function: Callable[[Params, Layout], Output], mesh: Mesh, rows: int
) -> Callable[[Params, Sequences], Output]:
    """Compile a function of a micro-batch, and build a function that applies it to all sequences, `rows` rows at a time.

    Returns:
        `(params, sequences) -> output`: host arrays `[B, T, ...]`, which are 0 for sequences without a response token.
    """
    program = _compile(function)

    def call(params: Params, sequences: Sequences) -> Output:
        layout = lay_out(sequences, sequences.attention, rows=rows, devices=row_shards(mesh))
        used = [i for i, part in enumerate(layout.responses) if i == 0 or (part >= 0).any()]
        parts = [jax.tree.map(lambda array, i=i: array[i], layout) for i in used]
        outputs = fetch([program(params, part._replace(packed=put_rows(mesh, part.packed))) for part in parts])
        responses = np.concatenate([layout.responses[i] for i in used])

        def restore_order(*arrays: np.ndarray) -> np.ndarray:
            joined = np.concatenate(arrays)
            ordered = np.zeros((len(sequences.tokens), *joined.shape[1:]), joined.dtype)
            ordered[responses[responses >= 0]] = joined[responses >= 0]
            return ordered

        return jax.tree.map(restore_order, *outputs)

    return call


def make_scores(score: Score, mesh: Mesh, rows: int) -> Callable[[Params, Sequences], Scores]:
    """Compile `(params, sequences) -> Scores [B, T]`: host arrays, computed from `rows` rows at a time without gradients."""
    return compile_for_sequences(_score_of_part(score), mesh, rows)


@cache_results
def _score_of_part(score: Score) -> Callable[[Params, Layout], Scores]:
    return lambda params, part: score(params, part.packed)
