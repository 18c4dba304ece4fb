"""`--auxiliary`: a self-supervised loss in every policy update, the negative log-likelihood of the data's own tokens."""

from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

from rljax.caching import cache_results
from rljax.data.prompts import Demonstrations, EncodedPrompts, PromptStream, encode_demonstrations, right_pad
from rljax.data.tokenizer import Tokenizer
from rljax.errors import InputError
from rljax.models import Packed, Params, Scores
from rljax.ops.regularization import negative_log_likelihood
from rljax.ops.weights import token_mean
from rljax.parallel import put_rows
from rljax.rollout import Sequences, pack_one_per_row, sequences_of_demonstrations
from rljax.training.config import TrainConfig
from rljax.training.scoring import policy_params
from rljax.training.setup import Setup
from rljax.training.state import Frozen, Option, TrainState

NAME = "auxiliary_loss"
Examples = tuple[Packed, Array]
"""Packed rows of examples, and the mask of the tokens in the loss."""


def install(setup: Setup) -> Setup:
    """Add the auxiliary loss to the setup."""
    config = setup.config
    gradient = make_gradient(setup.supervised_score, config.optimization.auxiliary)
    if setup.tokenizer is None:  # a plan, which needs only the shapes of the examples
        return setup.with_option(Option(NAME, gradient=gradient))
    examples = make_examples(config, setup.train.prompts, setup.tokenizer, setup.prompt_length)
    return setup.with_option(Option(NAME, data=make_batches(examples, setup.mesh, config), gradient=gradient))


@cache_results
def make_gradient(
    score: Callable[[Params, Packed], Scores], weight: float
) -> Callable[..., tuple[Params, dict[str, Array]]]:
    """Build the function that adds the gradient of the loss on examples to the algorithm's gradient.

    ::

        ∇ (L_RL + w L_aux)        L_aux = -mean{ log π(y_t | y_<t) : t a token of the examples }

    Args:
        score: scores the tokens of packed rows.
        weight: w, the weight of the auxiliary loss.

    Source:
        The unsupervised auxiliary loss of UNREAL, arXiv:1611.05397, in the form used for language models: the pretraining loss that
        PPO-ptx mixes into RL, InstructGPT, arXiv:2203.02155, Eq. 2.
    """

    def add_gradient(
        state: TrainState, frozen: Frozen, gradient: Params, examples: Examples
    ) -> tuple[Params, dict[str, Array]]:
        packed, mask = examples

        def objective(params: Params) -> Float[Array, ""]:
            logp = score(policy_params(frozen.get("base"), params), packed).logp
            return (token_mean(mask) * negative_log_likelihood(logp, mask)).sum()

        value, auxiliary = jax.value_and_grad(objective)(state.params)
        total = jax.tree.map(lambda total, extra: total + (weight * extra).astype(total.dtype), gradient, auxiliary)
        return total, {"auxiliary_loss": value}

    return add_gradient


def make_batches(examples: Sequences, mesh: Mesh, config: TrainConfig) -> Callable[[int, int], Examples]:
    """Build `(RL steps done, updates done in this step) -> examples of the update`, in an order that depends only on the seed.

    An update uses as many examples as a warm-start step, in one batch that is not split into micro-batches.
    """
    batch, updates = config.warm_start.batch, config.optimization.minibatches * config.optimization.passes
    order = PromptStream(range(len(examples.tokens)), seed=config.run.seed)

    def batch_of(step: int, update: int) -> Examples:
        indices = order.indices((step * updates + update) * batch, batch)
        chosen = jax.tree.map(lambda array: array[indices], examples)
        packed, mask = put_rows(mesh, (pack_one_per_row(chosen), chosen.learned))
        return packed, mask

    return batch_of


def examples_of(demonstrations: Demonstrations | None, prompts: EncodedPrompts, tokenizer: Tokenizer) -> Sequences:
    """Return the examples for the loss: the demonstrations or, if there are none, the prompts from their second token on.

    Raises:
        InputError: there are no demonstrations, and every prompt is a single token.
    """
    if demonstrations is not None:
        return sequences_of_demonstrations(demonstrations)
    texts = [tokens for tokens in prompts.tokens if len(tokens) > 1]
    if not texts:
        raise InputError(
            "auxiliary needs demonstrations, or prompts of at least 2 tokens, and the data has neither; leave auxiliary out."
        )
    first = np.array([tokens[:1] for tokens in texts], np.int32)
    length = max(map(len, texts)) - 1
    tokens, attention = right_pad([tokens[1:] for tokens in texts], length, tokenizer.pad_token_id)
    return Sequences(first, np.ones(first.shape, bool), tokens, attention)


def make_examples(config: TrainConfig, prompts: EncodedPrompts, tokenizer: Tokenizer, prompt_length: int) -> Sequences:
    """Return the examples for the loss: demonstrations if every problem has a demonstration, else prompts."""
    budget, problems = config.sampling.max_response_tokens, prompts.problems
    demonstrations = None
    if all(problem.demonstration is not None for problem in problems):
        demonstrations = encode_demonstrations(problems, tokenizer, prompt_length, budget, chat=config.model.chat)
    return examples_of(demonstrations, prompts, tokenizer)
