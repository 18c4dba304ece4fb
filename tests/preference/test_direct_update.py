"""Updates with a direct preference loss: scores against a hand computation, for any micro-batch and mesh."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from digit_pairs import digit_pairs

from rljax.data.preferences import Preference
from rljax.data.tokenizer import CharacterTokenizer
from rljax.errors import InputError
from rljax.models import Model, TransformerConfig, transformer_policy
from rljax.models.language_model import logits
from rljax.parallel import make_mesh, policy_shardings, put, put_rows
from rljax.preference.direct_losses import BY_NAME
from rljax.preference.direct_update import (
    DirectBatch,
    arrange_direct_pairs,
    evaluate_direct,
    make_direct_step,
    make_expected_logps,
    make_logps,
    make_mismatched_pairs,
    split_into_micro_batches,
    summed_logp,
)
from rljax.preference.pair_update import PairState, encode_pairs
from rljax.programs.pair_training import PairData, fingerprint_of
from rljax.training.metrics import present
from rljax.training.objective.optimizer import with_standard_promotion

TOKENIZER = CharacterTokenizer()
SHAPE = TransformerConfig(vocab_size=TOKENIZER.vocab_size, width=16, layers=1, heads=2, kv_heads=2, head_dim=8, hidden=32)
POLICY = transformer_policy(SHAPE, eos=TOKENIZER.eos_token_id)
ONE = make_mesh(1, 1)
ENCODED = encode_pairs(digit_pairs(16, 2), TOKENIZER, max_tokens=16)
PAIRS = arrange_direct_pairs(ENCODED, TOKENIZER.pad_token_id)
TRIPLES = [replace(pair, gold=pair.chosen[::-1] + "0") for pair in digit_pairs(16, 2)]
MISMATCHED = make_mismatched_pairs(ENCODED, ENCODED, TOKENIZER.pad_token_id)


@pytest.fixture(scope="module")
def params():
    return POLICY.init(jax.random.key(0))


LOGITS = jax.jit(partial(logits, Model(SHAPE)))


def logp_by_hand(params, prompt, response):
    """Sum of the response tokens' log-probabilities, from the logits of this sequence alone, in a row of 16 slots."""
    sequence = [*prompt, *response]
    tokens = np.zeros((1, 16), np.int32)
    tokens[0, : len(sequence)] = sequence
    scores = LOGITS(params, tokens, np.arange(16)[None], (np.arange(16) < len(sequence)).astype(np.int32)[None])
    total = 0.0
    for at in range(len(prompt), len(sequence)):
        row = np.asarray(scores, np.float64)[0, at - 1]
        total += row[sequence[at]] - np.log(np.exp(row - row.max()).sum()) - row.max()
    return total


def split_pair(pair):
    """Return the prompt, the chosen response and the rejected response of an encoded pair."""
    length = ENCODED.prompt_lengths[pair]
    return ENCODED.chosen[pair][:length], ENCODED.chosen[pair][length:], ENCODED.rejected[pair][length:]


def test_encoded_pairs_split_into_prompt_and_responses():
    for index, pair in enumerate(digit_pairs(16, 2)):
        prompt, chosen, rejected = split_pair(index)
        assert prompt == TOKENIZER.encode(pair.prompt)
        assert chosen == [*TOKENIZER.encode(pair.chosen), TOKENIZER.eos_token_id]
        assert rejected == [*TOKENIZER.encode(pair.rejected), TOKENIZER.eos_token_id]


def test_logps_match_a_hand_computation(params):
    expected = [[logp_by_hand(params, split_pair(n)[0], side) for side in split_pair(n)[1:]] for n in range(5)]
    for microbatch in (2, 8):
        found = make_logps(POLICY, ONE, microbatch)(params, PAIRS.take(range(5)))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    sharded = make_logps(POLICY, make_mesh(2, 2), 4)(params, PAIRS.take(range(5)))
    np.testing.assert_allclose(sharded, expected, rtol=1e-5)


def test_gold_responses_are_scored_and_enter_the_loss(params):
    encoded = encode_pairs(TRIPLES, TOKENIZER, max_tokens=16)
    triples = arrange_direct_pairs(encoded, TOKENIZER.pad_token_id)
    gold = [[*TOKENIZER.encode(pair.gold), TOKENIZER.eos_token_id] for pair in TRIPLES]
    expected = [[logp_by_hand(params, split_pair(n)[0], side) for side in (*split_pair(n)[1:], gold[n])] for n in range(16)]
    np.testing.assert_allclose(make_logps(POLICY, ONE, 8)(params, triples), expected, rtol=1e-5)
    judged = evaluate_direct(BY_NAME["tpo"](beta=0.5, coefficient=0.3), make_logps(POLICY, ONE, 4), params, triples, None)
    losses = [
        np.log1p(np.exp(-0.5 * (chosen - rejected))) - 0.3 * third / len(tokens)
        for (chosen, rejected, third), tokens in zip(expected, gold, strict=True)
    ]
    np.testing.assert_allclose(judged["loss"], np.mean(losses), rtol=1e-5)
    assert encode_pairs(TRIPLES, TOKENIZER, max_tokens=11).dropped > ENCODED.dropped
    assert fingerprint_of(PairData(encoded, encoded, [])) != fingerprint_of(PairData(ENCODED, ENCODED, []))


def test_messages_between_turns_are_not_scored(params):
    """The score is that of the complete response minus that of the token between the turns."""
    encoded = encode_pairs(digit_pairs(16, 2), TOKENIZER, max_tokens=16)
    prompt, chosen, rejected = split_pair(0)
    is_learned = [True] * len(chosen)
    is_learned[1] = False
    skipping = encoded._replace(assistant_masks=[(is_learned, [True] * len(rejected)), *encoded.assistant_masks[1:]])
    found = make_logps(POLICY, ONE, 2)(params, arrange_direct_pairs(skipping, TOKENIZER.pad_token_id).take(range(2)))
    skipped_logp = logp_by_hand(params, prompt, chosen[:2]) - logp_by_hand(params, prompt, chosen[:1])
    expected = [logp_by_hand(params, prompt, chosen) - skipped_logp, logp_by_hand(params, prompt, rejected)]
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)
    assert fingerprint_of(PairData(skipping, encoded, [])) != fingerprint_of(PairData(encoded, encoded, []))


def test_mismatched_pairs_have_the_next_prompts_responses(params):
    found = make_logps(POLICY, ONE, 4)(params, MISMATCHED.take([3, 15]))
    expected = [[logp_by_hand(params, split_pair(n)[0], side) for side in split_pair(m)[1:]] for n, m in ((3, 4), (15, 0))]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    repeated = [Preference("1=", str(n), "9") for n in range(3)] + [Preference("2=", "7", "8")]
    encoded = encode_pairs(repeated, TOKENIZER, max_tokens=16)
    both = make_mismatched_pairs(encoded, encoded, TOKENIZER.pad_token_id).sequences
    texts = [
        TOKENIZER.decode(row[mask].tolist()) for row, mask in zip(both.tokens[:, 0], both.attention[:, 0], strict=True)
    ]
    assert [text[0] for text in texts] == ["7", "7", "7", "0"]


def with_reference(params):
    """Return pairs and mismatched pairs with a reference that finds most of them less likely than the policy does."""
    logps, rng = make_logps(POLICY, ONE, 16), np.random.default_rng(1)
    return [
        pairs._replace(ref_logp=logps(params, pairs) - rng.uniform(-0.5, 2, (16, 2)).astype(np.float32))
        for pairs in (PAIRS, MISMATCHED)
    ]


def train_steps(params, name, *, microbatch, mesh, steps=2):
    loss = BY_NAME[name]()
    pairs, mismatched = with_reference(params)
    if loss.reads_gold:
        pairs = arrange_direct_pairs(encode_pairs(TRIPLES, TOKENIZER, max_tokens=16), TOKENIZER.pad_token_id)
    optimizer = with_standard_promotion(optax.adamw(1e-2))
    copied = jax.tree.map(jnp.array, params)
    state = PairState(copied, optimizer.init(copied))
    state_shardings = policy_shardings(mesh, state, state.params, POLICY.partition)
    step = make_direct_step(POLICY, loss, optimizer, state_shardings, mesh)
    batch = DirectBatch(
        split_into_micro_batches(pairs, microbatch),
        split_into_micro_batches(mismatched, microbatch) if loss.reads_reference_point else None,
    )
    state, history = put(state, state_shardings), []
    for _ in range(steps):
        state, metrics = step(state, put_rows(mesh, batch, leading=1))
        history.append(present(metrics))
    return jax.device_get(state.params), history


@pytest.mark.parametrize("name", ["kto", "bco", "wpo", "orpo", "tpo"])
def test_micro_batches_and_devices_change_nothing(params, name):
    single = train_steps(params, name, microbatch=16, mesh=ONE)
    for axes, rows in (((1, 1), 4), ((2, 2), 8)):
        other = train_steps(params, name, microbatch=rows, mesh=make_mesh(*axes))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), other[0], single[0])
        for ours, theirs in zip(other[1], single[1], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4, abs=3e-5)


@pytest.mark.parametrize("name", ["dpo", "kto", "bco", "wpo", "simpo"])
def test_update_metrics_match_judge_direct(params, name):
    loss = BY_NAME[name]()
    pairs, mismatched = with_reference(params)
    measures = make_logps(POLICY, ONE, 4), make_expected_logps(POLICY, ONE, 4)
    judged = evaluate_direct(loss, measures[0], params, pairs, mismatched, measures[1])
    metrics = train_steps(params, name, microbatch=8, mesh=ONE, steps=1)[1][0]
    assert set(metrics) - set(judged) == {"grad_norm", "skipped_updates"}
    assert {key: metrics[key] for key in judged} == pytest.approx(judged, rel=1e-4, abs=1e-5)
    logp = np.array([[logp_by_hand(params, split_pair(n)[0], side) for side in split_pair(n)[1:]] for n in range(16)])
    np.testing.assert_allclose([judged["chosen_logp"], judged["rejected_logp"]], logp.mean(0), rtol=1e-5)
    lengths = PAIRS.sequences.attention.sum(-1)
    scale = 0.01 if name == "wpo" else 0.1
    rewards = 2 * logp / lengths if name == "simpo" else scale * (logp - pairs.ref_logp)
    np.testing.assert_allclose(judged["margin"], (rewards[:, 0] - rewards[:, 1]).mean(), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(judged["accuracy"], (rewards[:, 0] > rewards[:, 1]).mean())
    if name == "kto":
        other = make_logps(POLICY, ONE, 16)(params, MISMATCHED)
        np.testing.assert_allclose(judged["reference_point"], (other - mismatched.ref_logp).mean(), atol=1e-5)
        assert judged["reference_point"] > 0.1
    if name == "bco":
        np.testing.assert_allclose(judged["reward_shift"], rewards.mean(), rtol=1e-4)
        assert judged["reward_shift"] > 0.01


def expected_logp_by_hand(params, prompt, response):
    """Sum over the response tokens of log Σ_v π(v)², from the logits of this sequence alone."""
    sequence = [*prompt, *response]
    tokens = np.zeros((1, 16), np.int32)
    tokens[0, : len(sequence)] = sequence
    scores = LOGITS(params, tokens, np.arange(16)[None], (np.arange(16) < len(sequence)).astype(np.int32)[None])
    total = 0.0
    for at in range(len(prompt), len(sequence)):
        exponentials = np.exp(np.asarray(scores, np.float64)[0, at - 1])
        total += np.log(((exponentials / exponentials.sum()) ** 2).sum())
    return total


def test_expected_logps_match_a_hand_computation(params):
    expected = [[expected_logp_by_hand(params, split_pair(n)[0], side) for side in split_pair(n)[1:]] for n in range(5)]
    found = make_expected_logps(POLICY, ONE, 2)(params, PAIRS.take(range(5)))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_wpo_weights_have_no_gradient(params):
    """The update equals DPO's with the pairs' weights as constants."""
    loss, pairs = BY_NAME["wpo"](beta=0.5), with_reference(params)[0]
    measures = make_logps(POLICY, ONE, 16), make_expected_logps(POLICY, ONE, 16)
    logp, expected = (measure(params, pairs) for measure in measures)
    weights = np.exp(((logp - expected) / PAIRS.sequences.attention.sum(-1)).sum(-1))
    micro_batch = jax.tree.map(lambda x: jnp.asarray(x[0]), split_into_micro_batches(pairs, 16))

    def weighted_dpo(params):
        margin = summed_logp(POLICY, params, micro_batch) - micro_batch.ref_logp
        return (weights * jax.nn.softplus(-0.5 * (margin[:, 0] - margin[:, 1]))).mean()

    optimizer = with_standard_promotion(optax.sgd(1.0))
    copied = jax.tree.map(jnp.array, params)
    state = PairState(copied, optimizer.init(copied))
    step = make_direct_step(POLICY, loss, optimizer, policy_shardings(ONE, state, params, POLICY.partition), ONE)
    after, _ = step(state, DirectBatch(split_into_micro_batches(pairs, 16)))
    jax.tree.map(
        lambda new, old, slope: np.testing.assert_allclose(new, old - slope, atol=1e-5),
        after.params,
        params,
        jax.grad(weighted_dpo)(params),
    )


def test_unusable_pairs_are_refused():
    without_prompt = encode_pairs([Preference("", "1", "2")], TOKENIZER, max_tokens=16)
    with pytest.raises(InputError, match="1 of 1 pairs have no prompt and the tokenizer has no BOS token"):
        arrange_direct_pairs(without_prompt, TOKENIZER.pad_token_id)
    same = encode_pairs([Preference("1=", "1", "2"), Preference("1=", "3", "2")], TOKENIZER, max_tokens=16)
    with pytest.raises(InputError, match="all pairs have the same prompt"):
        make_mismatched_pairs(same, same, TOKENIZER.pad_token_id)
