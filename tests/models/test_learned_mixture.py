"""A mixture of a network and rules with a learned share: its distribution, its gradient, and runs that train it."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_states import first_state, read_checkpoint
from scripted_policy import TOKENIZER as BYTES
from shared_run import rows
from small_runs import STEPPED, stopping_after

import rljax
from rljax.data.prompts import left_pad
from rljax.data.tokenizer import load_tokenizer
from rljax.errors import InputError
from rljax.models import TransformerConfig, transformer_policy
from rljax.models.calculator_rules import calculator_of, with_calculator
from rljax.models.learned_mixture import Mixture, learned_mixture
from rljax.models.mixed_policy import mixed_policy
from rljax.parallel import make_mesh
from rljax.rollout import DecodingEngine, Request, Sampling, Sequences, pack_one_per_row
from rljax.rollout.groups import pad_responses
from rljax.training.interrupt import Interrupted

TOKENIZER = load_tokenizer("characters")
RULES = calculator_of(TOKENIZER.encode, TOKENIZER.vocab_size)
NETWORK = transformer_policy(
    TransformerConfig(vocab_size=TOKENIZER.vocab_size, layers=1, width=16, heads=2, kv_heads=1, head_dim=8, hidden=32),
    eos=1,
)
LEARNED = learned_mixture(NETWORK, RULES, share=0.4, rate=7.0)
RESPONSES = {"7+5=": "7+5=12;#12", "9+3=": "9+3=13;#13", "8+0=": "8+0=8;8+0=7"}
HINTS = {("7+5=", 4): "1", ("7+5=", 5): "2", ("9+3=", 4): "1", ("9+3=", 5): "2", ("8+0=", 4): "8", ("8+0=", 10): "8"}
"""(Prompt, index in the response) -> the digit that the calculator predicts, worked out by hand."""
RUN = STEPPED.replace(algorithm="dr_grpo", steps=4, group_size=64, calculator=0.4, calculator_rate=30.0, models="last")


@pytest.fixture(scope="module")
def hand_written():
    """Parameters in which `shift` is not 0, and three hand-written responses as packed rows."""
    params = LEARNED.init(jax.random.key(0))._replace(shift=jnp.float32(0.1))
    prompts = left_pad([TOKENIZER.encode(prompt) for prompt in RESPONSES], 4, 0)
    encoded = [TOKENIZER.encode(text) for text in RESPONSES.values()]
    tokens, attention = np.zeros((3, 12), np.int32), np.zeros((3, 12), bool)
    for row, ids in enumerate(encoded):
        tokens[row, : len(ids)], attention[row, : len(ids)] = ids, True
    return params, pack_one_per_row(Sequences(*prompts, tokens, attention)), attention


def mixture_by_hand(logp, share, attention):
    """Return each token's log-probability under the mixture, and its derivative by the log-odds of the share, in float64."""
    mixed, slope = np.zeros(logp.shape), np.zeros(logp.shape)
    for row, (prompt, text) in enumerate(RESPONSES.items()):
        for index in np.flatnonzero(attention[row]):
            p = float(np.exp(np.float64(logp[row, index])))
            hint = HINTS.get((prompt, index))
            if hint is None:
                mixed[row, index] = np.log(p)
                continue
            rule = float(text[index] == hint)
            total = (1 - share) * p + share * rule
            mixed[row, index], slope[row, index] = np.log(total), share * (1 - share) * (rule - p) / total
    return mixed, slope


def test_score_and_share_gradient_match_their_equations(hand_written):
    params, packed, attention = hand_written
    share = 1 / (1 + np.exp(-(np.log(0.4 / 0.6) + 7.0 * 0.1)))
    weights = np.where(attention, np.linspace(-1.0, 2.0, attention.size).reshape(attention.shape), 0.0)
    expected, slope = mixture_by_hand(np.asarray(NETWORK.score(params.network, packed, 1.0).logp), share, attention)
    found = np.asarray(LEARNED.score(params, packed, 1.0).logp)
    np.testing.assert_allclose(np.where(attention, found, 0), expected, atol=1e-5)
    gradient = jax.grad(lambda params: (weights * LEARNED.score(params, packed, 1.0).logp).sum())(params)
    np.testing.assert_allclose(gradient.shift, (weights * slope).sum(), rtol=1e-4)
    assert np.count_nonzero(slope) == len(HINTS)
    assert np.abs(gradient.network["embedding"]).max() > 0


def test_initial_mixture_has_the_fixed_share_and_the_right_slope(hand_written):
    _, packed, attention = hand_written
    fixed, learned = mixed_policy(NETWORK, RULES, share=0.4), learned_mixture(NETWORK, RULES, share=0.4, rate=1.0)
    params = learned.init(jax.random.key(0))
    chex.assert_trees_all_close(learned.score(params, packed, 0.8), fixed.score(params.network, packed, 0.8), atol=1e-6)

    def total(shift):
        return np.where(attention, learned.score(params._replace(shift=jnp.float32(shift)), packed, 0.8).logp, 0).sum()

    slope = jax.grad(lambda params: jnp.where(attention, learned.score(params, packed, 0.8).logp, 0).sum())(params).shift
    np.testing.assert_allclose(slope, (total(0.05) - total(-0.05)) / 0.1, rtol=2e-3)


def test_sampler_and_scorer_agree_and_demonstrations_skip_the_rules(hand_written):
    params, packed, _ = hand_written
    sampling = Sampling(12, (TOKENIZER.eos_token_id,), temperature=0.7)
    ids = [tuple(TOKENIZER.encode(prompt)) for prompt in RESPONSES]
    requests = [Request(ids[i], i, i, sampling, seed=10 * i + j) for i in range(3) for j in range(2)]
    responses = DecodingEngine(LEARNED.decoder, make_mesh(1, 1, 1), 8).generate(params, requests)
    arrays = pad_responses(responses, 12)
    prompts = left_pad([request.prompt_tokens for request in requests], 8, 0)
    sampled = pack_one_per_row(Sequences(*prompts, arrays["tokens"], arrays["attention"]))
    logp = np.asarray(LEARNED.score(params, sampled, 0.7).logp)
    np.testing.assert_allclose(np.where(arrays["mask"], logp, 0), arrays["policy_logp"], atol=1e-5)
    alone = LEARNED.supervised_score(params, packed, 1.0)
    chex.assert_trees_all_equal(alone, NETWORK.score(params.network, packed, 1.0))


def reward_digits(completions, answer):
    """Reward digits, which the calculator writes more often than an untrained network."""
    return [sum(character.isdigit() for character in text) / 4 for text in completions]


def test_training_moves_the_share_and_a_resumed_run_ends_in_the_same_state(tmp_path):
    stop = stopping_after(3)

    def interrupt(completions, answer):
        stop(completions)
        return reward_digits(completions, answer)

    config = RUN.replace(run=str(tmp_path / "done"))
    result = rljax.train(config, reward=reward_digits)
    found = [row["calculator_share"] for row in rows(tmp_path / "done") if row["phase"] == "rl"]
    assert len(found) == 4
    assert abs(found[-1] - 0.4) > 0.005
    assert isinstance(result.params, Mixture)
    state = read_checkpoint(config, tmp_path / "done", reward=reward_digits).state
    with pytest.raises(Interrupted):
        rljax.train(config.replace(run=str(tmp_path / "again")), reward=interrupt)
    rljax.train(resume=tmp_path / "again", reward=interrupt)
    chex.assert_trees_all_equal(read_checkpoint(config, tmp_path / "again", reward=reward_digits).state, state)
    assert (tmp_path / "done" / "last" / "model.safetensors").exists(), "its network is saved as a model"


def test_settings_that_cannot_learn_a_share_are_refused():
    with pytest.raises(InputError, match="calculator is None; it must be above 0 and below 1"):
        RUN.replace(calculator=None)
    with pytest.raises(InputError, match=r"calculator_rate is 0\.0; it must be positive"):
        RUN.replace(calculator_rate=0)
    with pytest.raises(InputError, match=r"calculator_rate=30\.0 trains .* lora_rank=2 trains only an adapter"):
        first_state(RUN.replace(lora_rank=2, lora_targets=("query",)))
    with pytest.raises(InputError, match=r"start with the share 1 and learn at the rate 2\.0"):
        learned_mixture(NETWORK, RULES, share=1, rate=2.0)
    with pytest.raises(InputError, match="one token of its own"):
        with_calculator(NETWORK, lambda text: BYTES.encode(text)[:1], share=0.5, rate=2.0)
