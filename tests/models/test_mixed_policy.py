"""A policy mixed with rules: the calculator's predictions, and agreement between the sampler and the scorer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.data.prompts import left_pad
from rljax.data.tokenizer import load_tokenizer
from rljax.errors import InputError
from rljax.models import TransformerConfig, transformer_policy
from rljax.models.calculator_rules import CHARACTERS, calculator_of
from rljax.models.mixed_policy import compute_memories, mixed_policy
from rljax.parallel import make_mesh
from rljax.rollout import DecodingEngine, Request, Sampling, Sequences, pack_one_per_row
from rljax.rollout.groups import pad_responses
from rljax.training.config import TrainConfig
from rljax.training.parts.custom_parts import CustomParts
from rljax.training.parts.policy import choose_policy

TOKENIZER = load_tokenizer("characters")
VOCAB = TOKENIZER.vocab_size
RULES = calculator_of(TOKENIZER.encode, VOCAB)
NETWORK = transformer_policy(
    TransformerConfig(vocab_size=VOCAB, layers=1, width=16, heads=2, kv_heads=1, head_dim=8, hidden=32), eos=1
)
MIXED = mixed_policy(NETWORK, RULES, share=0.4)
PROMPTS = ["7+5=7+5=", "9+3=2+6=", "8-1="]


def calculator_predictions(text):
    """Return the calculator's next character after each character of a text; None if the calculator abstains."""
    memory, found = jnp.asarray(RULES.start), []
    for token in TOKENIZER.encode(text):
        memory = RULES.read(memory, jnp.int32(token))
        logp, has_prediction = RULES.predict(memory)
        found.append(TOKENIZER.decode([int(logp.argmax())]) if has_prediction else None)
    return found


def expected_predictions(text):
    """Compute the same predictions from the text: after `a+b=` and the first digits of the sum, its next digit."""
    found = []
    for end in range(1, len(text) + 1):
        _, equals, steps = text[:end].partition("=")
        step = steps.rpartition(";")[2]
        left, sign, written = step.partition("=")
        parts = left.split("+")
        known = equals and sign and len(parts) == 2 and all(part.isdigit() for part in parts) and (written + "0").isdigit()
        rest = str(sum(map(int, parts)))[len(written) :] if known else ""
        found.append(rest[:1] or None)
    return found


@pytest.mark.parametrize(
    "text",
    [
        "7+5+9=7+5=12;12+9=21;#21",
        "7+5=7+5=34;",
        "7+5=7+5=1234;2+2=4",
        "95+8=95+8=103;#103",
        "3-1=3-1=2;2+2=4;#4",
        "1+1=1+1+1=3;1+0=1;",
        "1+1==2;1=1;1+1=(2)+3;0+0=0;",
        "8-1=58+=58;+5=5;6+7=13",
        "999999999+1=999999999+999999999=1999999998;",
    ],
)
def test_the_calculator_predicts_only_results_of_sums(text):
    assert calculator_predictions(text) == expected_predictions(text)


def test_the_calculator_abstains_on_long_numbers():
    assert calculator_predictions("1+1=1234567890+1=")[-1] is None
    assert calculator_predictions("1+1=1234567890+1=;1+1=")[-1] == "2"


def test_the_calculator_restarts_with_each_packed_sequence():
    texts = ["1+1=1+1=", "2+2=2+2="]
    tokens = np.array([[0, *TOKENIZER.encode("".join(texts))]])
    positions = np.array([[0, *range(8), *range(8)]])
    first, real = jnp.asarray(positions == 0), jnp.asarray(np.arange(17)[None] > 0)
    memory = compute_memories(RULES, jnp.asarray(tokens), first, real)[0]
    logp, has_prediction = RULES.predict(memory)
    assert has_prediction.tolist() == [False] * 8 + [True] + [False] * 7 + [True]
    assert TOKENIZER.decode(logp[jnp.array([8, 16])].argmax(-1).tolist()) == "24"


@pytest.fixture(scope="module")
def rollout():
    """Parameters, texts, packed rows and padded arrays of two responses per prompt, from the mixed policy at temperature 0.7."""
    params = MIXED.init(jax.random.key(0))
    sampling = Sampling(12, (TOKENIZER.eos_token_id,), temperature=0.7)
    ids = [tuple(TOKENIZER.encode(prompt)) for prompt in PROMPTS]
    requests = [Request(ids[i], i, i, sampling, seed=10 * i + j) for i in range(3) for j in range(2)]
    responses = DecodingEngine(MIXED.decoder, make_mesh(1, 1, 1), 8).generate(params, requests)
    arrays = pad_responses(responses, 12)
    prompts = left_pad([request.prompt_tokens for request in requests], 8, 0)
    packed = pack_one_per_row(Sequences(*prompts, arrays["tokens"], arrays["attention"]))
    texts = [(PROMPTS[request.prompt_id], response.tokens) for request, response in zip(requests, responses, strict=True)]
    return params, texts, packed, arrays


def score_with(policy, params, packed, temperature):
    return np.asarray(jax.jit(policy.score, static_argnums=2)(params, packed, temperature).logp)


def test_sampler_and_scorer_agree(rollout):
    params, _, packed, arrays = rollout
    logp = score_with(MIXED, params, packed, 0.7)
    np.testing.assert_allclose(np.where(arrays["mask"], logp, 0), arrays["policy_logp"], atol=1e-5)


def test_the_score_matches_the_formula(rollout):
    """log(0.6 p + 0.4 [the calculator's token]), or log p if the calculator abstains, with p from the network alone."""
    params, texts, packed, _ = rollout
    alone, mixed = (score_with(policy, params, packed, 1.0) for policy in (NETWORK, MIXED))
    hints = []
    for row, (prompt, tokens) in enumerate(texts):
        for index, token in enumerate(tokens):
            hint = expected_predictions(prompt + TOKENIZER.decode(tokens[:index].tolist()))[-1]
            hints.append(hint)
            p = np.exp(alone[row, index])
            p = p if hint is None else 0.6 * p + 0.4 * (TOKENIZER.decode([int(token)]) == hint)
            np.testing.assert_allclose(mixed[row, index], np.log(p), atol=1e-5)
    assert len(set(hints)) > 2


def test_policies_that_cannot_be_mixed_are_refused():
    with pytest.raises(InputError, match="the share of the rules is 1; it must be between 0 and 1"):
        mixed_policy(NETWORK, RULES, share=1)
    with pytest.raises(InputError, match="a mixture with rules needs a policy with `decoder` and `features`"):
        mixed_policy(NETWORK._replace(features=None), RULES, share=0.5)
    with pytest.raises(InputError, match=r"the calculator reads the characters .*; use `--tokenizer characters`"):
        calculator_of(lambda text: [0, 1], VOCAB)
    with pytest.raises(InputError, match="one token of its own, even within a sum"):  # "12" is one token
        calculator_of(lambda text: TOKENIZER.encode(text.replace("12", "3")), VOCAB)
    with pytest.raises(InputError, match="one token of its own, even within a sum"):  # all characters are the same token
        calculator_of(lambda text: [0] * len(text), VOCAB)
    assert len(CHARACTERS) == 13
    config = TrainConfig.flat(calculator=0.5, tokenizer="characters")
    with pytest.raises(InputError, match=r"leave your own policy or the .* use rljax\.models\.mixed_policy\.mixed_policy"):
        choose_policy(config, CustomParts(policy=NETWORK), TOKENIZER, make_mesh(1, 1, 1))
    with pytest.raises(InputError, match=r"changes the built-in model, in .*; leave your own engine or"):
        choose_policy(config, CustomParts(engine=object()), TOKENIZER, make_mesh(1, 1, 1))
    with pytest.raises(InputError, match=r"score_chunk=64 cannot be combined with calculator=0\.5"):
        config.replace(score_chunk=64)
    with pytest.raises(InputError, match=r"tensor=2 cannot be combined with calculator=0\.5"):
        config.replace(tensor=2)
    with pytest.raises(InputError, match=r"calculator is 1\.5; it must be above 0 and below 1"):
        TrainConfig.flat(calculator=1.5)


def test_the_setting_builds_the_mixture():
    """The setting replaces the built-in policy's score and decoder, and removes `features` (full distributions)."""
    custom, mesh = CustomParts(), make_mesh(1, 1, 1)
    plain = choose_policy(TrainConfig.flat(tokenizer="characters"), custom, TOKENIZER, mesh)
    config = TrainConfig.flat(tokenizer="characters", calculator=0.5)
    mixed = choose_policy(config, custom, TOKENIZER, mesh)
    assert mixed is choose_policy(config, custom, TOKENIZER, mesh), "equal runs share their programs"
    assert (mixed.features, mixed.init, mixed.contents) == (None, plain.init, plain.contents)
    assert mixed.score is not plain.score
    assert mixed.decoder.begin is not plain.decoder.begin
