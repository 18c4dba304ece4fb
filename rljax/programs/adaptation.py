"""Updates from feedback on single responses of a served model.

Each response arrives alone, without others to the same prompt, and was sampled by the served model. A reward is therefore
compared with the mean of all other rewards, the ratio of the new policy to the sampling policy is clipped, and the policy is
regularized towards the served model.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from rljax.algorithms import Algorithm, Batch, Rollout
from rljax.algorithms.terms import importance_weighted_kl
from rljax.caching import cache_results
from rljax.data.bad_rows import BadRowError
from rljax.data.feedback import LineLocation
from rljax.data.prompts import left_pad, right_pad
from rljax.models import Params, Scores
from rljax.ops.divergence import importance_weighted_k3
from rljax.ops.ratio import token_log_ratio
from rljax.ops.surrogate import dual_clipped
from rljax.ops.weights import token_mean
from rljax.parallel import row_shards
from rljax.programs.adaptation_config import AdaptationConfig
from rljax.programs.feedback_log import Example
from rljax.records import required
from rljax.rollout import Sequences, lay_out
from rljax.training.metrics import LearnMetrics, UpdateMetrics, average_updates, present
from rljax.training.rollout_data import make_prepare
from rljax.training.scoring import make_score, make_scores, policy_params
from rljax.training.setup import Setup
from rljax.training.state import TrainState
from rljax.training.update import make_policy_update, put_layout

KEPT, UNSOUND, TOO_FAR, WORSE = "kept", "not sound", "too far", "worse"
"""Outcomes of the updates on a batch. `UNSOUND` means that an update was non-finite or far too large."""
MAX_LOGP_DIFFERENCE = 20.0
"""Largest accepted difference between a line's `logp` and the served model's log-probability of the same token, in nats."""
Score = Callable[[Params, Sequences], Scores]


@cache_results
def clipped_feedback(clip: float, kl_coefficient: float) -> Algorithm:
    """Policy gradient for single responses of an older policy μ with known advantages.

    ::

        J = E_t [max(min(ρ_t A, clip(ρ_t, 1-ε, 1+ε) A), 3 A if A < 0) - β ρ_t k3_t]        ρ_t = π(o_t) / μ(o_t)
        k3_t = π_ref(o_t) / π(o_t) - 1 - log (π_ref(o_t) / π(o_t))

    Args:
        clip: ε.
        kl_coefficient: β; k3 is weighted by the ratio because the tokens were sampled from μ, not from π.

    Source:
        Ye et al., arXiv:1912.09729, Eq. 5, for the surrogate; DeepSeek-V3.2, arXiv:2512.02556, Eq. 7, for the penalty.
    """
    return Algorithm(
        advantage=_identity,
        log_ratio=token_log_ratio,
        surrogate=partial(dual_clipped, low=clip, high=clip),
        weights=token_mean,
        terms=importance_weighted_kl(kl_coefficient),
        group_size=1,
    )


def _identity(rewards: Float[Array, "P G"], *, valid: Bool[Array, "P G"] | None = None) -> Float[Array, "P G"]:
    """Return the rewards, which are already advantages; each depends on its own response alone, valid or not."""
    del valid
    return rewards


def relative_rewards(rewards: Float[np.ndarray, "B"], earlier: Float[np.ndarray, "K"]) -> Float[np.ndarray, "B"]:
    """Compare each reward with the mean of all others, including earlier ones, in units of the standard deviation of all rewards.

    ::

        A_i = (r_i - (Σ_j r_j - r_i) / (B + K - 1)) / std(r)        over the B rewards of the batch and the K earlier ones

    The mean excludes r_i, so that this baseline does not depend on response i.

    Args:
        rewards: rewards of a batch.
        earlier: rewards of earlier batches.

    Returns:
        Advantages; 0 if all rewards are equal.

    Example:
        >>> relative_rewards(np.array([1.0, 0.0]), np.array([1.0, 0.0])).round(3).tolist()
        [1.333, -1.333]
    """
    combined = np.concatenate([rewards, earlier])
    if combined.min() == combined.max():  # the standard deviation of equal rewards need not be exactly 0
        return np.zeros_like(rewards)
    return (rewards - (combined.sum() - rewards) / (combined.size - 1)) / combined.std()


class BatchLearner(NamedTuple):
    """Setup and functions for learning from a batch."""

    config: AdaptationConfig
    """The settings."""
    setup: Setup
    """Setup of the run."""
    scores: Score
    """Computes the scores of a batch's responses."""
    prepare: Callable[..., Batch[np.ndarray]]
    """Computes the inputs of the loss from a rollout."""
    update: Callable[..., tuple[TrainState, UpdateMetrics]]
    """Makes one update; the old state is donated."""


def make_batch_learner(config: AdaptationConfig, setup: Setup, state: TrainState) -> BatchLearner:
    """Build the functions for learning from a batch. `state` is a template of the training state on the devices."""
    score = make_score(setup.policy, setup.config.sampling.temperature)
    update = make_policy_update(setup, state)
    scores = make_scores(score, setup.mesh, setup.rows_at_once(config.batch))
    return BatchLearner(config, setup, scores, make_prepare(setup.algorithm), update)


class Attempt(NamedTuple):
    """The outcome of the updates on a batch, before any evaluation."""

    state: TrainState
    """State after the accepted updates."""
    accepted: int
    """Number of accepted updates."""
    outcome: str
    """KEPT if all updates were accepted, else the reason why they stopped: UNSOUND or TOO_FAR."""
    metrics: dict[str, float]
    """Metrics of the batch and its updates."""


def sequences_of(examples: Sequence[Example], setup: Setup) -> Sequences:
    """Pad the prompts and responses of a batch.

    All prompts are padded to the run's usual length or, if one of them is longer, to its maximum length, so that each program is
    compiled at most twice.
    """
    config, pad = setup.config, setup.tokenizer.pad_token_id
    longest = max(len(example.prompt) for example in examples)
    width = setup.prompt_length if longest <= setup.prompt_length else config.data.max_prompt_tokens
    prompts = left_pad([example.prompt for example in examples], width, pad)
    return Sequences(
        *prompts, *right_pad([example.tokens for example in examples], config.sampling.max_response_tokens, pad)
    )


def rollout_of(
    learner: BatchLearner, state: TrainState, examples: Sequence[Example], earlier: Sequence[float]
) -> Rollout[np.ndarray]:
    """Make the rollout of a batch, with the log-probabilities of the policy that sampled its responses."""
    sequences, base = sequences_of(examples, learner.setup), learner.setup.base
    reference = np.asarray(learner.scores(policy_params(base, state.reference), sequences).logp)
    is_newest = learner.config.served == "newest"
    behaviour = np.array(learner.scores(policy_params(base, state.params), sequences).logp if is_newest else reference)
    for row, example in enumerate(examples):
        if example.logp is not None:
            behaviour[row, : len(example.logp)] = example.logp
    rewards = np.array([example.reward for example in examples])
    advantage = relative_rewards(rewards, np.array(earlier, float)).astype(np.float32)
    return Rollout(sequences.attention[:, None], behaviour[:, None], advantage[:, None], ref_logp=reference[:, None])


def find_wrong_logp(
    learner: BatchLearner, state: TrainState, examples: Sequence[Example]
) -> dict[LineLocation, BadRowError]:
    """Find examples whose `logp` cannot be right: at a token, it differs too much from the served model's log-probability.

    Args:
        learner: setup and functions for learning.
        state: a state with the served model as reference.
        examples: a batch.

    Returns:
        Location of each such example in the feedback log -> what is wrong with it.
    """
    if all(example.logp is None for example in examples):
        return {}
    sequences = sequences_of(examples, learner.setup)
    reference = np.asarray(learner.scores(policy_params(learner.setup.base, state.reference), sequences).logp)
    errors = {}
    for row, example in enumerate(examples):
        if example.logp is None:
            continue
        served = reference[row, : len(example.logp)]
        distance = np.abs(np.array(example.logp) - served)
        worst = int(distance.argmax())
        if not distance[worst] <= MAX_LOGP_DIFFERENCE:
            errors[example.place] = BadRowError(
                f"logp is {example.logp[worst]:.4g} for token {worst + 1} of the response, and {served[worst]:.4g} under the "
                f"served model, a difference of more than {MAX_LOGP_DIFFERENCE:g} nats",
                "give the natural logarithm of the probability of each token of this response",
                column="logp",
            )
    return errors


def try_batch(learner: BatchLearner, state: TrainState, examples: Sequence[Example], earlier: Sequence[float]) -> Attempt:
    """Make the updates on a batch, until one is not finite or moves the policy too far from the served model.

    The divergence is KL(policy ‖ served), estimated on the responses of the batch, in nats per token; each token is weighted by
    the ratio of the policy to the sampling policy, so that the estimate is unbiased for any sampling policy.

    Args:
        learner: setup and functions for learning.
        state: the state before the updates; it is not changed.
        examples: the batch.
        earlier: rewards of earlier lines.
    """
    setup, sequences = learner.setup, sequences_of(examples, learner.setup)
    rollout = rollout_of(learner, state, examples, earlier)
    layout = lay_out(sequences, sequences.attention, rows=setup.rows_at_once(len(examples)), devices=row_shards(setup.mesh))
    data = put_layout(setup.mesh, layout, learner.prepare(rollout))
    history: list[UpdateMetrics] = []
    outcome, accepted, distance = KEPT, 0, 0.0
    for _ in range(learner.config.passes):
        after, update_metrics = learner.update(jax.tree.map(jnp.copy, state), *data, {})
        history.append(jax.device_get(update_metrics))
        if history[-1].skipped_updates:
            outcome = UNSOUND
            break
        distance = _divergence(learner, after, sequences, rollout)
        if learner.config.max_kl is not None and not distance <= learner.config.max_kl:
            outcome = TOO_FAR
            break
        state, accepted = after, accepted + 1
    rewards = [example.reward for example in examples]
    measured = present(LearnMetrics(policy=average_updates(history))) | {
        "kl_to_reference": distance,
        "updates": float(accepted),
    }
    metrics = {"reward": float(np.mean(rewards)), "response_length": float(sequences.attention.sum(-1).mean()), **measured}
    return Attempt(state, accepted, outcome, metrics)


def _divergence(learner: BatchLearner, state: TrainState, sequences: Sequences, rollout: Rollout[np.ndarray]) -> float:
    """Estimate KL(policy ‖ served) in nats per token, weighting each token by the ratio of policy to sampling policy."""
    now = jnp.asarray(learner.scores(policy_params(learner.setup.base, state.params), sequences).logp)
    sampled, reference = (
        jnp.asarray(rollout.behaviour_logp[:, 0]),
        jnp.asarray(required(rollout.ref_logp, "rollout.ref_logp")[:, 0]),
    )
    return float(np.asarray(importance_weighted_k3(now, sampled, reference))[sequences.attention].mean(dtype=np.float64))
