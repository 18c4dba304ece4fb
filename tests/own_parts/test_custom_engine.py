"""Tests of engines: a run samples with a custom engine, and the built-in engine's responses do not depend on the batch."""

import json
import random
from functools import partial

import jax
import numpy as np
import pytest
from run_states import first_state
from small_runs import SMALL, even_length
from third_party_policies import gru_policy

import rljax
from rljax.data.problem import Problem
from rljax.data.prompts import left_pad
from rljax.data.tokenizer import load_tokenizer
from rljax.errors import InputError
from rljax.models import transformer_policy
from rljax.models.config import TransformerConfig
from rljax.parallel import make_mesh
from rljax.rollout import DecodingEngine, Request, Response, Sampling, Sequences, pack_one_per_row
from rljax.rollout.engine_protocols import check_responses
from rljax.rollout.groups import pad_responses
from rljax.rollout.sampling import empty_rows, fill_rows, grow_rows, move_rows, read_prompts

SUMS = [Problem(f"{a}+{b}=", str(a + b)) for a in range(1, 13) for b in (1, 10)]
PROBLEMS = (SUMS[:20], SUMS[20:])
TOKENIZER = load_tokenizer("characters")
POLICY = gru_policy(TOKENIZER.vocab_size)._replace(decoder=None)
CONFIG = SMALL.replace(
    name="engine", algorithm="grpo", steps=2, prompts=4, group_size=4, learning_rate=1e-2, eval_every=0, sample_every=0
)


class PythonEngine:
    """An engine that writes random digits from a request's seed; the policy computes their log-probabilities."""

    def __init__(self, version=None):
        self.version, self.calls = version, []
        self.score = jax.jit(POLICY.score, static_argnums=2)

    def generate(self, params, requests):
        self.calls.append(list(requests))
        sampled = [self.sample(request) for request in requests]
        logp = self.compute_logp(params, requests, sampled)
        return [
            response._replace(behaviour_logp=row[: len(response.tokens)], policy_logp=row[: len(response.tokens)])
            for response, row in zip(sampled, logp, strict=True)
        ]

    def sample(self, request):
        generator = random.Random(request.seed if request.sampling.temperature else request.prompt_id)
        digits = "".join(generator.choice("0123456789") for _ in range(generator.randint(1, 6)))
        tokens = np.array([*TOKENIZER.encode(digits), request.sampling.eos_ids[0]], np.int32)
        zeros = np.zeros(len(tokens), np.float32)
        sampled = np.ones(len(tokens), bool)
        return Response(request.prompt_id, request.group, tokens, sampled, zeros, zeros, "stop", self.version)

    def compute_logp(self, params, requests, sampled):
        prompts = left_pad([request.prompt_tokens for request in requests], 6, 0)
        arrays = pad_responses(sampled, 12)
        sequences = Sequences(*prompts, arrays["tokens"], arrays["attention"])
        return np.asarray(self.score(params, pack_one_per_row(sequences), 1.0).logp)


def read_rows(run, phase):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["phase"] == phase]


@pytest.fixture(scope="module", params=[None, 0], ids=["no version", "version 0"])
def trained(request, tmp_path_factory):
    """A custom engine, and the result of a run that used the engine."""
    engine = PythonEngine(request.param)
    config = CONFIG.replace(run=str(tmp_path_factory.mktemp("engine") / "run"))
    return engine, rljax.train(config, even_length, policy=POLICY, engine=engine, problems=PROBLEMS)


def test_engine_samples_for_training_and_evaluation(trained):
    engine, result = trained
    before, first, second, after = engine.calls
    for call in (before, after):
        assert [request.prompt_id for request in call] == [0, 1, 2, 3]
        assert {request.sampling for request in call} == {Sampling(12, (TOKENIZER.eos_token_id,), temperature=0.0)}
    for call in (first, second):
        assert [request.group for request in call] == [group for group in range(4) for _ in range(4)]
        assert {request.sampling for request in call} == {Sampling(12, (TOKENIZER.eos_token_id,))}
        assert len({request.prompt_id for request in call}) == 4
    for call, problems in ((before, PROBLEMS[1]), (first, PROBLEMS[0]), (second, PROBLEMS[0])):
        assert all(list(request.prompt_tokens) == TOKENIZER.encode(problems[request.prompt_id].prompt) for request in call)
    seeds = [request.seed for call in (first, second) for request in call]
    assert len(set(seeds)) == len(seeds)
    assert 2**60 < max(seeds) < 2**64
    changes = jax.tree.map(lambda a, b: np.abs(a - b).max(), result.params, POLICY.init(jax.random.key(0)))
    assert min(jax.tree.leaves(changes)) > 0


def test_engine_responses_are_judged(trained):
    engine, result = trained
    texts = [TOKENIZER.decode(engine.sample(request).tokens) for request in engine.calls[1]]
    assert read_rows(result.run, "rl")[0]["reward"] == np.mean(even_length(texts))
    texts = [TOKENIZER.decode(engine.sample(request).tokens) for request in engine.calls[0]]
    assert result.accuracy_before == np.mean(even_length(texts))


def test_staleness_uses_the_engine_version(trained):
    engine, result = trained
    ages = [row["staleness"] for row in read_rows(result.run, "rl")]
    assert ages == ([0, 0] if engine.version is None else [0, 1])
    setup, state = first_state(CONFIG, policy=POLICY, engine=engine, problems=PROBLEMS, reward=even_length)
    groups = setup.train.generate(state.params, [0, 1], 2, jax.random.key(0), version=7)
    assert groups.version.tolist() == [[7 if engine.version is None else 0] * 2] * 2


def make_response(request, **changes):
    """Return a valid two-token response, with some fields replaced."""
    tokens, logp = np.array([3, 1], np.int32), np.array([-1.5, -0.5], np.float32)
    valid = Response(request.prompt_id, request.group, tokens, np.ones(2, bool), logp, logp, "stop")
    return valid._replace(**changes)


def change_first_response(**changes):
    return lambda requests: [make_response(requests[0], **changes), *map(make_response, requests[1:])]


def resize_first_response(count):
    zeros = np.zeros(count, np.float32)
    return change_first_response(
        tokens=np.full(count, 2), mask=np.ones(count, bool), behaviour_logp=zeros, policy_logp=zeros
    )


LOGP = np.array([-1.5, -0.5], np.float32)
INVALID_ANSWERS = {
    "too few responses": (lambda requests: [*map(make_response, requests)][1:], "4 requests need one response each; got 3"),
    "no list": (lambda requests: None, "the result must be a list of rljax.rollout.Response; got None"),
    "strings": (lambda requests: ["12"] * len(requests), "response 0 must be an rljax.rollout.Response; got '12'"),
    "another order": (
        lambda requests: [make_response(request) for request in reversed(requests)],
        "response 0 must answer prompt 0 of group 0; got prompt 1 of group 1",
    ),
    "too many tokens": (resize_first_response(13), "response 0 must have 1 to 12 tokens; got 13"),
    "no token": (resize_first_response(0), "response 0 must have 1 to 12 tokens; got 0"),
    "mask too short": (
        change_first_response(mask=np.ones(1, bool)),
        r"response 0 has 2 tokens, so its mask must have the shape \[2\]; got \[1\]",
    ),
    "log-probabilities too long": (
        change_first_response(policy_logp=np.zeros(3, np.float32)),
        r"response 0 has 2 tokens, so its policy_logp must have the shape \[2\]; got \[3\]",
    ),
    "two axes": (
        change_first_response(behaviour_logp=np.zeros((2, 1), np.float32)),
        r"its behaviour_logp must have the shape \[2\]; got \[2, 1\]",
    ),
    "NaN": (
        change_first_response(policy_logp=LOGP * [1, np.nan]),
        "response 0 must have finite log-probabilities of at most 0 in policy_logp; got nan",
    ),
    "positive": (
        change_first_response(behaviour_logp=-LOGP),
        "response 0 must have finite log-probabilities of at most 0 in behaviour_logp; got 1.5",
    ),
    "probabilities": (
        change_first_response(behaviour_logp=np.exp(LOGP)),
        "finite log-probabilities of at most 0 in behaviour_logp; got 0.22",
    ),
    "an id below 0": (
        change_first_response(tokens=np.array([-3, 1], np.int32)),
        "response 0 must have token ids of at least 0; got -3",
    ),
    "an id that the policy does not have": (
        change_first_response(tokens=np.array([1000, 1], np.int32)),
        rf"the token ids of the policy are 0 to {TOKENIZER.vocab_size - 1}; got 1000",
    ),
    "tokens after the end token": (
        change_first_response(tokens=np.array([1, 3], np.int32)),
        "response 0 continues after the token 1, but each token of eos_ids ends a response",
    ),
    "a list of tokens": (
        change_first_response(tokens=[3, 1]),
        r"response 0 must have a NumPy array of integers as its tokens; got \[3, 1\]",
    ),
    "a mask of 0 and 1": (
        change_first_response(mask=np.ones(2, np.int32)),
        "response 0 must have a NumPy array of booleans as its mask; got array",
    ),
    "an unknown finish": (
        change_first_response(finish="eos"),
        "response 0 must have one of 'stop', 'length', 'turns' as its finish; got 'eos'",
    ),
    "no turn": (
        change_first_response(turns=0),
        "response 0 must have an integer of at least 1 as its number of turns; got 0",
    ),
    "a tuple instead of a count": (
        change_first_response(turns=(0, 3)),
        r"response 0 must have an integer of at least 1 as its number of turns; got \(0, 3\)",
    ),
}


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize("case", INVALID_ANSWERS)
def test_invalid_responses_are_rejected(case):
    answers, message = INVALID_ANSWERS[case]

    class InvalidEngine:
        def generate(self, params, requests):
            return answers(requests)

    parts = {"policy": POLICY, "engine": InvalidEngine(), "problems": PROBLEMS, "reward": even_length}
    setup, state = first_state(CONFIG, **parts)
    with pytest.raises(InputError, match=rf"^engine\.generate: .*{message}") as caught:
        setup.train.generate(state.params, [0, 1], 2, jax.random.key(0))
    assert "\n" not in str(caught.value)


def test_log_probabilities_of_observations_are_not_checked():
    request = Request((2, 3), 0, 0, Sampling(12, (1,)), 5)
    observed = {"mask": np.array([True, False]), "behaviour_logp": np.array([-1.0, np.nan], np.float32)}
    check_responses([request], [make_response(request, **observed)])


@pytest.mark.usefixtures("without_type_checks")
def test_invalid_engine_is_rejected_before_anything_is_written(tmp_path):
    path = tmp_path / "refused"
    with pytest.raises(
        InputError, match=r"^engine\.generate: an engine must have the method generate\(params, requests\); got"
    ):
        rljax.train(CONFIG.replace(run=str(path)), even_length, policy=POLICY, engine=even_length, problems=PROBLEMS)
    assert not path.exists()


SHAPE = TransformerConfig(vocab_size=20, width=16, layers=1, heads=2, kv_heads=1, head_dim=8, hidden=32)
MODELS = {"transformer": transformer_policy(SHAPE, eos=1), "GRU": gru_policy(20)}


@pytest.mark.parametrize("name", MODELS)
def test_response_does_not_depend_on_the_batch(name):
    """Responses are identical in a permuted batch, and equal up to rounding in smaller batches."""
    policy = MODELS[name]
    params = jax.tree.map(lambda x: x * 3, policy.init(jax.random.key(0)))
    engine = DecodingEngine(policy.decoder, make_mesh(1, 1), 6)
    generator = np.random.default_rng(0)
    requests = [
        Request(
            tuple(generator.integers(2, 20, 3 + i % 4).tolist()), i, 0, Sampling(12, (1,), temperature=0.8), seed=i << 40
        )
        for i in range(24)
    ]
    all_at_once = engine.generate(params, requests)
    assert len({response.tokens.tobytes() for response in all_at_once}) > 12
    order = generator.permutation(len(requests)).tolist()
    permuted = engine.generate(params, [requests[index] for index in order])
    halves = engine.generate(params, requests[:9]) + engine.generate(params, requests[9:])
    for index, response in enumerate(all_at_once):
        for other, rounding in ((permuted[order.index(index)], 0.0), (halves[index], 3e-6)):
            assert (other.prompt_id, other.finish) == (response.prompt_id, response.finish)
            for field in ("tokens", "mask"):
                np.testing.assert_array_equal(getattr(other, field), getattr(response, field), err_msg=f"{index} {field}")
            for field in ("behaviour_logp", "policy_logp"):
                found, expected = getattr(other, field), getattr(response, field)
                np.testing.assert_allclose(found, expected, rtol=rounding, atol=rounding, err_msg=f"{index} {field}")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("slots", [1, 3, 8])
def test_number_of_slots_does_not_change_responses(name, slots):
    """New requests reuse rows that ended, requests share prompts and have different budgets, and the cache wraps around."""
    policy = MODELS[name]
    params = jax.tree.map(lambda x: x * 3, policy.init(jax.random.key(0)))
    generator = np.random.default_rng(0)
    prompts = [tuple(generator.integers(2, 20, length).tolist()) for length in (3, 6, 5, 4, 6)]
    requests = [
        Request(prompts[i % 5], i % 5, 0, Sampling(4 + 4 * (i % 3), (1,), temperature=0.8), seed=i << 40) for i in range(20)
    ]
    at_once, in_turn = (DecodingEngine(policy.decoder, make_mesh(1, 1), 6, each) for each in (20, slots))
    expected, actual = (engine.generate(params, requests) for engine in (at_once, in_turn))
    check_responses(requests, actual)
    assert {response.finish for response in expected} == {"stop", "length"}
    for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
        assert (one.prompt_id, one.finish) == (other.prompt_id, other.finish)
        np.testing.assert_array_equal(one.tokens, other.tokens, err_msg=str(index))
        np.testing.assert_allclose(one.behaviour_logp, other.behaviour_logp, rtol=1e-5, atol=1e-5)


def test_move_rows_needs_only_the_memory_of_both_batches():
    """The empty rows are never written to memory."""
    policy, mesh = MODELS["transformer"], make_mesh(1, 1)
    params = jax.eval_shape(policy.init, jax.random.key(0))
    batch = {"length": 8, "room": 128, "sampling": Sampling(128, ()), "mesh": mesh}
    many = jax.eval_shape(partial(empty_rows, policy.decoder, rows=16, **batch), params)
    source = jax.ShapeDtypeStruct((12,), np.int32)
    found = move_rows.lower(policy.decoder, params, many, source, **batch).compile().memory_analysis()
    assert found.temp_size_in_bytes < 0.05 * found.output_size_in_bytes


@pytest.mark.parametrize("name", MODELS)
def test_last_rows_move_to_smaller_batches(name, monkeypatch):
    """As rows end, the others move to the smallest batch that has room for them, and their samples do not change."""
    policy = MODELS[name]
    params = jax.tree.map(lambda x: x * 3, policy.init(jax.random.key(0)))
    budgets = [3 + index % 3 if index % 8 else 20 + index for index in range(32)]
    prompts = [tuple(range(2, 4 + index % 5)) for index in range(32)]
    requests = [
        Request(prompts[i], i, 0, Sampling(budget, (), temperature=0.8), seed=i << 40) for i, budget in enumerate(budgets)
    ]
    engine = DecodingEngine(policy.decoder, make_mesh(1, 1), 6, 32)
    expected, moves = engine.generate(params, requests), []

    def record_call(decoder, params, rows, source, **batch):
        moves.append((rows.ended.size, source.size, int((np.asarray(source) >= 0).sum())))
        return move_rows(decoder, params, rows, source, **batch)

    monkeypatch.setattr("rljax.rollout.decode_sizes.LONG_BUDGET", 44)
    monkeypatch.setattr("rljax.rollout.engine.move_rows", record_call)
    actual = engine.generate(params, requests)
    assert moves == [(32, 16, 13), (16, 8, 4)]
    streamed = {index: response for ended in engine.stream(params, requests) for index, response in ended.items()}
    assert [sizes for *sizes, _ in moves] == [[32, 16], [16, 8]] * 2
    for index, one in enumerate(expected):
        for other in (actual[index], streamed[index]):
            np.testing.assert_array_equal(one.tokens, other.tokens, err_msg=str(index))
            np.testing.assert_allclose(one.behaviour_logp, other.behaviour_logp, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("slots", [8, 24])
def test_growing_cache_does_not_change_responses(name, slots, monkeypatch):
    """The cache grows twice while rows are reused, and then wraps around."""
    policy = MODELS[name]
    params = jax.tree.map(lambda x: x * 3, policy.init(jax.random.key(0)))
    prompts = [tuple(range(2, 4 + index % 5)) for index in range(24)]
    requests = [Request(prompts[i], i, 0, Sampling(1 + 5 * i % 37, (), temperature=0.8), seed=i << 40) for i in range(24)]
    engine = DecodingEngine(policy.decoder, make_mesh(1, 1), 6, slots)
    expected, grown = engine.generate(params, requests), []

    def record_call(decoder, rows, *, more):
        grown.append(more)
        return grow_rows(decoder, rows, more=more)

    monkeypatch.setattr("rljax.rollout.decode_sizes.LONG_BUDGET", 36)
    monkeypatch.setattr("rljax.rollout.engine.grow_rows", record_call)
    actual = engine.generate(params, requests)
    assert grown == ([10, 17] if policy.decoder.grow else [])
    for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
        np.testing.assert_array_equal(one.tokens, other.tokens, err_msg=str(index))
        np.testing.assert_allclose(one.behaviour_logp, other.behaviour_logp, atol=1e-5)


def test_each_prompt_is_read_once(monkeypatch):
    """64 requests have four prompts, which are read in two blocks of two, for any number of responses."""
    policy = MODELS["transformer"]
    params = policy.init(jax.random.key(0))
    read = []

    def record_call(decoder, params, prompts, attention, *, budget):
        read.append(prompts.shape)
        return read_prompts(decoder, params, prompts, attention, budget=budget)

    monkeypatch.setattr("rljax.rollout.engine.read_prompts", record_call)
    engine = DecodingEngine(policy.decoder, make_mesh(1, 1), 6, 32)
    engine.generate(params, [Request((2, 3 + i // 16), i // 16, 0, Sampling(5, (1,)), seed=i) for i in range(64)])
    assert read == [(2, 6), (2, 6)]


def test_prompts_read_in_parts_are_inserted_together(monkeypatch):
    """40 prompts are read two at a time, and inserted four at a time, which is an eighth of the slots."""
    policy = MODELS["transformer"]
    params = jax.tree.map(lambda x: x * 3, policy.init(jax.random.key(0)))
    requests = [Request((2, 3 + i % 16, 2 + i // 16), i, 0, Sampling(5, (1,)), seed=i) for i in range(40)]
    engine = DecodingEngine(policy.decoder, make_mesh(1, 1), 6, 32)
    expected, filled = engine.generate(params, requests), []

    def record_call(decoder, rows, prompts, source, draws, *, sampling):
        filled.append((len(prompts), prompts[0].logits.shape[0], int((source >= 0).sum())))
        return fill_rows(decoder, rows, prompts, source, draws, sampling=sampling)

    monkeypatch.setattr("rljax.rollout.decode_sizes.PROMPT_TOKENS_AT_ONCE", 12)
    monkeypatch.setattr("rljax.rollout.engine.fill_rows", record_call)
    actual = engine.generate(params, requests)
    assert filled == [(2, 2, 4)] * 10
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
