"""Tests of multi-turn environments: episodes are played, judged and trained on, but observations are not trained on."""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_states import first_state
from small_runs import SMALL, even_length
from third_party_policies import gru_policy

import rljax
from rljax.algorithms import BY_NAME, loss, prepare
from rljax.data.problem import Problem
from rljax.data.tokenizer import load_tokenizer
from rljax.errors import InputError
from rljax.models import TransformerConfig, transformer_policy
from rljax.programs.evaluation import evaluate
from rljax.programs.trained_policy import load
from rljax.rollout import Request, Response, Sampling, Step, pack_one_per_row, sequences_of
from rljax.rollout.begin_dialogue import begin_dialogue
from rljax.rollout.cached_dialogue import CachedDialogue
from rljax.rollout.environment import check_step
from rljax.rollout.groups import concatenate, correctness_masks
from rljax.training.scoring import make_score

ALPHABET = "characters:0123456789<>=?"
TOKENIZER = load_tokenizer(ALPHABET)
EOS = TOKENIZER.eos_token_id
POLICY = gru_policy(TOKENIZER.vocab_size)
GUESSES = [Problem(f"{n}?=", str(n % 10)) for n in range(10, 30)]
PROBLEMS = (GUESSES[:16], GUESSES[16:])
CONFIG = SMALL.replace(
    name="guess",
    algorithm="grpo",
    algorithm_options={"beta": 0.0},
    tokenizer=ALPHABET,
    steps=2,
    prompts=4,
    group_size=4,
    learning_rate=1e-2,
    eval_every=0,
    sample_every=1,
)


class GuessingGame:
    """Guess a digit. The observation after a wrong guess is "<<" or ">>", and after anything else "?"."""

    max_turns = 3

    def reset(self, problem):
        return int(problem.answer)

    def step(self, state, completion):
        if completion[:1].isdigit():
            guess = int(completion[0])
            if guess == state:
                return Step(state, reward=1.0)
            return Step(state, "<<" if state < guess else ">>", reward=0.25, done=False)
        return Step(state, "?", done=False)


class ScriptedEngine:
    """An engine that takes each turn's text from the prompt's script. A final "." stands for EOS."""

    def __init__(self, script, *, logp=-0.5):
        self.script, self.logp, self.contexts = script, logp, []

    def generate(self, params, requests):
        turn = len(self.contexts)
        self.contexts.append({request.prompt_id: request for request in requests})
        return [self.respond(request, self.script[request.prompt_id][turn]) for request in requests]

    def respond(self, request, text):
        ids = TOKENIZER.encode(text.rstrip("."))
        tokens = np.array([*ids, EOS] if text.endswith(".") else ids, np.int32)
        logp = np.full(len(tokens), self.logp, np.float32)
        finish = "stop" if text.endswith(".") else "length"
        return Response(request.prompt_id, request.group, tokens, np.ones(len(tokens), bool), logp, logp, finish)


def play(script, environment=None, *, budget=12, **changes):
    """Play one scripted episode per prompt, and return the groups and the engine."""
    engine = ScriptedEngine(script)
    parts = {"policy": POLICY, "engine": engine, "problems": PROBLEMS, "environment": environment or GuessingGame()}
    setup, state = first_state(CONFIG.replace(max_response_tokens=budget, **changes), **parts)
    return setup.train.generate(state.params, list(range(len(script))), 1, jax.random.key(0)), engine


def text_of(groups, index):
    """Return the text of a group's first response, with "." for EOS."""
    ids = groups.tokens[index, 0][groups.attention[index, 0]].tolist()
    return "".join("." if token == EOS else TOKENIZER.decode([token]) for token in ids)


def test_response_contains_turns_and_observations():
    """The right guess is 0 for prompt 0, 1 for prompt 1, and 2 for prompt 2."""
    groups, engine = play([["9.", "1.", "0."], ["1."], ["?.", "5.", "2."]])
    assert [text_of(groups, index) for index in range(3)] == ["9.<<1.<<0.", "1.", "?.?5.<<2."]
    rollout = groups.rollout
    masks = [
        [text == "." or text.isdigit() for text in "9.<<1.<<0."],
        [True, True],
        list(map(bool, [1, 1, 0, 1, 1, 0, 0, 1, 1])),
    ]
    for index, expected in enumerate(masks):
        length = len(expected)
        assert rollout.mask[index, 0].tolist() == expected + [False] * (12 - length)
        assert groups.attention[index, 0].tolist() == [True] * length + [False] * (12 - length)
    for logp in (rollout.behaviour_logp, rollout.policy_logp):
        np.testing.assert_array_equal(logp, np.where(rollout.mask, np.float32(-0.5), 0))
    np.testing.assert_allclose(rollout.rewards[:, 0], [0.25 + 0.25 + 1.0, 1.0, 0.25 + 1.0])
    assert not rollout.truncated.any()
    assert groups.turns.tolist() == [[3], [1], [3]]
    second = engine.contexts[1]
    assert set(second) == {0, 2}, "episode 1 is done, so it should have no second turn"
    assert second[0].prompt_tokens == (*TOKENIZER.encode("10?="), *TOKENIZER.encode("9"), EOS, *TOKENIZER.encode("<<"))
    assert len({engine.contexts[turn][0].seed for turn in range(3)}) == 3


def test_episode_is_truncated_at_max_turns():
    groups, engine = play([["9.", "9.", "9."], ["9.", "9.", "1."]])
    assert len(engine.contexts) == 3
    assert groups.rollout.truncated[:, 0].tolist() == [True, False]
    assert text_of(groups, 0) == "9.<<9.<<9.", (
        "the response must not end with an observation, which the policy could not answer"
    )
    assert groups.turns.tolist() == [[3], [3]]
    np.testing.assert_allclose(groups.rollout.rewards[:, 0], [0.75, 1.5])


def test_observation_that_does_not_fit_ends_the_response():
    groups, engine = play([["999.", "0."], ["99.", "1."], ["9.", "2."]], budget=6)
    assert [text_of(groups, index) for index in range(3)] == ["999.", "99.<<1", "9.<<2."], (
        "a turn must be cut to the remaining tokens"
    )
    assert groups.turns.tolist() == [[1], [2], [2]], "an observation without an answer must not count as a turn"
    assert groups.rollout.truncated[:, 0].tolist() == [True, True, False]
    assert [request.sampling.max_tokens for request in engine.contexts[1].values()] == [2, 2], (
        "both turns must have the same limit, so that they share a compiled program"
    )


def test_turn_without_eos_ends_the_episode():
    groups, engine = play([["9"], ["1."]])
    assert len(engine.contexts) == 1
    assert groups.rollout.truncated[:, 0].tolist() == [True, False]


def test_episode_without_rewards_has_no_verdict():
    groups, _ = play([["?.", "?.", "?."], ["?.", "1."]])
    assert groups.rollout.valid[:, 0].tolist() == [False, True]
    assert groups.rollout.rewards[1, 0] == 1.0


@pytest.fixture(scope="module")
def sampled():
    """Groups of episodes played by the GRU, the GRU's parameters, and a mask of the observed tokens."""
    setup, state = first_state(CONFIG, policy=POLICY, problems=PROBLEMS, environment=GuessingGame())
    groups = setup.train.generate(state.params, [0, 1, 2, 3], 4, jax.random.key(5))
    observed = groups.attention & ~groups.rollout.mask
    assert observed.any(axis=-1).sum() > 4, "the test needs observations"
    assert groups.rollout.rewards.std() > 0
    return groups, state.params, observed


class EngineWithoutDialogue:
    """An engine without a dialogue, which reads the complete context in each turn."""

    def __init__(self, engine):
        self.engine, self.calls = engine, 0

    def generate(self, params, requests):
        self.calls += 1
        return self.engine.generate(params, requests)


@pytest.mark.parametrize("slots", [64, 5])
def test_cached_turns_equal_rereading_the_context(slots):
    """A transformer plays sixteen episodes, which have one to three turns."""
    shape = TransformerConfig(TOKENIZER.vocab_size, width=16, layers=1, heads=2, kv_heads=1, head_dim=8, hidden=32)
    policy = transformer_policy(shape, eos=EOS)
    parts = {"policy": policy, "problems": PROBLEMS, "environment": GuessingGame()}
    setup, state = first_state(CONFIG.replace(max_response_tokens=40, decode_slots=slots), **parts)
    engine = setup.train.engine
    first = {0: Request((2,), 0, 0, Sampling(4, (EOS,)), 0)}
    assert isinstance(begin_dialogue(engine, state.params, first), CachedDialogue)
    rereading = EngineWithoutDialogue(engine)
    actual, expected = (
        replace(setup.train, engine=each).generate(state.params, [0, 1, 2, 3], 4, jax.random.key(5))
        for each in (engine, rereading)
    )
    assert rereading.calls == 3
    assert set(expected.turns.ravel().tolist()) == {1, 2, 3}
    for name in ("tokens", "attention", "turns"):
        np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name))
    for name in ("mask", "rewards", "truncated", "valid"):
        np.testing.assert_array_equal(getattr(actual.rollout, name), getattr(expected.rollout, name))
    np.testing.assert_allclose(actual.rollout.behaviour_logp, expected.rollout.behaviour_logp, atol=1e-5)


class WrongDialogue:
    """A custom dialogue whose `sample_turns` returns responses to the wrong episodes, or none."""

    def __init__(self, answer):
        self.answer = answer

    def generate(self, params, requests):
        raise AssertionError("the dialogue must be used instead")

    def dialogue(self, params, requests):
        return self

    def add(self, requests):
        pass

    def sample_turns(self):
        return self.answer


@pytest.mark.parametrize(("answer", "shown"), [({}, r"\[\]"), ({7: None}, r"\[7\]")])
def test_dialogue_with_wrong_responses_is_rejected(answer, shown):
    setup, state = first_state(
        CONFIG, policy=POLICY, problems=PROBLEMS, environment=GuessingGame(), engine=WrongDialogue(answer)
    )
    with pytest.raises(InputError, match=rf"^engine\.dialogue: .* turns of episodes \[0, 1\]; got responses to {shown}"):
        setup.train.generate(state.params, [0, 1], 1, jax.random.key(0))


def compute_gradient(batch, params, groups):
    packed = jax.tree.map(jnp.asarray, pack_one_per_row(sequences_of(groups)))
    score = make_score(POLICY, 1.0)
    return jax.grad(lambda params: loss(BY_NAME["grpo"](beta=0.0), score(params, packed).logp, batch)[0])(params)


def test_observations_do_not_affect_the_gradient(sampled):
    groups, params, observed = sampled
    algorithm, rows = BY_NAME["grpo"](beta=0.0), observed.reshape(16, -1)
    batch = prepare(algorithm, groups.rollout)
    assert not np.asarray(batch.weights)[rows].any()
    assert not np.asarray(batch.mask)[rows].any()
    expected = compute_gradient(batch, params, groups)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected)) > 1e-3
    rollout = groups.rollout._replace(behaviour_logp=np.where(observed, np.float32(-7), groups.rollout.behaviour_logp))
    rollout = rollout._replace(policy_logp=np.where(observed, np.float32(-9), groups.rollout.policy_logp))
    jax.tree.map(np.testing.assert_array_equal, prepare(algorithm, rollout), batch)
    changed = batch._replace(
        advantage=jnp.where(rows, 5.0, batch.advantage),
        old_logp=jnp.where(rows, -3.0, batch.old_logp),
        policy_logp=jnp.where(rows, -3.0, batch.policy_logp),
    )
    jax.tree.map(np.testing.assert_array_equal, compute_gradient(changed, params, groups), expected)


def test_later_tokens_depend_on_observations(sampled):
    """Replacing an observed token changes the log-probability of every later token, and of no earlier token."""
    groups, params, observed = sampled
    position = next(
        tuple(index) for index in np.argwhere(observed) if groups.rollout.mask[tuple(index[:2])][index[2] :].any()
    )
    tokens = groups.tokens.copy()
    tokens[position] = 2 if tokens[position] != 2 else 3
    before, after = (
        np.asarray(make_score(POLICY, 1.0)(params, jax.tree.map(jnp.asarray, pack_one_per_row(sequences_of(each)))).logp)
        for each in (groups, groups._replace(tokens=tokens))
    )
    differs = (before != after).reshape(tokens.shape)
    group, response, token = position
    later = groups.rollout.mask[group, response] & (np.arange(tokens.shape[-1]) > token)
    assert later.any()
    assert differs[group, response][later].all()
    differs[group, response, token:] = False
    assert not differs.any()


def test_scores_match_sampled_log_probabilities(sampled):
    """During sampling, later turns follow a context that is padded differently."""
    groups, params, _ = sampled
    scores = make_score(POLICY, 1.0)(params, jax.tree.map(jnp.asarray, pack_one_per_row(sequences_of(groups))))
    logp = np.asarray(scores.logp).reshape(groups.tokens.shape)
    np.testing.assert_allclose(np.where(groups.rollout.mask, logp, 0), groups.rollout.policy_logp, atol=1e-4)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("guess") / "run"
    parts = {"policy": POLICY, "problems": PROBLEMS, "environment": GuessingGame()}
    return rljax.train(CONFIG.replace(run=str(path)), **parts)


def test_run_with_environment_trains(trained):
    rows = [json.loads(line) for line in (trained.run / "metrics.jsonl").read_text().splitlines()]
    assert [row["phase"] for row in rows] == ["eval", "rl", "rl", "eval"]
    assert all(0 < row["reward"] < 1.5 for row in rows if row["phase"] == "rl")
    assert all(1 < row["turns"] < 3 for row in rows if row["phase"] == "rl")
    changes = jax.tree.map(lambda a, b: np.abs(a - b).max(), trained.params, POLICY.init(jax.random.key(0)))
    assert min(jax.tree.leaves(changes)) > 0
    samples = [json.loads(line) for line in (trained.run / "samples.jsonl").read_text().splitlines()]
    assert any(set(sample["completion"]) & set("<>") for sample in samples)


def test_load_and_evaluate_need_the_environment(trained):
    assert load(trained.run, policy=POLICY, problems=PROBLEMS[1]).missing == ("environment",), (
        "without its environment, the policy can sample but cannot be judged"
    )
    with pytest.raises(InputError, match="The run was started with environment passed to train"):
        evaluate(trained.run, policy=POLICY, problems=PROBLEMS[1])
    parts = {"policy": POLICY, "problems": PROBLEMS[1], "environment": GuessingGame()}
    report = evaluate(trained.run, samples=2, temperature=1.0, **parts)
    assert "4 problems" in report.headline()
    opened = load(trained.run, which="last", **parts)
    rollout = opened.worker.generate(opened.params, [0, 1, 2, 3], 1, jax.random.key(0)).rollout
    assert trained.accuracy_after == (rollout.rewards[rollout.valid] > 0).mean()


class RaisingGame(GuessingGame):
    """A game whose step raises an error if the answer is 1."""

    def step(self, state, completion):
        if state == 1:
            raise KeyError("one")
        return super().step(state, completion)


class RaisingAtReset(GuessingGame):
    def reset(self, problem):
        return 1 / (int(problem.answer) - 1) and super().reset(problem)


@pytest.mark.parametrize("environment", [RaisingGame(), RaisingAtReset()], ids=["in a step", "in a reset"])
def test_exception_fails_only_its_episode(environment):
    script = [["9.", "0."], ["1."], ["2."], ["3."]]
    groups, _ = play(script, environment, max_failure_share=0.25)
    assert groups.failed[:, 0].tolist() == [0, 1, 0, 0]
    assert groups.rollout.valid[:, 0].tolist() == [True, False, True, True]
    assert groups.rollout.rewards[:, 0].tolist() == [1.25, 0.0, 1.0, 1.0]
    with pytest.raises(InputError, match=r"Raising.* failed on 2 of 2 completions"):
        play([["1."]] * 2, type("Raising", (RaisingGame,), {"reset": lambda self, problem: 1})(), max_failure_share=0.1)


def make_game_with_step_result(step):
    """Return a game whose every step returns the same result."""
    return type("Other", (GuessingGame,), {"step": lambda self, state, completion: step})()


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("<", "must return an rljax.rollout.Step; got '<'"),
        (None, "must return an rljax.rollout.Step; got None"),
        (Step(0, reward="1"), "the reward of a turn in .* must be a number, or None for no verdict; got '1'"),
        (
            Step(0, observation=["<"], done=False),
            r"the observation in .* must be a string, or a list of messages .*; got \['<'\]",
        ),
    ],
)
def test_invalid_step_result_is_rejected(step, message):
    with pytest.raises(InputError, match=rf"^environment\.step: .*{message}") as caught:
        play([["9."]], make_game_with_step_result(step))
    assert "\n" not in str(caught.value)


def make_game_with_max_turns(turns):
    game = GuessingGame()
    game.max_turns = turns
    return game


WITHOUT_MAX_TURNS = SimpleNamespace(reset=GuessingGame().reset, step=GuessingGame().step)
RESET_WITH_SEED = SimpleNamespace(reset=lambda problem, seed: seed, step=GuessingGame().step, max_turns=2)
STEP_WITHOUT_STATE = SimpleNamespace(reset=GuessingGame().reset, step=lambda completion: completion, max_turns=2)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"environment": WITHOUT_MAX_TURNS}, r"^environment\.max_turns: .*, a whole number of at least 1; got None"),
        ({"environment": make_game_with_max_turns(0)}, r"^environment\.max_turns: .*GuessingGame must set .*; got 0"),
        ({"environment": make_game_with_max_turns(True)}, r"^environment\.max_turns: .*; got True"),
        (
            {"environment": even_length},
            r"^environment\.reset: an environment must have the methods .*even_length without reset and step",
        ),
        (
            {"environment": RESET_WITH_SEED},
            r"^environment\.reset: .* the method reset\(problem\); missing a required argument: 'seed'\.$",
        ),
        (
            {"environment": STEP_WITHOUT_STATE},
            r"^environment\.step: .* step\(state, completion\); too many positional arguments\.$",
        ),
        (
            {"environment": GuessingGame(), "reward": even_length},
            "^environment: its steps return the rewards, so a reward must not be passed too",
        ),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_invalid_environment_is_rejected_before_anything_is_written(tmp_path, parts, message):
    path = tmp_path / "refused"
    with pytest.raises(InputError, match=message) as caught:
        rljax.train(CONFIG.replace(run=str(path)), policy=POLICY, problems=PROBLEMS, **parts)
    assert "\n" not in str(caught.value)
    assert not path.exists()


TURN_CREDIT = {"algorithm": "mt_grpo", "algorithm_options": {"beta": 0.0}}


def test_turn_reward_is_at_its_last_token():
    script = [["9.", "1.", "0."], ["1."], ["?.", "5.", "2."]]
    rollout = play(script, **TURN_CREDIT)[0].rollout
    texts = ["9.<<1.<<0.", "1.", "?.?5.<<2."]
    ends = [[text == "." for text in line] + [False] * (12 - len(line)) for line in texts]
    assert rollout.step_end[:, 0].tolist() == ends
    rewards = [[0.25, 0.25, 1.0], [1.0], [0.0, 0.25, 1.0]]
    for index, expected in enumerate(rewards):
        assert rollout.turn_rewards[index, 0][rollout.step_end[index, 0]].tolist() == expected
    np.testing.assert_array_equal(rollout.turn_rewards, rollout.step_rewards)
    np.testing.assert_allclose(rollout.turn_rewards.sum(-1), rollout.rewards)
    assert play(script)[0].rollout.turn_rewards is None, (
        "an algorithm that uses only outcome rewards must get no turn rewards"
    )


def test_turn_credit_changes_advantages_in_a_run(tmp_path):
    config = CONFIG.replace(run=str(tmp_path / "turns"), steps=1, heldout_problems=1, **TURN_CREDIT)
    result = rljax.train(config, policy=POLICY, problems=PROBLEMS, environment=GuessingGame())
    row = next(
        row for row in map(json.loads, (result.run / "metrics.jsonl").read_text().splitlines()) if row["phase"] == "rl"
    )
    assert row["advantage_variance"] > 0
    assert row["grad_norm"] > 0


def test_step_reward_with_environment_is_rejected(tmp_path):
    config = CONFIG.replace(
        run=str(tmp_path / "refused"), algorithm="grpo_process", step_reward="steps.py:f", algorithm_options={}
    )
    with pytest.raises(InputError, match=r"^step_reward='steps.py:f': the environment rewards its own turns"):
        rljax.train(config, policy=POLICY, problems=PROBLEMS, environment=GuessingGame())
    assert not (tmp_path / "refused").exists()


class VerifyingGame(GuessingGame):
    """A game that also reports whether a guess is correct, because wrong digits get a positive reward, too."""

    def step(self, state, completion):
        return super().step(state, completion)._replace(correct=completion[:1] == str(state))


def test_environment_reports_correctness():
    """Prompt 0 is solved in the second turn, prompt 1 is not solved in three turns, and prompt 2 runs out of tokens."""
    script = [["9.", "0."], ["9.", "9.", "9."], ["77"]]
    verified, unverified = (play(script, environment)[0] for environment in (VerifyingGame(), GuessingGame()))
    assert unverified.rollout.correct is None
    assert verified.rollout.correct[:, 0].tolist() == [1.0, 0.0, 0.0]
    assert [array[:, 0].tolist() for array in correctness_masks(verified.rollout)] == [[True, False, False], [True] * 3]
    assert correctness_masks(unverified.rollout)[0][:, 0].tolist() == [True, True, True], (
        "without a report, rewards above 0 count as correct"
    )
    both = concatenate([unverified, verified])
    assert correctness_masks(both.rollout)[1][:, 0].tolist() == [False] * 3 + [True] * 3
    with pytest.raises(InputError, match=r"correct in .* must be True, False or None; got 'yes'"):
        check_step(GuessingGame(), Step(None, correct="yes"))


def test_run_has_accuracy_if_environment_reports_correctness(tmp_path, capsys):
    run = tmp_path / "run"
    parts = {"policy": POLICY, "problems": PROBLEMS}
    rljax.train(CONFIG.replace(steps=1, max_response_tokens=8, run=str(run)), environment=VerifyingGame(), **parts)
    printed = capsys.readouterr().out
    assert "step 1: held-out accuracy " in printed or "Held-out accuracy: " in printed
    assert "rewards above 0" not in printed
    report = evaluate(run, environment=VerifyingGame(), problems=PROBLEMS[1], policy=POLICY)
    assert report.headline().startswith("accuracy ")
    plain = evaluate(run, environment=GuessingGame(), problems=PROBLEMS[1], policy=POLICY)
    assert plain.headline().startswith("share of rewards above 0: ")


class AsyncReset(GuessingGame):
    """A game whose reset is a coroutine."""

    async def reset(self, problem):
        return int(problem.answer)


class AsyncStep(GuessingGame):
    """A game whose step is a coroutine."""

    async def step(self, state, completion):
        await asyncio.sleep(0)
        return super().step(state, completion)


class HiddenAsyncReset(GuessingGame):
    """A game whose reset is an ordinary function that returns a coroutine."""

    def reset(self, problem):
        return AsyncReset().reset(problem)


@pytest.mark.parametrize("environment", [AsyncReset(), AsyncStep(), HiddenAsyncReset()])
def test_async_environment_plays_the_same_episodes(environment):
    script = [["9.", "1.", "0."], ["1."], ["?.", "5.", "2."]]
    found, plain = play(script, environment)[0], play(script)[0]
    assert [text_of(found, index) for index in range(3)] == [text_of(plain, index) for index in range(3)]
    assert found.rollout.rewards.tolist() == plain.rollout.rewards.tolist()
