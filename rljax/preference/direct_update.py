"""Direct preference losses such as DPO's: pairs as arrays for a language model, the jitted update, and the evaluation."""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Float32, PyTree

from rljax.data.prompts import left_pad, right_pad
from rljax.errors import InputError
from rljax.models import Packed, Params, Policy
from rljax.models.distribution_scores import apply_over_vocabulary, square_sum
from rljax.models.packed import to_batch
from rljax.models.token_scores import choose_chunk
from rljax.ops.direct_preference import kto_reference_point
from rljax.ops.masked import count_tokens, masked_sum
from rljax.parallel import accumulate, fetch, micro_batches, put_rows, replicated
from rljax.parallel.guarded_update import skip_count
from rljax.preference.direct_losses import DirectLoss, PairLogps
from rljax.preference.metrics import DirectMetrics, PairUpdateMetrics
from rljax.preference.pair_update import Data, EncodedPairs, PairState
from rljax.records import hide_namedtuple_base, required
from rljax.rollout import Sequences, pack_one_per_row

Logps = Callable[[Params, "DirectPairs"], Float32[np.ndarray, "N K"]]


class DirectPairs(NamedTuple):
    """Prompts and responses of N pairs on the host: the preferred response, the other and, for some losses, a third (gold)."""

    sequences: Sequences
    """Sequences `[N, K, ...]`, with K responses to each prompt."""
    ref_logp: Float32[np.ndarray, "N 2"] | None = None
    """Log-probability of the responses under the reference, summed over the tokens, in nats; None if there is no reference."""
    margin: Float32[np.ndarray, "N"] | None = None
    """Reward of the preferred response minus the reward of the other; None for losses that do not read the margin."""

    def take(self, rows: Sequence[int]) -> "DirectPairs":
        """Select pairs, in the order of `rows`."""
        return jax.tree.map(lambda array: array[np.asarray(rows)], self)


@hide_namedtuple_base
class PairRows(NamedTuple, Generic[Data]):
    """Pairs laid out in rows for the model, with an optional leading micro-batch axis; a pair's responses are adjacent."""

    packed: Packed
    """Rows `[K N, ...]`, with K responses to each prompt."""
    mask: Bool[Data, "*M N K T"]
    """Mask of the scored tokens that the assistant wrote."""
    ref_logp: Float[Data, "*M N 2"] | None
    """See `DirectPairs.ref_logp`."""
    margin: Float[Data, "*M N"] | None = None
    """See `DirectPairs.margin`."""


class DirectBatch(NamedTuple):
    """Inputs to an update with a direct loss."""

    pairs: PairRows
    """The pairs of the batch."""
    mismatched: PairRows | None = None
    """The same prompts with responses to other prompts, for losses with a reference point."""


def arrange_direct_pairs(encoded: EncodedPairs, pad_id: int) -> DirectPairs:
    """Put the prompts and responses of pairs into arrays.

    Raises:
        InputError: a prompt has no token, so the first token of its response would have no probability.
    """
    empty = sum(length == 0 for length in encoded.prompt_lengths)
    if empty:
        raise InputError(
            f"{empty} of {len(encoded.prompt_lengths)} pairs have no prompt and the tokenizer has no BOS token, so their first "
            "token has no probability; set prompt_column, or choose a tokenizer with a BOS token."
        )
    prompts = [tokens[:length] for tokens, length in zip(encoded.chosen, encoded.prompt_lengths, strict=True)]
    responses, assistant_masks = _responses(encoded), encoded.assistant_masks
    if encoded.gold is None:
        return _arrange(prompts, responses, assistant_masks, pad_id)
    tokens = [(*both, third) for both, (third, _) in zip(responses, encoded.gold, strict=True)]
    masks = [(*both, third) for both, (_, third) in zip(assistant_masks, encoded.gold, strict=True)]
    return _arrange(prompts, tokens, masks, pad_id)


def make_mismatched_pairs(encoded: EncodedPairs, donors: EncodedPairs, pad_id: int) -> DirectPairs:
    """Join the prompt of each pair to both responses of another pair, the donor, which has a different prompt.

    Args:
        encoded: pairs that provide the prompts.
        donors: pairs that provide the responses: for pair i, the first one at or after index i + 1 with a different prompt,
            wrapping around.
        pad_id: padding token.

    Raises:
        InputError: all donors have the same prompt.
    """
    prompts = [tokens[:length] for tokens, length in zip(encoded.chosen, encoded.prompt_lengths, strict=True)]
    donor_prompts = [tokens[:length] for tokens, length in zip(donors.chosen, donors.prompt_lengths, strict=True)]
    responses = _responses(donors)
    after = _find_next_different(donor_prompts)
    starts = [(index + 1) % len(donor_prompts) for index in range(len(prompts))]
    chosen = [
        after[start] if donor_prompts[start] == prompt else start for start, prompt in zip(starts, prompts, strict=True)
    ]
    return _arrange(
        prompts, [responses[index] for index in chosen], [donors.assistant_masks[index] for index in chosen], pad_id
    )


def _find_next_different(prompts: Sequence[list[int]]) -> list[int]:
    """Return for each prompt the index of the next different prompt, wrapping around.

    Example:
        >>> _find_next_different([[1], [1], [2]])
        [2, 2, 0]
    """
    count = len(prompts)
    start = next((index for index in range(count) if prompts[index] != prompts[index - 1]), None)
    if start is None:
        raise InputError(
            "all pairs have the same prompt, but the reference point of this loss needs responses to different prompts; use pairs "
            "with at least two prompts, or choose another loss."
        )
    after, found = [0] * count, start
    for index in range(start - 1, start - 1 - count, -1):
        after[index % count] = found
        if prompts[index % count] != prompts[index % count - 1]:
            found = index % count
    return after


def _responses(encoded: EncodedPairs) -> list[tuple[list[int], list[int]]]:
    """Return both responses of each pair, including their end tokens."""
    sides = zip(encoded.chosen, encoded.rejected, encoded.prompt_lengths, strict=True)
    return [(chosen[length:], rejected[length:]) for chosen, rejected, length in sides]


def _arrange(
    prompts: Sequence[list[int]],
    responses: Sequence[tuple[list[int], ...]],
    learned: Sequence[tuple[list[bool], ...]],
    pad_id: int,
) -> DirectPairs:
    shape = len(prompts), len(responses[0]), -1
    flat = [side for sides in responses for side in sides]
    opening = left_pad([prompt for prompt in prompts for _ in range(shape[1])], max(map(len, prompts)), pad_id)
    rest = right_pad(flat, max(map(len, flat)), pad_id)
    mask = right_pad([[int(own) for own in side] for sides in learned for side in sides], rest[0].shape[1], 0)[0].astype(
        bool
    )
    tokens = Sequences(*(array.reshape(shape) for array in (*opening, *rest)))
    return DirectPairs(tokens._replace(mask=mask.reshape(shape)))


def split_into_micro_batches(pairs: DirectPairs, microbatch: int) -> PairRows[np.ndarray]:
    """Divide pairs into micro-batches, and arrange each in rows for the model."""
    parts = micro_batches(pairs, microbatch)
    sides = parts.sequences.tokens.shape[2]
    rows = jax.tree.map(lambda array: array.reshape(array.shape[0], sides * microbatch, -1), parts.sequences)
    mask = rows.learned.reshape(*parts.sequences.tokens.shape)
    return PairRows(pack_one_per_row(rows), mask, parts.ref_logp, parts.margin)


def summed_logp(policy: Policy, params: Params, pair_rows: PairRows[Array]) -> Float[Array, "N K"]:
    """Compute the log-probability of each response under a policy, summed over the response's tokens."""
    return masked_sum(policy.score(params, pair_rows.packed, 1.0).logp.reshape(pair_rows.mask.shape), pair_rows.mask)


def summed_expected_logp(policy: Policy, mesh: Mesh, params: Params, pair_rows: PairRows[Array]) -> Float[Array, "N K"]:
    """Compute log Σ_v π(v)², the log of a sampled token's expected probability, summed over a response's tokens.

    No gradient flows through the result.
    """
    features = required(policy.features, "policy.features")(jax.lax.stop_gradient(params), pair_rows.packed)
    sums = apply_over_vocabulary(square_sum, features, chunk=choose_chunk(None, policy.vocab_size, mesh), mesh=mesh)
    return masked_sum(jnp.log(to_batch(sums, pair_rows.packed)).reshape(pair_rows.mask.shape), pair_rows.mask)


def make_logps(policy: Policy, mesh: Mesh, microbatch: int) -> Logps:
    """Compile `(params, pairs) -> log-probabilities [N, K]` without gradient, `microbatch` pairs at a time.

    The last micro-batch is padded with copies of the first pair.
    """
    return _in_micro_batches(lambda params, pair_rows: summed_logp(policy, params, pair_rows), mesh, microbatch)


def make_expected_logps(policy: Policy, mesh: Mesh, microbatch: int) -> Logps:
    """Compile `summed_expected_logp` like `make_logps`."""
    return _in_micro_batches(
        lambda params, pair_rows: summed_expected_logp(policy, mesh, params, pair_rows), mesh, microbatch
    )


def _in_micro_batches(
    function: Callable[[Params, PairRows[Array]], Float[Array, "N K"]], mesh: Mesh, microbatch: int
) -> Logps:
    """Compile a function of pairs, and build a function that applies it to `microbatch` pairs at a time."""
    compiled = jax.jit(function)

    def logps(params: Params, pairs: DirectPairs) -> Float32[np.ndarray, "N K"]:
        count = len(pairs.sequences.tokens)
        filled = [*range(count), *[0] * (-count % microbatch)]
        pair_rows = split_into_micro_batches(DirectPairs(pairs.sequences).take(filled), microbatch)
        parts = len(filled) // microbatch
        pieces = [compiled(params, put_rows(mesh, jax.tree.map(lambda x, i=i: x[i], pair_rows))) for i in range(parts)]
        return np.concatenate(fetch(pieces)).astype(np.float32)[:count]

    return logps


def make_direct_step(
    policy: Policy,
    loss: DirectLoss,
    optimizer: optax.GradientTransformation,
    shardings: PyTree,
    mesh: Mesh,
) -> Callable[[PairState, DirectBatch], tuple[PairState, PairUpdateMetrics]]:
    """Compile one optimizer update with a direct preference loss.

    Args:
        policy: the language model.
        loss: the loss, whose mean over the pairs is minimized.
        optimizer: turns a gradient into an update.
        shardings: the state's shardings.
        mesh: the devices.

    Returns:
        `(state, batch) -> (state, metrics)`, with rows `[micro-batches, rows, ...]`; the old state is donated.
    """

    def step(state: PairState, batch: DirectBatch) -> tuple[PairState, PairUpdateMetrics]:
        share = 1 / (batch.pairs.mask.shape[0] * batch.pairs.mask.shape[1])
        point = _reference_point(policy, state.params, batch.mismatched) if loss.reads_reference_point else None
        shift = _reward_shift(policy, state.params, batch.pairs, loss) if loss.reward_shift else None

        def objective(params: Params, part: PairRows[Array]) -> tuple[Array, DirectMetrics]:
            lengths = count_tokens(part.mask).astype(jnp.float32)
            expected = summed_expected_logp(policy, mesh, params, part) if loss.reads_expected_logp else None
            logp = summed_logp(policy, params, part)
            pair, gold = split_gold(logp, lengths)
            inputs = PairLogps(*pair, part.ref_logp, point, part.margin, shift, expected, gold)
            means = jax.tree.map(lambda each: share * each.sum(), measure_pairs(loss, inputs))
            return means.loss, means

        gradient, means = accumulate(objective, state.params, batch.pairs)
        state, norm, safe = state.apply_gradient(optimizer, gradient, means.loss)
        return state, PairUpdateMetrics(means, norm, point, shift, skip_count(safe))

    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, replicated(mesh)))


def _reference_point(policy: Policy, params: Params, mismatched: PairRows[Array] | None) -> Float[Array, ""]:
    """Compute the reference point of the full batch, so that it does not depend on micro-batches."""
    pair_rows = required(mismatched, "batch.mismatched")
    logp = jax.lax.map(lambda part: summed_logp(policy, params, part), pair_rows)
    return kto_reference_point(logp, required(pair_rows.ref_logp, "mismatched.ref_logp"))


def _reward_shift(policy: Policy, params: Params, pairs: PairRows[Array], loss: DirectLoss) -> Float[Array, ""]:
    """Compute the reward shift of the full batch, so that it does not depend on micro-batches."""
    logp = jax.lax.map(lambda part: summed_logp(policy, params, part), pairs)
    return required(loss.reward_shift, "loss.reward_shift")(logp, required(pairs.ref_logp, "pairs.ref_logp"))


def split_gold(
    logp: Float[Array, "N K"], lengths: Float[Array, "N K"]
) -> tuple[tuple[Float[Array, "N 2"], Float[Array, "N 2"]], Float[Array, "N"] | None]:
    """Return the pair's log-probabilities and lengths, and the third response's mean log-probability (None without a third)."""
    gold = None if logp.shape[1] == 2 else logp[:, 2] / lengths[:, 2]
    return (logp[:, :2], lengths[:, :2]), gold


def measure_pairs(loss: DirectLoss, pairs: PairLogps) -> DirectMetrics:
    """Compute the metrics of each pair, `[N]`."""
    rewards = loss.reward(pairs)
    margin = rewards[:, 0] - rewards[:, 1]
    return DirectMetrics(
        loss=loss.loss(pairs),
        accuracy=(margin > 0).astype(margin.dtype),
        margin=margin,
        chosen_logp=pairs.logp[:, 0],
        rejected_logp=pairs.logp[:, 1],
    )


def evaluate_direct(
    loss: DirectLoss,
    logps: Logps,
    params: Params,
    pairs: DirectPairs,
    mismatched: DirectPairs | None,
    expected_logps: Logps | None = None,
) -> dict[str, float]:
    """Evaluate the model on pairs that it was not trained on.

    Args:
        loss: the loss that defines metrics and rewards.
        logps: a function compiled by `make_logps`.
        params: parameters of the policy.
        pairs: the held-out pairs.
        mismatched: the same prompts with other responses, for losses that read a reference point.
        expected_logps: a function compiled by `make_expected_logps`, for losses that read `expected_logp`.

    Returns:
        Means of the fields of `DirectMetrics`, and reference_point and reward_shift if the loss reads them.
    """
    point = None
    lengths = jnp.asarray(pairs.sequences.learned.sum(-1), jnp.float32)
    (logp, lengths), gold = split_gold(jnp.asarray(logps(params, pairs)), lengths)
    ref_logp = None if pairs.ref_logp is None else jnp.asarray(pairs.ref_logp)
    if loss.reads_reference_point:
        other = required(mismatched, "mismatched")
        other_ref_logp = required(other.ref_logp, "mismatched.ref_logp")
        point = kto_reference_point(jnp.asarray(logps(params, other)), jnp.asarray(other_ref_logp))
    shift = None if loss.reward_shift is None else loss.reward_shift(logp, required(ref_logp, "pairs.ref_logp"))
    expected = required(expected_logps, "expected_logps")(params, pairs) if loss.reads_expected_logp else None
    inputs = PairLogps(
        logp=logp,
        lengths=lengths,
        ref_logp=ref_logp,
        reference_point=point,
        margin=None if pairs.margin is None else jnp.asarray(pairs.margin),
        reward_shift=shift,
        expected_logp=None if expected is None else jnp.asarray(expected),
        gold_logp=gold,
    )
    means = {name: float(each.mean()) for name, each in measure_pairs(loss, inputs)._asdict().items()}
    batch_metrics = {"reference_point": point, "reward_shift": shift}
    return means | {name: float(value) for name, value in batch_metrics.items() if value is not None}
