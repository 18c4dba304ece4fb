"""Tests that every field of an engine's responses keeps its name and values on the way from the engine to the loss."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_states import first_state
from small_runs import SMALL, even_length
from third_party_policies import gru_policy

import rljax
from rljax.algorithms import BY_NAME, Rollout, loss, prepare
from rljax.data.history import Choice, no_history
from rljax.data.problem import Problem
from rljax.data.tokenizer import load_tokenizer
from rljax.errors import InputError
from rljax.rewards import verifier
from rljax.rollout import Collected, Response, Step, for_algorithm, pack_one_per_row, sequences_of
from rljax.rollout.groups import from_dict, to_dict
from rljax.training import rl_phase
from rljax.training.lifecycle.finish import accuracy_name
from rljax.training.metrics import rollout_metrics
from rljax.training.rollout_data import next_rollout

TOKENIZER = load_tokenizer("characters")
SUMS = [Problem(f"{a}+{b}=", str(a + b)) for a in range(1, 13) for b in (1, 10)]
PROMPTS, GROUP, LENGTH = 3, 2, 12
CONFIG = SMALL.replace(
    name="one-way", algorithm="grpo", steps=1, prompts=PROMPTS, group_size=GROUP, eval_every=0, sample_every=0
)


def make_response(request, number):
    """Return a response with log-probabilities -(number + 1) - position / 100; its third token is an observation."""
    length = 4 + number
    positions = np.arange(length, dtype=np.float32)
    sampled = positions != 2
    return Response(
        request.prompt_id,
        request.group,
        tokens=(2 + (number + np.arange(length)) % 10).astype(np.int32),
        mask=sampled,
        behaviour_logp=np.where(sampled, -(number + 1) - positions / 100, 77).astype(np.float32),
        policy_logp=np.where(sampled, -(number + 1) - positions / 100 - 0.005, 99).astype(np.float32),
        finish=("stop", "length", "turns")[number % 3],
        version=20 + number,
        turns=1 + number % 3,
    )


class FixedEngine:
    """An engine that returns the responses of `make_response`."""

    def __init__(self):
        self.requests, self.responses = [], []

    def generate(self, params, requests):
        self.requests = requests
        self.responses = [make_response(request, number) for number, request in enumerate(requests)]
        return self.responses


PARTS = {"policy": gru_policy(TOKENIZER.vocab_size), "problems": (SUMS[:20], SUMS[20:]), "reward": even_length}


@pytest.fixture(scope="module")
def fixed_rollout():
    """The groups of the fixed responses, the responses, and the prompt ids."""
    engine = FixedEngine()
    setup, state = first_state(CONFIG, engine=engine, **PARTS)
    prompt_ids = [5, 0, 17]
    groups = setup.train.generate(state.params, prompt_ids, GROUP, jax.random.key(0), version=99)
    return groups, engine.responses, prompt_ids


def as_array(responses, name):
    """Return a field of all responses, [P, G, T]; padding and log-probabilities of observations are 0."""
    array = np.zeros((PROMPTS, GROUP, LENGTH), responses[0]._asdict()[name].dtype)
    for number, each in enumerate(responses):
        values = each._asdict()[name]
        array[divmod(number, GROUP)][: len(values)] = np.where(each.mask, values, 0) if name.endswith("logp") else values
    return array


TOKEN_FIELDS = ("tokens", "mask", "behaviour_logp", "policy_logp")


@pytest.mark.parametrize("name", TOKEN_FIELDS)
def test_groups_keep_the_fields_of_the_responses(fixed_rollout, name):
    groups, responses, _ = fixed_rollout
    record = groups.rollout if name in Rollout._fields else groups
    np.testing.assert_array_equal(record._asdict()[name], as_array(responses, name))


def test_groups_keep_prompt_finish_and_version(fixed_rollout):
    groups, responses, prompt_ids = fixed_rollout
    assert groups.prompt_ids.tolist() == prompt_ids
    assert [each.prompt_id for each in responses] == [prompt_id for prompt_id in prompt_ids for _ in range(GROUP)]
    for index, prompt_id in enumerate(prompt_ids):
        tokens = groups.prompt_tokens[index][groups.prompt_attention[index]].tolist()
        assert tokens == TOKENIZER.encode(SUMS[prompt_id].prompt)
    assert groups.version.reshape(-1).tolist() == [20, 21, 22, 23, 24, 25]
    assert groups.rollout.truncated.reshape(-1).tolist() == [False, True, True, False, True, True]
    assert groups.attention.sum(-1).reshape(-1).tolist() == [4, 5, 6, 7, 8, 9]
    texts = [TOKENIZER.decode(each.tokens[each.mask].tolist()) for each in responses]
    assert groups.rollout.rewards.reshape(-1).tolist() == even_length(texts), "the reward must not read observations"


def test_prompt_tokens_keep_their_name_and_values():
    engine = FixedEngine()
    setup, state = first_state(CONFIG, engine=engine, **PARTS)
    groups = setup.train.generate(state.params, [5, 0, 17], GROUP, jax.random.key(0))
    sequences = sequences_of(groups)
    for number, request in enumerate(engine.requests):
        for record, index in ((groups, number // GROUP), (sequences, number)):
            tokens = record.prompt_tokens[index][record.prompt_attention[index]]
            assert tokens.tolist() == list(request.prompt_tokens)


@verifier
def is_even(completions):
    return [float(reward > 0) for reward in even_length(completions)]


class OneTurnEnvironment:
    """A one-turn environment whose reward is always 0."""

    max_turns = 1

    def reset(self, problem):
        return problem

    def step(self, state, completion):
        return Step(state, reward=0.0)


def one_point_five(completions):
    return [1.5] * len(completions)


def test_verifier_verdict_reaches_accuracy_and_samples(fixed_rollout):
    plain, *_ = fixed_rollout
    assert plain.rollout.correct is None
    engine = FixedEngine()
    setup, state = first_state(CONFIG, engine=engine, **{**PARTS, "reward": [is_even, one_point_five]})
    groups = setup.train.generate(state.params, [5, 0, 17], GROUP, jax.random.key(0), version=99)
    texts = [TOKENIZER.decode(each.tokens[each.mask].tolist()) for each in engine.responses]
    right = np.array(is_even(texts))
    np.testing.assert_array_equal(groups.rollout.correct.reshape(-1), right)
    np.testing.assert_array_equal(groups.rollout.rewards.reshape(-1), right + 1.5)
    collected = Collected(groups, None, groups, 1, 0.0, complete=True)
    assert 0 < right.mean() < 1
    metrics = rollout_metrics(collected, wanted=1, version=30, seconds=1.0)
    assert metrics.accuracy == pytest.approx(right.mean())
    parts = {"is_even": right, "one_point_five": np.full(len(right), 1.5)}
    found = {name: part.reshape(-1) for name, part in for_algorithm(groups).reward_parts.items()}
    jax.tree.map(np.testing.assert_array_equal, found, parts)
    assert metrics.parts == {f"reward_{name}": pytest.approx(part.mean()) for name, part in parts.items()}
    assert [row["correct"] for row in setup.train.sample_rows(groups, 3)] == (groups.rollout.correct[:, 0] > 0).tolist()
    jax.tree.map(np.testing.assert_array_equal, from_dict(to_dict(groups)), groups)
    assert [accuracy_name(worker) for worker in (setup.heldout, replace(setup.heldout, environment=OneTurnEnvironment()))] == [
        "accuracy", "rewards above 0",
    ]  # fmt: skip


def test_dynamic_sampling_and_history_use_the_verdicts(fixed_rollout):
    """All rewards are above 0, so only the verifier tells responses apart. It abstains on the first problem."""
    calls = []

    @verifier
    def by_index(completions):
        calls.append(len(completions))
        return [None] * 2 + [float(index % 2) for index in range(2, len(completions))]

    setup, state = first_state(CONFIG, engine=FixedEngine(), **{**PARTS, "reward": [by_index, one_point_five]})
    algorithm = BY_NAME["dapo"](max_length=LENGTH, cache=2)
    config = CONFIG.replace(prompts=2, oversample=1.5, group_size=GROUP, max_tries=1)
    setup = setup._replace(config=config, algorithm=algorithm)
    first_three = lambda history, step, position, count: Choice(np.arange(3), 3, 0)  # noqa: E731
    state, history, collected = next_rollout(setup, state, no_history(20), None, first_three)
    assert calls == [6]
    assert (history.attempts[:3].tolist(), history.passes[:3].tolist()) == ([0.0, 2.0, 2.0], [0.0, 1.0, 1.0])
    assert collected.filtered_ratio == pytest.approx(1 / 3), (
        "the group without a verdict must be dropped because its rewards are equal"
    )
    unverified = collected.groups._replace(rollout=collected.groups.rollout._replace(correct=None))
    with pytest.raises(InputError, match="saved with a verifier among its rewards, and now has none"):
        next_rollout(setup, state, history, unverified, first_three)


def test_staleness_is_computed_from_versions(fixed_rollout):
    groups, *_ = fixed_rollout
    collected = Collected(groups, None, groups, 1, 0.0, complete=True)
    assert rollout_metrics(collected, wanted=1, version=30, seconds=1.0).staleness == 30 - 22.5


def test_turns_metric_is_the_mean_number_of_turns(fixed_rollout):
    groups, responses, _ = fixed_rollout
    assert groups.turns.reshape(-1).tolist() == [each.turns for each in responses] == [1, 2, 3, 1, 2, 3]
    collected = Collected(groups, None, groups, 1, 0.0, complete=True)
    assert rollout_metrics(collected, wanted=1, version=30, seconds=1.0).turns == 2.0


def test_groups_survive_dict_round_trip(fixed_rollout):
    groups, *_ = fixed_rollout
    jax.tree.map(np.testing.assert_array_equal, from_dict(to_dict(groups)), groups)


@pytest.mark.parametrize("name", ["mask", "policy_logp"])
def test_batch_keeps_the_fields_of_the_responses(fixed_rollout, name):
    groups, responses, _ = fixed_rollout
    batch = prepare(BY_NAME["grpo"](beta=0.0), groups.rollout)
    np.testing.assert_array_equal(batch._asdict()[name], as_array(responses, name).reshape(-1, LENGTH))


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_old_logp_is_policy_logp_unless_the_algorithm_replaces_it(fixed_rollout, name):
    groups, responses, _ = fixed_rollout
    algorithm = BY_NAME[name]()
    blank = np.zeros((PROMPTS, GROUP, LENGTH), np.float32)
    extra = {"ref_logp": blank, "values": blank, "behaviour_entropy": blank, "step_rewards": blank, "step_end": blank > 0}
    extra |= {"teacher_logp": blank, "square_sum": blank, "greedy_rewards": blank[:, 0, 0]}
    extra["reward_parts"] = {"reward": blank[..., 0]}
    batch = prepare(algorithm, groups.rollout._replace(**extra), progress=0.5 if algorithm.mix is not None else None)
    policy_logp, mask = jnp.asarray(as_array(responses, "policy_logp")), jnp.asarray(groups.rollout.mask)
    behaviour_logp = jnp.asarray(as_array(responses, "behaviour_logp"))
    denominator = algorithm.denominator
    expected = policy_logp if denominator is None else denominator(policy_logp, behaviour_logp, mask)
    np.testing.assert_array_equal(batch.old_logp, np.asarray(expected).reshape(-1, LENGTH))
    assert (algorithm.denominator is not None) == (name in {"deepseek_v32", "dppo", "gepo", "scale_rl", "vespo"})


def test_packed_rows_contain_tokens_and_policy_logp(fixed_rollout):
    groups, responses, _ = fixed_rollout
    packed = pack_one_per_row(sequences_of(groups))
    for name in ("tokens", "policy_logp"):
        rows = np.take_along_axis(packed._asdict()[name], packed.scored, axis=1).reshape(-1)[packed.place]
        np.testing.assert_array_equal(rows, as_array(responses, name).reshape(-1, LENGTH))
    is_attended = np.take_along_axis(packed.segments, packed.scored, axis=1) > 0
    np.testing.assert_array_equal(is_attended, groups.attention.reshape(-1, LENGTH))


def test_run_passes_the_same_values_to_prepare_and_update(tmp_path, monkeypatch):
    """Records the rollout that `prepare` gets, and the rows and the batch that the update gets."""
    engine, rollouts, batches, rows = FixedEngine(), [], [], []
    originals = {"prepare": rl_phase.make_prepare, "step": rl_phase.make_policy_update}

    def record_prepare(algorithm, choices, **minibatches):
        prepared = originals["prepare"](algorithm, choices, **minibatches)
        return lambda rollout, **options: (
            rollouts.append(rollout) or batches.append(prepared(rollout, **options)) or batches[-1]
        )

    def record_step(*arguments, **options):
        step = originals["step"](*arguments, **options)

        def record_update(state, layout, batch, data):
            assert data == {}
            rows.append(jax.device_get((layout, batch)))
            return step(state, layout, batch, data)

        return record_update

    monkeypatch.setattr(rl_phase, "make_prepare", record_prepare)
    monkeypatch.setattr(rl_phase, "make_policy_update", record_step)
    generated = []
    generate = engine.generate
    engine.generate = lambda params, requests: generated.append(generate(params, requests)) or generated[-1]
    rljax.train(CONFIG.replace(run=str(tmp_path / "run")), engine=engine, **PARTS)
    ((rollout,), (batch,), ((layout, updated_batch),)) = rollouts, batches, rows
    responses = generated[1]
    for name in ("mask", "behaviour_logp", "policy_logp"):
        np.testing.assert_array_equal(rollout._asdict()[name], as_array(responses, name))
    assert rollout.truncated.reshape(-1).tolist() == [each.truncated for each in responses]
    for each in (batch, updated_batch):
        for name in ("mask", "policy_logp"):
            np.testing.assert_array_equal(each._asdict()[name], as_array(responses, name).reshape(-1, LENGTH))
        np.testing.assert_array_equal(each.old_logp, each.policy_logp)
    expected = as_array(responses, "tokens").reshape(-1, LENGTH)
    assert sorted(layout.responses[layout.responses >= 0]) == list(range(PROMPTS * GROUP))
    for index, response in np.ndenumerate(layout.responses):
        if response >= 0:
            packed = jax.tree.map(lambda array, part=index[0]: array[part], layout.packed)
            tokens = np.take_along_axis(packed.tokens, packed.scored, axis=1).reshape(-1)[packed.place[index[1]]]
            count = len(responses[response].tokens)
            np.testing.assert_array_equal(tokens[:count], expected[response, :count])


def test_ratio_is_relative_to_old_logp(fixed_rollout):
    """The ratio is 1 at `policy_logp`, and exp(0.005) at `behaviour_logp`, which is 0.005 higher."""
    groups, responses, _ = fixed_rollout
    algorithm = BY_NAME["grpo"](beta=0.0)
    batch = prepare(algorithm, groups.rollout)
    for name, ratio in (("policy_logp", 1.0), ("behaviour_logp", np.exp(0.005))):
        logp = jnp.asarray(as_array(responses, name).reshape(-1, LENGTH))
        np.testing.assert_allclose(loss(algorithm, logp, batch)[1].numbers()["ratio"], ratio, rtol=1e-5)
