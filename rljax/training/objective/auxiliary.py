"""A self-supervised loss beside that of RL: the negative log-likelihood of the data's own tokens, in every update of the policy."""

from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

from rljax.data.prompts import Demonstrations, EncodedPrompts, PromptStream, right_pad, right_pad_demonstrations
from rljax.data.tokenizer import Tokenizer
from rljax.errors import InputError
from rljax.models import Packed, Params, Scores
from rljax.models.adapters import Base, scored
from rljax.ops.regularise import negative_log_likelihood
from rljax.ops.weights import token_mean
from rljax.parallel import put_rows
from rljax.rollout import Sequences, demonstrated, pack
from rljax.sharing import shared
from rljax.training.config import TrainConfig
from rljax.training.state import TrainState

Examples = tuple[Packed, Array]
"""Rows of examples, and the mask of their scored tokens."""
Draw = Callable[[int, int], Examples | None]
"""(RL steps done, updates done in this one) -> the examples of an update; None without the loss."""
Auxiliary = Callable[[TrainState, Base | None, Params, Examples | None], tuple[Params, Float[Array, ""] | None]]
"""(state, base, gradient, examples) -> (the gradient with that of the loss on the examples added, the loss before its weight)."""


def without_examples(
    state: TrainState, base: Base | None, gradient: Params, examples: Examples | None
) -> tuple[Params, None]:
    """The gradient as it is."""
    del state, base, examples
    return gradient, None


@shared
def make_auxiliary(score: Callable[[Params, Packed], Scores], weight: float) -> Auxiliary:
    """Build the function that adds the gradient of the loss on examples to that of the algorithm.

    ::

        ∇ (L_RL + w L_aux)        L_aux = -mean{ log π(y_t | y_<t) : t a token of the examples }

    Args:
        score: scores the tokens of packed rows.
        weight: w; 0 adds nothing.

    Source:
        The unsupervised auxiliary loss of UNREAL, arXiv:1611.05397, in its form for language models: the pretraining loss that
        PPO-ptx mixes into RL, InstructGPT, arXiv:2203.02155, Eq. 2.
    """
    if not weight:
        return without_examples

    def auxiliary(
        state: TrainState, base: Base | None, gradient: Params, examples: Examples | None
    ) -> tuple[Params, Float[Array, ""] | None]:
        if examples is None:
            return gradient, None
        packed, mask = examples

        def objective(params: Params) -> Float[Array, ""]:
            logp = score(scored(base, params), packed).logp
            return (token_mean(mask) * negative_log_likelihood(logp, mask)).sum()

        value, slope = jax.value_and_grad(objective)(state.params)
        return jax.tree.map(lambda total, one: total + (weight * one).astype(total.dtype), gradient, slope), value

    return auxiliary


def make_draw(examples: Sequences | None, mesh: Mesh, config: TrainConfig) -> Draw:
    """Build the function that takes the examples of an update from their order, which depends on the seed alone.

    Args:
        examples: all of them; None draws none.
        mesh: the devices that share them.
        config: the settings: an update takes as many as one of the warm start, in one batch that is not split into micro-batches.
    """
    if examples is None:
        return lambda step, update: None
    batch, updates = config.warm_start.batch, config.optimization.minibatches * config.optimization.passes
    order = PromptStream(range(len(examples.tokens)), seed=config.run.seed)

    def draw(step: int, update: int) -> Examples:
        rows = order.indices((step * updates + update) * batch, batch)
        part = jax.tree.map(lambda array: array[rows], examples)
        packed, mask = put_rows(mesh, (pack(part), part.attention))
        return packed, mask

    return draw


def examples_of(demonstrations: Demonstrations | None, prompts: EncodedPrompts, tokenizer: Tokenizer) -> Sequences:
    """Examples for the loss: the demonstrations, or, without them, the prompts' own tokens from the second one on.

    Raises:
        InputError: there are no demonstrations, and every prompt is a single token.
    """
    if demonstrations is not None:
        return demonstrated(demonstrations)
    texts = [tokens for tokens in prompts.tokens if len(tokens) > 1]
    if not texts:
        raise InputError("auxiliary: no prompt has a second token to predict, and there are no demonstrations.")
    first = np.array([tokens[:1] for tokens in texts], np.int32)
    length = max(map(len, texts)) - 1
    tokens, attention = right_pad([tokens[1:] for tokens in texts], length, tokenizer.pad_token_id)
    return Sequences(first, np.ones(first.shape, bool), tokens, attention)


def make_examples(
    config: TrainConfig, prompts: EncodedPrompts, tokenizer: Tokenizer, prompt_length: int
) -> Sequences | None:
    """Examples of the auxiliary loss: demonstrations if every problem has one, else prompts; None without the loss."""
    if not config.optimization.auxiliary:
        return None
    budget, problems = config.sampling.max_response_tokens, prompts.problems
    demonstrations = None
    if all(problem.demonstration is not None for problem in problems):
        demonstrations = right_pad_demonstrations(problems, tokenizer, prompt_length, budget, chat=config.model.chat)
    return examples_of(demonstrations, prompts, tokenizer)
