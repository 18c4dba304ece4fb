"""Solutions with labeled steps as arrays, the jitted update of a process reward model, and its evaluation."""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from rljax.data.labeled_solutions import LabeledSolution
from rljax.data.prompts import right_pad
from rljax.data.tokenizer import Tokenizer
from rljax.errors import InputError
from rljax.models import Params
from rljax.models.value_model import ValueModel
from rljax.ops.process_reward import process_reward_loss
from rljax.parallel import accumulate, replicated, shardings
from rljax.parallel.guarded_update import skip_count
from rljax.preference.metrics import PairUpdateMetrics, StepMetrics
from rljax.preference.pair_update import Data, PairState, problem_from_prompt
from rljax.preference.reward_model import solution_tokens, step_logits
from rljax.records import hide_namedtuple_base


@hide_namedtuple_base
class SolutionRows(NamedTuple, Generic[Data]):
    """Solutions as arrays: NumPy arrays on the host, JAX arrays in an update; optional leading micro-batch axis."""

    tokens: Int[Data, "*M N S"]
    """Token ids of prompt and steps, right-padded."""
    attention: Bool[Data, "*M N S"]
    """Mask of the slots that contain a token."""
    labels: Float[Data, "*M N S"]
    """Label of the step that ends at a token, from 0 to 1; 0 at other tokens."""
    step_end: Bool[Data, "*M N S"]
    """Mask of the tokens at which a step ends."""


class EncodedSolutions(NamedTuple):
    """Solutions within the token limit, as token lists."""

    tokens: list[list[int]]
    """Token ids of the prompt and the steps of each solution."""
    ends: list[list[int]]
    """Index of the token at which each step of each solution ends."""
    labels: list[tuple[float, ...]]
    """Label of each step of each solution."""
    dropped: int
    """Number of solutions that were dropped because they are too long."""
    steps_with_separator: int
    """Number of steps in all solutions that contain the separator; in a response, each of them would be several steps."""

    def padded(self, pad_id: int) -> SolutionRows[np.ndarray]:
        """Pad all solutions to the longest and return them as arrays."""
        tokens, attention = right_pad(self.tokens, max(map(len, self.tokens)), pad_id)
        labels, step_end = np.zeros(tokens.shape, np.float32), np.zeros(tokens.shape, bool)
        for row, (ends, marks) in enumerate(zip(self.ends, self.labels, strict=True)):
            labels[row, ends], step_end[row, ends] = marks, True
        return SolutionRows(tokens, attention, labels, step_end)


def encode_solutions(
    solutions: Sequence[LabeledSolution], tokenizer: Tokenizer, *, max_tokens: int, chat: bool, separator: str
) -> EncodedSolutions:
    """Tokenize solutions, dropping those that are too long.

    Raises:
        InputError: no solution fits, or the tokenizer cannot encode a text.

    Example:
        >>> from rljax.data.tokenizer import CharacterTokenizer
        >>> solution = LabeledSolution("1=", ("1", "11"), (1.0, 0.0))
        >>> encode_solutions([solution], CharacterTokenizer("1=;"), max_tokens=8, chat=False, separator=";")[:3]
        ([[2, 3, 2, 4, 2, 2, 4]], [[3, 6]], [(1.0, 0.0)])
    """
    rows = [solution_tokens(problem_from_prompt(s), s.steps, tokenizer, chat=chat, separator=separator) for s in solutions]
    fitting = [(*row, s.labels) for row, s in zip(rows, solutions, strict=True) if len(row[0]) <= max_tokens]
    if not rows:
        raise InputError("there are no solutions to train on; give at least one solution.")
    if not fitting:
        shortest = min(len(tokens) for tokens, _ in rows)
        raise InputError(
            f"every solution has more than max_tokens={max_tokens} tokens: the shortest needs {shortest}; raise max_tokens."
        )
    tokens, ends, labels = map(list, zip(*fitting, strict=True))
    divided = sum(separator in step for solution in solutions for step in solution.steps)
    return EncodedSolutions(tokens, ends, labels, len(rows) - len(fitting), divided)


def make_process_step(
    model: ValueModel, optimizer: optax.GradientTransformation, state: PairState, mesh: Mesh
) -> Callable[[PairState, SolutionRows[Array]], tuple[PairState, PairUpdateMetrics]]:
    """Compile one optimizer update towards the labels: the mean cross-entropy over all steps of the batch.

    Args:
        model: a decoder whose head has one output per token.
        optimizer: turns a gradient into an update.
        state: an example of the state, for its shapes.
        mesh: the devices.

    Returns:
        `(state, solutions) -> (state, metrics)`, with solutions `[micro-batches, rows, ...]`; the old state is donated.
    """

    def step(state: PairState, solutions: SolutionRows[Array]) -> tuple[PairState, PairUpdateMetrics]:
        share = 1 / solutions.step_end.sum().astype(jnp.float32)

        def objective(params: Params, part: SolutionRows[Array]) -> tuple[Array, StepMetrics]:
            logits = step_logits(model, params, part.tokens, part.attention)
            losses = process_reward_loss(logits, part.labels, part.step_end)
            sums = [jnp.where(part.step_end, x, 0.0).sum() for x in (losses, *score_logits(logits, part.labels))]
            means = StepMetrics(*(share * x for x in sums))
            return means.loss, means

        gradient, means = accumulate(objective, state.params, solutions)
        state, norm, safe = state.apply_gradient(optimizer, gradient, means.loss)
        return state, PairUpdateMetrics(means, norm, skipped_updates=skip_count(safe))

    return jax.jit(step, donate_argnums=0, out_shardings=(shardings(mesh, state), replicated(mesh)))


def score_logits(logits: Float[Array, "*shape"], labels: Float[Array, "*shape"]) -> tuple[Array, Array]:
    """Return, for each logit, 1 if it is on its label's side (else 0), and the probability that the step is right."""
    return ((logits > 0) == (labels > 0.5)).astype(jnp.float32), jax.nn.sigmoid(logits)


def evaluate_solutions(
    scores: Callable[[Params, Sequence[tuple[list[int], list[int]]]], list[np.ndarray]],
    params: Params,
    solutions: EncodedSolutions,
) -> dict[str, float]:
    """Evaluate the model on solutions that it was not trained on.

    Args:
        scores: a function from `make_step_scores`.
        params: parameters of the process reward model.
        solutions: the held-out solutions.

    Returns:
        The fields of `StepMetrics`, averaged over all steps.
    """
    logits = jnp.concatenate([*map(jnp.asarray, scores(params, [*zip(solutions.tokens, solutions.ends, strict=True)]))])
    labels = jnp.asarray(np.concatenate(solutions.labels), logits.dtype)
    losses = process_reward_loss(logits, labels, jnp.ones(labels.shape, bool))
    means = StepMetrics(*(x.mean() for x in (losses, *score_logits(logits, labels))))
    return {name: float(mean) for name, mean in means._asdict().items()}
