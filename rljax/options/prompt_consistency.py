"""`--prompt-consistency NAME=WEIGHT`: make right answers likely for changed versions of their prompts as well.

The changes are those of `rljax eval --perturb`. The responses of a rollout answer the original prompts. For each prompt that has a
right answer, every update then adds to the loss the negative log-likelihood of one right answer given the changed prompt.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from rljax.algorithms import Rollout
from rljax.caching import cache_results
from rljax.data.perturbation import perturb
from rljax.data.prompts import encode_prompts, left_pad
from rljax.errors import InputError
from rljax.models import Packed, Params
from rljax.ops.regularization import negative_log_likelihood
from rljax.ops.weights import token_mean
from rljax.parallel import put, row_shards
from rljax.rollout import Groups, Sequences, pack_one_per_row
from rljax.rollout.groups import correctness_masks
from rljax.training.scoring import Score, make_score, policy_params
from rljax.training.setup import Setup
from rljax.training.state import Frozen, Option, TrainState

NAME = "prompt_consistency"
ChangedPrompts = Sequence[Sequence[int] | None]
"""Tokens of each problem's changed prompt; None if the prompt does not change, or if it is too long."""


class Examples(NamedTuple):
    """Answers after changed prompts: R rows, one per perturbation and prompt of a rollout, plus padding."""

    packed: Packed
    """The rows."""
    weights: Float[Array | np.ndarray, "R T"]
    """Weight of each answer token in the loss."""


def install(setup: Setup) -> Setup:
    """Add the consistency loss.

    Raises:
        InputError: a weight is not positive, the run has an environment, a perturbation is unknown or changes no prompt, or the
            tokenizer cannot encode a changed prompt.
    """
    config, weights = setup.config, setup.config.optimization.prompt_consistency
    if not all(weight > 0 for weight in weights.values()):
        raise InputError(f"prompt_consistency is {weights}; give positive weights.")
    if config.reward.environment is not None or (setup.train is not None and setup.train.environment is not None):
        raise InputError(
            "prompt_consistency needs the prompts of a dataset, but in this run an environment writes the prompts; leave "
            "prompt_consistency out."
        )
    sampling, names, devices = config.sampling, list(weights), row_shards(setup.mesh)
    padding_rows = -len(names) * sampling.prompts % devices
    make_empty = partial(empty_rows, prompt_length=setup.prompt_length, length=sampling.max_response_tokens)
    initial = join_examples([make_empty(len(names) * sampling.prompts + padding_rows)], [0.0])
    option = Option(
        NAME,
        init=lambda params: jax.tree.map(jnp.asarray, initial),
        gradient=make_gradient(make_score(setup.policy, sampling.temperature)),
    )
    if setup.tokenizer is None:  # `rljax plan` loads no prompts, and needs only the shapes of the rows
        return setup.with_option(option)
    changed = {name: changed_prompts(setup, name) for name in names}

    def fill(state: TrainState, scored: Any) -> TrainState:
        groups, now = scored.groups, state.options[NAME]
        chosen = choose_right_answers(groups.rollout, int(state.step))
        parts = [append_answers(groups, chosen, changed[name], setup.tokenizer.pad_token_id) for name in names]
        examples = join_examples([*parts, make_empty(padding_rows)], [*weights.values(), 0.0])
        placed = put(examples, jax.tree.map(lambda array: array.sharding, now))
        return state._replace(options=state.options | {NAME: placed})

    return setup.with_option(option._replace(before_updates=fill))


def changed_prompts(setup: Setup, name: str) -> ChangedPrompts:
    """Encode the changed prompt of each training problem.

    Args:
        setup: the setup of the run.
        name: name of the perturbation.

    Raises:
        InputError: the name is unknown, no prompt changes, or the tokenizer cannot encode a changed prompt.
    """
    prompts = setup.train.prompts
    problems = perturb(prompts.problems, name, seed=setup.config.run.seed)
    try:
        changed = encode_prompts(problems, setup.tokenizer, max_length=2**31, chat=setup.config.model.chat)
    except InputError as error:
        raise InputError(f"--prompt-consistency makes prompts that this model cannot read: {error}") from error
    return [
        new if list(new) != list(old) and len(new) <= setup.prompt_length else None
        for new, old in zip(changed.tokens, prompts.tokens, strict=True)
    ]


def choose_right_answers(rollout: Rollout[np.ndarray], start: int) -> Int[np.ndarray, "P"]:
    """Choose one right answer per group: the first one at or after index `start`, wrapping around; -1 if the group has none.

    Args:
        rollout: P groups of G answers.
        start: the index, taken modulo G.
    """
    valid = np.ones(rollout.rewards.shape, bool) if rollout.valid is None else rollout.valid
    right, known = correctness_masks(rollout._replace(valid=valid))
    order = (start + np.arange(right.shape[1])) % right.shape[1]
    is_eligible = (right & known & rollout.mask.any(-1))[:, order]
    return np.where(is_eligible.any(1), order[is_eligible.argmax(1)], -1)


def append_answers(groups: Groups, chosen: Int[np.ndarray, "P"], changed: ChangedPrompts, padding: int) -> Sequences:
    """Append one answer of each group to the group's changed prompt.

    Args:
        groups: P groups of answers.
        chosen: index of the answer in each group; -1 for none.
        changed: the changed prompts.
        padding: id of the padding token.

    Returns:
        P rows. The mask of a row is empty if no answer is chosen or there is no changed prompt.
    """
    found = [changed[index] if index >= 0 else None for index in groups.prompt_ids]
    tokens, attention = left_pad([row or () for row in found], groups.prompt_tokens.shape[1], padding)
    has_prompt = np.array([row is not None for row in found])[:, None]
    prompt = np.where(has_prompt, tokens, groups.prompt_tokens), np.where(has_prompt, attention, groups.prompt_attention)
    rows = np.arange(groups.count), chosen
    mask = groups.rollout.mask[rows] & has_prompt & (chosen >= 0)[:, None]
    return Sequences(*prompt, groups.tokens[rows], groups.attention[rows], mask=mask)


def join_examples(parts: Sequence[Sequences], weights: Sequence[float]) -> Examples:
    """Concatenate parts; within each part, the weights of the answer tokens sum to the part's weight."""
    token_weights = [weight * token_mean(jnp.asarray(part.learned)) for part, weight in zip(parts, weights, strict=True)]
    rows = jax.tree.map(lambda *arrays: np.concatenate(arrays), *(part._replace(mask=part.learned) for part in parts))
    return Examples(pack_one_per_row(rows), np.concatenate(token_weights).astype(np.float32))


@cache_results
def make_gradient(score: Score) -> Callable[..., tuple[Params, dict[str, Array]]]:
    """Build the function that adds the gradient of the loss to the algorithm's gradient.

    ::

        L = Σ_k w_k mean{ -log π(y_t | x_k, y_<t) : t a token of y }        x_k = x changed in the kth way

    Here y ~ π_old(. | x) is one of the right answers of the rollout. If L included wrong answers and summed over tokens, it would
    estimate KL(π_old(. | x) ‖ π(. | x_k)) up to a constant.

    Args:
        score: scores the tokens of packed rows.

    Source:
        Consistency training: "Unsupervised Data Augmentation for Consistency Training", arXiv:1904.12848, Eq. 1, which uses
        only examples with confident predictions. With sampled answers: "Bias-Augmented Consistency Training Reduces Biased
        Reasoning in Chain-of-Thought", arXiv:2403.05518. Neither requires right answers; here, wrong answers are left out, because
        RL makes them less likely.
    """

    def add_gradient(
        state: TrainState, frozen: Frozen, gradient: Params, data: Mapping[str, Array] | None
    ) -> tuple[Params, dict[str, Array]]:
        del data
        packed, weights = state.options[NAME]

        def objective(params: Params) -> Float[Array, ""]:
            logp = score(policy_params(frozen.get("base"), params), packed).logp
            return (weights * negative_log_likelihood(logp, weights > 0)).sum()

        value, slope = jax.value_and_grad(objective)(state.params)
        total = jax.tree.map(lambda total, one: total + one.astype(total.dtype), gradient, slope)
        return total, {"prompt_consistency_loss": value}

    return add_gradient


def empty_rows(count: int, prompt_length: int, length: int) -> Sequences:
    """Make rows without tokens."""
    zeros = partial(np.zeros, dtype=np.int32)
    prompt, answer = zeros((count, prompt_length)), zeros((count, length))
    return Sequences(prompt, prompt.astype(bool), answer, answer.astype(bool))
