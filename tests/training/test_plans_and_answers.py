"""Hierarchical policies: shared plans, credit for plans and answers, two sub-policies, and runs that train them."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_states import first_state, read_checkpoint
from shared_run import rows
from small_runs import STEPPED, stopping_after

import rljax
from rljax.algorithms.plan_credit import nested_group_advantage
from rljax.data.problem import Problem
from rljax.data.prompts import left_pad
from rljax.data.tokenizer import load_tokenizer
from rljax.errors import InputError
from rljax.models import TransformerConfig, transformer_policy
from rljax.models.adapters import merge
from rljax.models.sub_policies import sub_policies
from rljax.ops.group import group_centered, group_normalized
from rljax.options.plans_and_answers import count_sampled_tokens, mark_plan
from rljax.parallel import make_mesh
from rljax.programs.trained_policy import load
from rljax.rewards.steps import assign_to_tokens
from rljax.rollout import DecodingEngine, Request, Response, Sampling, Sequences, pack_one_per_row
from rljax.rollout.groups import pad_responses
from rljax.rollout.shared_plans import PlanEngine
from rljax.training.interrupt import Interrupted

TOKENIZER = load_tokenizer("characters")
MARKER = TOKENIZER.encode("#")[0]
SHAPE = TransformerConfig(vocab_size=TOKENIZER.vocab_size, layers=1, width=16, heads=2, kv_heads=1, head_dim=8, hidden=32)
NETWORK = transformer_policy(SHAPE, eos=1)
DIVIDED = sub_policies(NETWORK, marker=MARKER, rank=2)
SAMPLING = Sampling(10, (1,))
RUN = STEPPED.replace(
    algorithm="dr_grpo",
    steps=4,
    group_size=4,
    plan_end="5",
    plans=2,
    sub_policies=2,
    max_response_tokens=12,
    operands=(2, 2),
)
"""The marker is a digit, so that even untrained policies write it; `without_five` removes prompts that contain it."""


def centered(values, known):
    """Known values minus their mean; 0 for unknown values, and everywhere if fewer than two are known."""
    chosen = [value for value, is_known in zip(values, known, strict=True) if is_known]
    mean = sum(chosen) / len(chosen) if chosen else 0.0
    return [value - mean if is_known and len(chosen) > 1 else 0.0 for value, is_known in zip(values, known, strict=True)]


def loop_advantages(rewards, ends, plans, valid):
    """The advantage of each token in one group, computed by a loop."""
    size, length = ends.shape
    answers = size // plans
    blocks = [range(k * answers, (k + 1) * answers) for k in range(plans)]
    known = [[bool(valid[i]) for i in block] for block in blocks]
    means = [
        sum(rewards[i] for i in block if valid[i]) / max(1, sum(block_known))
        for block, block_known in zip(blocks, known, strict=True)
    ]
    of_plan = centered(means, [any(block_known) for block_known in known])
    found = np.zeros((size, length))
    for k, block in enumerate(blocks):
        of_answer = centered([rewards[i] for i in block], known[k])
        for j, i in enumerate(block):
            last = max(np.flatnonzero(ends[i]), default=-1)
            end_of_plan = max((index for index in np.flatnonzero(ends[i]) if index < last), default=-1)
            for t in range(length):
                found[i, t] = of_plan[k] if t <= end_of_plan else of_answer[j]
    return found


def test_nested_group_advantage_matches_a_loop():
    random = np.random.default_rng(0)
    rewards = random.normal(size=(3, 6)).astype(np.float32)
    ends = random.random((3, 6, 7)) < 0.3
    valid = random.random((3, 6)) < 0.8
    arrays = map(jnp.asarray, (rewards, ends))
    found = nested_group_advantage(*arrays, plans=3, advantage=group_centered, valid=jnp.asarray(valid))
    expected = [loop_advantages(rewards[p].astype(np.float64), ends[p], 3, valid[p]) for p in range(3)]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    flat = jnp.array([[1.0, 0.0, 1.0, 0.0]]), jnp.tile(jnp.array([0, 1, 0, 1]), (1, 4, 1))
    same = nested_group_advantage(*flat, plans=2, advantage=group_normalized)
    assert np.asarray(same)[..., :2].tolist() == np.zeros((1, 4, 2)).tolist(), "plans with equal values get no credit"
    assert (np.asarray(same)[..., 2] * [1, -1, 1, -1] > 0.5).all()
    for plans in (1, 3, 4):
        with pytest.raises(ValueError, match="cannot be divided"):
            nested_group_advantage(*flat, plans=plans, advantage=group_centered)


class ScriptedEngine:
    """A fake engine that writes `seed % 5 + 1` tokens, then EOS; a plan ends with the marker instead, unless 7 divides its seed."""

    def __init__(self):
        self.calls = []

    def generate(self, params, requests):
        self.calls.append(requests)
        return [self.answer(request) for request in requests]

    def answer(self, request):
        length = request.seed % 5 + 1
        is_plan = MARKER in request.sampling.eos_ids
        tokens = np.array([4] * length + [MARKER if is_plan and request.seed % 7 else 1], np.int32)
        tokens = tokens[: request.sampling.max_tokens]
        logp = np.linspace(-1, -0.5, len(tokens)).astype(np.float32)
        return Response(request.prompt_id, request.group, tokens, np.ones(len(tokens), bool), logp, logp, "stop")


def test_plan_engine_shares_plans_within_the_token_limit():
    engine, requests = (
        ScriptedEngine(),
        [Request((2, 3), 0, group, SAMPLING, seed) for group in (0, 1) for seed in (1, 2, 7, 4)],
    )
    responses = PlanEngine(engine, MARKER, 2).generate({}, requests)
    plans, answers = engine.calls
    assert [request.seed for request in plans] == [1, 7, 1, 7], "the seed of the first request in each block"
    assert all(request.sampling.eos_ids == (1, MARKER) for request in plans)
    assert [request.prompt_tokens for request in answers] == [(2, 3, 4, 4, MARKER)] * 4
    assert len({request.seed for request in answers[:2]} | {1, 2}) == 4, (
        "the answers' seeds must differ from the plans' seeds"
    )
    for request, response in zip(requests, responses, strict=True):
        tokens = response.tokens.tolist()
        assert (response.group, len(tokens) <= 10) == (request.group, True)
        if request.seed in (7, 4):
            assert tokens == [4, 4, 4, 1], "a plan without a marker is used as the whole response"
        else:
            assert tokens[:3] == [4, 4, MARKER]
            assert tokens[3] == 4
            np.testing.assert_array_equal(response.behaviour_logp[:3], np.linspace(-1, -0.5, 3).astype(np.float32))
    short = [request._replace(sampling=SAMPLING._replace(max_tokens=4)) for request in requests]
    found = PlanEngine(ScriptedEngine(), MARKER, 2).generate({}, short)[0]
    assert (found.tokens.tolist(), found.finish) == ([4, 4, MARKER, 4], "length")
    with pytest.raises(InputError, match="4 responses, which cannot be divided among plans=3"):
        PlanEngine(ScriptedEngine(), MARKER, 3).generate({}, requests)


def test_step_ends_and_sampled_token_count():
    text, decode = "3+4=7;#7", lambda ids: TOKENIZER.decode([i for i in ids if i > 1])
    tokens = [*TOKENIZER.encode(text), 1]
    steps = mark_plan("#", [""] * 2, [text, "3+4"])
    assert np.flatnonzero(assign_to_tokens(steps[0], decode, tokens)[1]).tolist() == [6, 8]
    assert steps[1] == [(3, 0.0)]
    ends = np.zeros((1, 4, 5), bool)
    ends[:, :2, [2, 4]], ends[:, 2:, 3] = True, True
    mask = np.ones((1, 4, 5), bool)
    mask[:, 2:, 4] = False
    rollout = rljax.algorithms.Rollout(mask, np.zeros(mask.shape, np.float32), np.zeros((1, 4), np.float32), step_end=ends)
    assert count_sampled_tokens(rollout, None, plans=2) == {"sampled_tokens": 3.0 + 2 * 2 + 2 * 4}


@pytest.fixture(scope="module")
def params():
    """Parameters with nonzero adapters, which change the model's outputs."""
    first = DIVIDED.init(jax.random.key(0))
    noise = iter(jax.random.split(jax.random.key(1), 100))
    return first._replace(
        **{
            name: jax.tree.map(lambda leaf: leaf + 0.2 * jax.random.normal(next(noise), leaf.shape), getattr(first, name))
            for name in ("plan", "answer")
        }
    )


def test_each_sub_policy_scores_its_own_tokens(params):
    """The reference scores each response with two full models, into which the adapters are merged."""
    prompts = left_pad([TOKENIZER.encode(prompt) for prompt in ("3+4=", "1+1=")], 4, 0)
    tokens = np.array([TOKENIZER.encode("3+4=7;#7"), TOKENIZER.encode("1+1=2;2;")], np.int32)
    packed = pack_one_per_row(Sequences(*prompts, tokens, np.ones(tokens.shape, bool)))
    full = [merge(params.shared, adapter, jnp.float32(1)) for adapter in (params.plan, params.answer)]
    plan, answer = (np.asarray(NETWORK.score(each, packed, 1.0).logp) for each in full)
    found = np.asarray(DIVIDED.score(params, packed, 1.0).logp)
    np.testing.assert_allclose(found[0, :7], plan[0, :7], atol=1e-5)
    np.testing.assert_allclose(found[0, 7:], answer[0, 7:], atol=1e-5)
    np.testing.assert_allclose(found[1], plan[1], atol=1e-5)
    assert np.abs(plan - answer).min() > 1e-4
    slope = jax.grad(lambda params: DIVIDED.score(params, packed, 1.0).logp[:, 7:].sum())(params)
    sizes = [sum(float(jnp.abs(leaf).sum()) for leaf in jax.tree.leaves(part)) for part in slope]
    assert sizes[0] == 0, "the shared model must be frozen"
    assert min(sizes[1:]) > 0, "sequence 0 ends with an answer; sequence 1 is still a plan"


def test_sampler_and_scorer_agree_for_shared_plans(params):
    engine = PlanEngine(DecodingEngine(DIVIDED.decoder, make_mesh(1, 1, 1), 4), MARKER, 2)
    ids = tuple(TOKENIZER.encode("3+4="))
    requests = [Request(ids, 0, group, SAMPLING, 10 * group + seed) for group in range(6) for seed in range(4)]
    responses = engine.generate(params, requests)
    arrays = pad_responses(responses, 10)
    packed = pack_one_per_row(Sequences(*left_pad([ids] * 24, 4, 0), arrays["tokens"], arrays["attention"]))
    logp = np.asarray(DIVIDED.score(params, packed, 1.0).logp)
    np.testing.assert_allclose(np.where(arrays["mask"], logp, 0), arrays["policy_logp"], atol=1e-5)
    assert any(MARKER in response.tokens[:-1] for response in responses), "at least one response must contain an answer"


def digit_reward(completions):
    return [sum(character.isdigit() for character in text) / 4 for text in completions]


def without_five(config):
    """Training and held-out problems whose prompts do not contain the marker "5"."""
    train, heldout = rljax.training.parts.problems.make_problems(config)[:2]
    return [p for p in train if "5" not in p.prompt][:4], [p for p in heldout if "5" not in p.prompt][:2]


def test_a_run_trains_both_adapters_and_a_resumed_run_agrees(tmp_path):
    config, stop = RUN.replace(run=str(tmp_path / "done"), heldout_problems=8, train_problems=40), stopping_after(3)
    problems = without_five(config)

    def interrupting(completions):
        stop(completions)
        return digit_reward(completions)

    result = rljax.train(config, reward=digit_reward, problems=problems)
    steps = [row for row in rows(tmp_path / "done") if row["phase"] == "rl"]
    assert all(0 < row["sampled_tokens"] <= row["response_length"] * 16 for row in steps)
    assert any(row["sampled_tokens"] < row["response_length"] * 16 - 1 for row in steps), (
        "shared plans must save sampled tokens"
    )
    for name in ("plan", "answer"):
        moved = [np.abs(np.asarray(leaf)).max() for leaf in jax.tree.leaves(getattr(result.params, name))]
        assert min(moved) > 0, "the factors B, which start at 0, must have changed"
    state = read_checkpoint(config, tmp_path / "done", reward=digit_reward, problems=problems).state
    with pytest.raises(InputError, match=r"plan_end is '5', which the prompt '5\+2=' contains; leave this prompt out"):
        load(tmp_path / "done", reward=digit_reward, problems=[Problem("5+2=", "7")])
    opened = load(tmp_path / "done", reward=digit_reward, problems=[Problem("1+2=", "3")])
    with pytest.raises(InputError, match=r"plan_end is '5', which the prompt '1\+5=' contains"):
        opened.sample(["1+5="])
    ids = opened.tokenizer.encode("1+5=")
    with pytest.raises(InputError, match=rf"plan_end is '5', which the prompt '{re.escape(str(ids))}' contains"):
        opened.sample_ids([ids])
    with pytest.raises(Interrupted):
        rljax.train(config.replace(run=str(tmp_path / "again")), reward=interrupting, problems=problems)
    rljax.train(resume=tmp_path / "again", reward=interrupting, problems=problems)
    again = read_checkpoint(config, tmp_path / "again", reward=digit_reward, problems=problems).state
    chex.assert_trees_all_equal(again, state)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"plan_end": None}, r"plan_end=None with plans=2 and sub_policies=2: set plan_end"),
        ({"plans": None, "sub_policies": None}, "or none of them"),
        ({"plan_end": "12"}, "plan_end is '12', which is 2 tokens"),
        ({"plan_end": "+"}, r"plan_end is '\+', which the prompt '.*' contains"),
        ({"plans": 3}, "group_size=4 cannot be divided into plans=3"),
        ({"algorithm": "ppo", "sub_policies": None}, "choose another algorithm, such as dr_grpo"),
        *(
            ({"algorithm": name}, "plans=2: .* the algorithm's advantage makes between tokens would be lost")
            for name in ("gspo", "luspo", "gepo", "gmpo", "kimi_k15")
        ),
        ({"lora_rank": 2}, "leave lora_rank and weight_decay out"),
    ],
)
def test_invalid_plan_settings_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        first_state(RUN.replace(**changes), reward=digit_reward)


@pytest.mark.parametrize("plans", [2, None])
def test_a_marker_in_a_prompt_of_an_extra_heldout_set_is_refused(tmp_path, plans):
    (tmp_path / "extra.jsonl").write_text('{"prompt": "1+2=", "answer": "3"}\n{"prompt": "5+2=", "answer": "7"}\n')
    config = RUN.replace(also_heldout={"extra": str(tmp_path / "extra.jsonl")}, plans=plans, train_problems=40)
    with pytest.raises(InputError, match=r"plan_end is '5', which the prompt '5\+2=' contains"):
        first_state(config, reward=digit_reward, problems=without_five(config))
