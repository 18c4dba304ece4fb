"""Pairs of responses as arrays, the jitted update of a reward model, and its evaluation on held-out pairs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from rljax.data.labeled_solutions import LabeledSolution
from rljax.data.preferences import Preference
from rljax.data.problem import Problem
from rljax.data.prompts import prompt_tokens, response_tokens, right_pad
from rljax.data.tokenizer import Tokenizer
from rljax.errors import InputError
from rljax.models import Params
from rljax.models.value_model import ValueModel
from rljax.ops.preference import bradley_terry_loss
from rljax.parallel import accumulate, replicated, shardings
from rljax.parallel.guarded_update import guarded_update, skip_count
from rljax.preference.metrics import PairUpdateMetrics, ScoreMetrics
from rljax.preference.reward_model import score_sequences
from rljax.records import hide_namedtuple_base

Data = TypeVar("Data", bound=Array | np.ndarray)


@hide_namedtuple_base
class Pairs(NamedTuple, Generic[Data]):
    """Pairs as arrays, the preferred response first: NumPy arrays on the host, JAX arrays in an update."""

    tokens: Int[Data, "N 2 S"]
    """Token ids of prompt and response, right-padded."""
    attention: Bool[Data, "N 2 S"]
    """Mask of the slots that contain a token."""
    margin: Float[Data, "N"]
    """By how much the preferred response is better, in the unit of the score."""


class EncodedPairs(NamedTuple):
    """Pairs within the token limit, as token lists."""

    chosen: list[list[int]]
    """Token ids of the prompt and the preferred response of each pair."""
    rejected: list[list[int]]
    """Token ids of the prompt and the other response of each pair."""
    margin: np.ndarray
    """By how much the preferred response is better, in the unit of the score, `[N]`."""
    dropped: int
    """Number of pairs that were dropped because the prompt with one of the responses is too long."""
    prompt_lengths: list[int]
    """Number of prompt tokens at the beginning of both sequences of each pair."""
    assistant_masks: list[tuple[list[bool], list[bool]]]
    """For both responses of each pair, a mask of the tokens that the assistant wrote; tools or users wrote the other tokens."""
    gold: list[tuple[list[int], list[bool]]] | None = None
    """For each pair, token ids and assistant mask of a third response that is better than both; None if a pair has no third."""

    def padded(self, pad_id: int) -> Pairs[np.ndarray]:
        """Pad all sequences to the longest one and return them as arrays."""
        length = max(map(len, self.chosen + self.rejected))
        sides = [right_pad(rows, length, pad_id) for rows in (self.chosen, self.rejected)]
        tokens, attention = (np.stack(both, axis=1) for both in zip(*sides, strict=True))
        return Pairs(tokens, attention, self.margin)


class PairState(NamedTuple):
    """State of the training; each update returns a new state."""

    params: Params
    """Parameters of the model."""
    opt_state: optax.OptState
    """State of the optimizer."""

    def apply_gradient(
        self, optimizer: optax.GradientTransformation, gradient: Params, loss: Float[Array, ""]
    ) -> tuple["PairState", Float[Array, ""], Bool[Array, ""]]:
        """Return the state after an update, the gradient's norm, and whether the update was safe; see `guarded_update`."""
        params, opt_state, norm, safe = guarded_update(optimizer, gradient, self.opt_state, self.params, loss)
        return PairState(params, opt_state), norm, safe


def encode_pairs(
    preferences: Sequence[Preference], tokenizer: Tokenizer, *, max_tokens: int, chat: bool = False
) -> EncodedPairs:
    """Tokenize pairs, dropping each pair whose prompt is too long together with one of the responses.

    Raises:
        InputError: no pair fits, or the tokenizer cannot encode a text.

    Example:
        >>> from rljax.data.tokenizer import CharacterTokenizer
        >>> pairs = [Preference("1+1=", "2", "0"), Preference("1+1=", "2", "1+1=2")]
        >>> encode_pairs(pairs, CharacterTokenizer("012+="), max_tokens=6)[:2]
        ([[3, 5, 3, 6, 4, 1]], [[3, 5, 3, 6, 2, 1]])
    """

    rows = [_encode_pair(pair, tokenizer, chat=chat) for pair in preferences]
    gold = [_encode_gold(pair, tokenizer, chat=chat) for pair in preferences]
    lengths = [
        max(len(row[0]), len(row[1]), row[3] + len(gold_entry[0])) for row, gold_entry in zip(rows, gold, strict=True)
    ]
    kept = [index for index, length in enumerate(lengths) if length <= max_tokens]
    if not kept:
        shortest = min(lengths, default=None)
        raise InputError(
            "there are no pairs; give at least one pair to train on and one held-out pair."
            if shortest is None
            else f"in every pair, prompt and response have more than max_tokens={max_tokens} tokens: the shortest pair needs "
            f"{shortest}; raise max_tokens."
        )
    chosen, rejected, margins, prompts, masks = map(list, zip(*(rows[index] for index in kept), strict=True))
    golds = [gold[index] for index in kept] if all(gold[index][0] for index in kept) else None
    return EncodedPairs(chosen, rejected, np.asarray(margins, np.float32), len(rows) - len(kept), prompts, masks, golds)


def problem_from_prompt(example: Preference | LabeledSolution) -> Problem:
    """Return the prompt of a pair or of a solution as a problem without an answer."""
    return Problem(example.prompt, "", columns=example.columns, messages=example.messages)


def _encode_pair(
    pair: Preference, tokenizer: Tokenizer, *, chat: bool
) -> tuple[list[int], list[int], float, int, tuple[list[bool], list[bool]]]:
    """Return one entry for each of the lists of `EncodedPairs`."""
    problem = problem_from_prompt(pair)
    prompt = prompt_tokens(problem, tokenizer, chat=chat)
    (chosen, chosen_mask), (rejected, rejected_mask) = (
        response_tokens(replace(problem, demonstration=text, turns=turns), tokenizer, chat=chat)
        for text, turns in zip((pair.chosen, pair.rejected), pair.turns, strict=True)
    )
    return prompt + chosen, prompt + rejected, pair.margin, len(prompt), (chosen_mask, rejected_mask)


def _encode_gold(pair: Preference, tokenizer: Tokenizer, *, chat: bool) -> tuple[list[int], list[bool]]:
    """Return the tokens of the third response and their mask; both are empty if there is no third response."""
    if pair.gold is None:
        return [], []
    return response_tokens(
        replace(problem_from_prompt(pair), demonstration=pair.gold, turns=pair.gold_turns), tokenizer, chat=chat
    )


def make_pair_step(
    model: ValueModel, optimizer: optax.GradientTransformation, state: PairState, mesh: Mesh
) -> Callable[[PairState, Pairs[Array]], tuple[PairState, PairUpdateMetrics]]:
    """Compile an optimizer update that raises the scores of preferred responses above the scores of the other responses.

    Args:
        model: a decoder whose head has one output per token.
        optimizer: turns a gradient into an update.
        state: an example of the state, for its shapes.
        mesh: the devices.

    Returns:
        `(state, pairs) -> (state, metrics)`, with pairs `[micro-batches, pairs, ...]`; the old state is donated.
    """

    def step(state: PairState, pairs: Pairs[Array]) -> tuple[PairState, PairUpdateMetrics]:
        share = 1 / pairs.margin.size

        def objective(params: Params, part: Pairs[Array]) -> tuple[Array, ScoreMetrics]:
            count, _, length = part.tokens.shape
            rows = part.tokens.reshape(2 * count, length), part.attention.reshape(2 * count, length)
            scores = score_sequences(model, params, *rows).reshape(count, 2)
            chosen, rejected = scores[:, 0], scores[:, 1]
            loss = share * bradley_terry_loss(chosen, rejected, margin=part.margin).sum()
            return loss, ScoreMetrics(
                loss=loss,
                accuracy=share * (chosen > rejected).astype(scores.dtype).sum(),
                lead=share * (chosen - rejected).sum(),
                score=share * 0.5 * scores.sum(),
            )

        gradient, means = accumulate(objective, state.params, pairs)
        state, norm, safe = state.apply_gradient(optimizer, gradient, means.loss)
        return state, PairUpdateMetrics(means, norm, skipped_updates=skip_count(safe))

    return jax.jit(step, donate_argnums=0, out_shardings=(shardings(mesh, state), replicated(mesh)))


def evaluate_on_pairs(
    score: Callable[[Params, Sequence], np.ndarray], params: Params, pairs: EncodedPairs
) -> dict[str, float]:
    """Evaluate the model on pairs that it was not trained on.

    Args:
        score: a function from `make_score`.
        params: parameters of the reward model.
        pairs: the held-out pairs.

    Returns:
        - loss: the mean loss;
        - accuracy: the fraction of pairs whose preferred response has the higher score (a tie counts as wrong);
        - lead: the mean difference of the two scores;
        - score: the mean score of all responses;
        - score_deviation: the standard deviation of these scores.
    """
    scores = score(params, pairs.chosen + pairs.rejected)
    chosen, rejected = np.split(scores, 2)
    return {
        "loss": float(bradley_terry_loss(*map(jnp.asarray, (chosen, rejected)), margin=jnp.asarray(pairs.margin)).mean()),
        "accuracy": float((chosen > rejected).mean()),
        "lead": float((chosen - rejected).mean()),
        "score": float(scores.mean()),
        "score_deviation": float(scores.std()),
    }
