"""An environment of several turns: played, judged and trained on, with observations that are read but not trained on."""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reopened import first_state
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
from rljax.rollout import Request, Response, Sampling, Step, pack, sequences_of
from rljax.rollout.begin_dialogue import begin_dialogue
from rljax.rollout.dialogue import CachedDialogue
from rljax.rollout.environment import check_step
from rljax.rollout.groups import concatenate, right_and_known
from rljax.training.scoring import make_score

ALPHABET = "characters:0123456789<>=?"
TOKENIZER = load_tokenizer(ALPHABET)
EOS = TOKENIZER.eos_token_id
POLICY = gru_policy(TOKENIZER.vocab_size)
GUESSES = [Problem(f"{n}?=", str(n % 10)) for n in range(10, 30)]
PROBLEMS = (GUESSES[:16], GUESSES[16:])
OWN = SMALL.replace(
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


class Guessing:
    """Guess a digit; a wrong guess is answered "<" or ">", and anything else "?"."""

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


class Scripted:
    """An engine that answers each prompt with the text in its script, turn by turn."""

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
    """Groups with one scripted episode per prompt, and the engine."""
    engine = Scripted(script)
    parts = {"policy": POLICY, "engine": engine, "problems": PROBLEMS, "environment": environment or Guessing()}
    setup, state = first_state(OWN.replace(max_response_tokens=budget, **changes), **parts)
    return setup.train.generate(state.params, list(range(len(script))), 1, jax.random.key(0)), engine


def text_of(groups, place):
    """All tokens of a response, with "." for EOS."""
    ids = groups.tokens[place, 0][groups.attention[place, 0]].tolist()
    return "".join("." if token == EOS else TOKENIZER.decode([token]) for token in ids)


def test_turns_and_observations_are_in_one_response():
    """Prompt 0 asks for 0, prompt 1 for 1, prompt 2 for 2."""
    groups, engine = play([["9.", "1.", "0."], ["1."], ["?.", "5.", "2."]])
    assert [text_of(groups, place) for place in range(3)] == ["9.<<1.<<0.", "1.", "?.?5.<<2."]
    rollout = groups.rollout
    masks = [
        [text == "." or text.isdigit() for text in "9.<<1.<<0."],
        [True, True],
        list(map(bool, [1, 1, 0, 1, 1, 0, 0, 1, 1])),
    ]
    for place, expected in enumerate(masks):
        length = len(expected)
        assert rollout.mask[place, 0].tolist() == expected + [False] * (12 - length)
        assert groups.attention[place, 0].tolist() == [True] * length + [False] * (12 - length)
    for logp in (rollout.behaviour_logp, rollout.policy_logp):
        np.testing.assert_array_equal(logp, np.where(rollout.mask, np.float32(-0.5), 0))
    np.testing.assert_allclose(rollout.rewards[:, 0], [0.25 + 0.25 + 1.0, 1.0, 0.25 + 1.0])
    assert not rollout.truncated.any()
    assert groups.turns.tolist() == [[3], [1], [3]]
    second = engine.contexts[1]
    assert set(second) == {0, 2}, "an episode that is done is not continued"
    assert second[0].prompt_tokens == (*TOKENIZER.encode("10?="), *TOKENIZER.encode("9"), EOS, *TOKENIZER.encode("<<"))
    assert len({engine.contexts[turn][0].seed for turn in range(3)}) == 3


def test_an_episode_is_truncated_at_the_limit_of_turns():
    groups, engine = play([["9.", "9.", "9."], ["9.", "9.", "1."]])
    assert len(engine.contexts) == 3
    assert groups.rollout.truncated[:, 0].tolist() == [True, False]
    assert text_of(groups, 0) == "9.<<9.<<9.", "a last observation would have no answer"
    assert groups.turns.tolist() == [[3], [3]]
    np.testing.assert_allclose(groups.rollout.rewards[:, 0], [0.75, 1.5])


def test_an_observation_that_does_not_fit_ends_the_response():
    groups, engine = play([["999.", "0."], ["99.", "1."], ["9.", "2."]], budget=6)
    assert [text_of(groups, place) for place in range(3)] == ["999.", "99.<<1", "9.<<2."], (
        "a turn is cut to the remaining tokens"
    )
    assert groups.turns.tolist() == [[1], [2], [2]], "an observation without an answer does not begin a turn"
    assert groups.rollout.truncated[:, 0].tolist() == [True, True, False]
    assert [request.sampling.max_tokens for request in engine.contexts[1].values()] == [2, 2], "one program for both"


def test_a_turn_without_an_end_is_the_last():
    groups, engine = play([["9"], ["1."]])
    assert len(engine.contexts) == 1
    assert groups.rollout.truncated[:, 0].tolist() == [True, False]


def test_an_episode_without_any_reward_has_no_verdict():
    groups, _ = play([["?.", "?.", "?."], ["?.", "1."]])
    assert groups.rollout.valid[:, 0].tolist() == [False, True]
    assert groups.rollout.rewards[1, 0] == 1.0


@pytest.fixture(scope="module")
def sampled():
    """Groups of episodes that the GRU played, its parameters, and a mask of the observed tokens."""
    setup, state = first_state(OWN, policy=POLICY, problems=PROBLEMS, environment=Guessing())
    groups = setup.train.generate(state.params, [0, 1, 2, 3], 4, jax.random.key(5))
    observed = groups.attention & ~groups.rollout.mask
    assert observed.any(axis=-1).sum() > 4, "the case must contain observations"
    assert groups.rollout.rewards.std() > 0
    return groups, state.params, observed


class GenerateAlone:
    """An engine without dialogues: it reads the complete context for each turn."""

    def __init__(self, engine):
        self.engine, self.calls = engine, 0

    def generate(self, params, requests):
        self.calls += 1
        return self.engine.generate(params, requests)


@pytest.mark.parametrize("slots", [64, 5])
def test_turns_that_continue_from_their_cache_equal_turns_that_read_the_context_again(slots):
    """A transformer plays sixteen episodes of one to three turns."""
    shape = TransformerConfig(TOKENIZER.vocab_size, width=16, layers=1, heads=2, kv_heads=1, head_dim=8, hidden=32)
    policy = transformer_policy(shape, eos=EOS)
    parts = {"policy": policy, "problems": PROBLEMS, "environment": Guessing()}
    setup, state = first_state(OWN.replace(max_response_tokens=40, decode_slots=slots), **parts)
    engine = setup.train.engine
    first = {0: Request((2,), 0, 0, Sampling(4, (EOS,)), 0)}
    assert isinstance(begin_dialogue(engine, state.params, first), CachedDialogue)
    alone = GenerateAlone(engine)
    actual, expected = (
        replace(setup.train, engine=each).generate(state.params, [0, 1, 2, 3], 4, jax.random.key(5))
        for each in (engine, alone)
    )
    assert alone.calls == 3
    assert set(expected.turns.ravel().tolist()) == {1, 2, 3}
    for name in ("tokens", "attention", "turns"):
        np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name))
    for name in ("mask", "rewards", "truncated", "valid"):
        np.testing.assert_array_equal(getattr(actual.rollout, name), getattr(expected.rollout, name))
    np.testing.assert_allclose(actual.rollout.behaviour_logp, expected.rollout.behaviour_logp, atol=1e-5)


class WrongDialogue:
    """A custom dialogue that answers another turn than the expected one, or none."""

    def __init__(self, answer):
        self.answer = answer

    def generate(self, params, requests):
        raise AssertionError("it has a dialogue")

    def dialogue(self, params, requests):
        return self

    def add(self, requests):
        pass

    def draw(self):
        return self.answer


@pytest.mark.parametrize(("answer", "shown"), [({}, r"\[\]"), ({7: None}, r"\[7\]")])
def test_a_dialogue_that_answers_no_turn_is_refused(answer, shown):
    setup, state = first_state(OWN, policy=POLICY, problems=PROBLEMS, environment=Guessing(), engine=WrongDialogue(answer))
    with pytest.raises(InputError, match=rf"^engine\.dialogue: .* turns of episodes \[0, 1\]; got responses to {shown}"):
        setup.train.generate(state.params, [0, 1], 1, jax.random.key(0))


def gradient_of(batch, params, groups):
    packed = jax.tree.map(jnp.asarray, pack(sequences_of(groups)))
    score = make_score(POLICY, 1.0)
    return jax.grad(lambda params: loss(BY_NAME["grpo"](beta=0.0), score(params, packed).logp, batch)[0])(params)


def test_observations_get_no_gradient(sampled):
    groups, params, observed = sampled
    algorithm, rows = BY_NAME["grpo"](beta=0.0), observed.reshape(16, -1)
    batch = prepare(algorithm, groups.rollout)
    assert not np.asarray(batch.weights)[rows].any()
    assert not np.asarray(batch.mask)[rows].any()
    expected = gradient_of(batch, params, groups)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected)) > 1e-3
    rollout = groups.rollout._replace(behaviour_logp=np.where(observed, np.float32(-7), groups.rollout.behaviour_logp))
    rollout = rollout._replace(policy_logp=np.where(observed, np.float32(-9), groups.rollout.policy_logp))
    jax.tree.map(np.testing.assert_array_equal, prepare(algorithm, rollout), batch)
    changed = batch._replace(
        advantage=jnp.where(rows, 5.0, batch.advantage),
        old_logp=jnp.where(rows, -3.0, batch.old_logp),
        policy_logp=jnp.where(rows, -3.0, batch.policy_logp),
    )
    jax.tree.map(np.testing.assert_array_equal, gradient_of(changed, params, groups), expected)


def test_observations_are_seen(sampled):
    """Another token in their place changes the log-probability of every later one, and of no earlier one."""
    groups, params, observed = sampled
    place = next(tuple(index) for index in np.argwhere(observed) if groups.rollout.mask[tuple(index[:2])][index[2] :].any())
    tokens = groups.tokens.copy()
    tokens[place] = 2 if tokens[place] != 2 else 3
    before, after = (
        np.asarray(make_score(POLICY, 1.0)(params, jax.tree.map(jnp.asarray, pack(sequences_of(each)))).logp)
        for each in (groups, groups._replace(tokens=tokens))
    )
    differs = (before != after).reshape(tokens.shape)
    group, response, token = place
    later = groups.rollout.mask[group, response] & (np.arange(tokens.shape[-1]) > token)
    assert later.any()
    assert differs[group, response][later].all()
    differs[group, response, token:] = False
    assert not differs.any()


def test_played_episodes_score_the_same(sampled):
    """Later turns are sampled after the complete context, padded to another length."""
    groups, params, _ = sampled
    scores = make_score(POLICY, 1.0)(params, jax.tree.map(jnp.asarray, pack(sequences_of(groups))))
    logp = np.asarray(scores.logp).reshape(groups.tokens.shape)
    np.testing.assert_allclose(np.where(groups.rollout.mask, logp, 0), groups.rollout.policy_logp, atol=1e-4)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("guess") / "run"
    parts = {"policy": POLICY, "problems": PROBLEMS, "environment": Guessing()}
    return rljax.train(OWN.replace(run=str(path)), **parts)


def test_it_trains(trained):
    rows = [json.loads(line) for line in (trained.run / "metrics.jsonl").read_text().splitlines()]
    assert [row["phase"] for row in rows] == ["eval", "rl", "rl", "eval"]
    assert all(0 < row["reward"] < 1.5 for row in rows if row["phase"] == "rl")
    assert all(1 < row["turns"] < 3 for row in rows if row["phase"] == "rl")
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), trained.params, POLICY.init(jax.random.key(0)))
    assert min(jax.tree.leaves(moved)) > 0
    samples = [json.loads(line) for line in (trained.run / "samples.jsonl").read_text().splitlines()]
    assert any(set(sample["completion"]) & set("<>") for sample in samples)


def test_a_run_is_opened_and_evaluated_with_its_environment(trained):
    assert load(trained.run, policy=POLICY, problems=PROBLEMS[1]).missing == ("environment",), (
        "it can sample but cannot judge"
    )
    with pytest.raises(InputError, match="The run was started with environment passed to train"):
        evaluate(trained.run, policy=POLICY, problems=PROBLEMS[1])
    parts = {"policy": POLICY, "problems": PROBLEMS[1], "environment": Guessing()}
    report = evaluate(trained.run, samples=2, temperature=1.0, **parts)
    assert "4 problems" in report.headline()
    opened = load(trained.run, which="last", **parts)
    rollout = opened.worker.generate(opened.params, [0, 1, 2, 3], 1, jax.random.key(0)).rollout
    assert trained.accuracy_after == (rollout.rewards[rollout.valid] > 0).mean()


class Raising(Guessing):
    """Raises in the episodes of one answer."""

    def step(self, state, completion):
        if state == 1:
            raise KeyError("one")
        return super().step(state, completion)


class RaisingAtFirst(Guessing):
    def reset(self, problem):
        return 1 / (int(problem.answer) - 1) and super().reset(problem)


@pytest.mark.parametrize("environment", [Raising(), RaisingAtFirst()], ids=["in a step", "in a reset"])
def test_an_environment_that_raises_fails_on_that_episode(environment):
    script = [["9.", "0."], ["1."], ["2."], ["3."]]
    groups, _ = play(script, environment, max_failure_share=0.25)
    assert groups.failed[:, 0].tolist() == [0, 1, 0, 0]
    assert groups.rollout.valid[:, 0].tolist() == [True, False, True, True]
    assert groups.rollout.rewards[:, 0].tolist() == [1.25, 0.0, 1.0, 1.0]
    with pytest.raises(InputError, match=r"Raising.* failed on 2 of 2 completions"):
        play([["1."]] * 2, type("Raising", (Raising,), {"reset": lambda self, problem: 1})(), max_failure_share=0.1)


def game_that_returns(step):
    """The game, but with this result for every step."""
    return type("Other", (Guessing,), {"step": lambda self, state, completion: step})()


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
def test_a_result_that_is_not_a_step_is_refused(step, message):
    with pytest.raises(InputError, match=rf"^environment\.step: .*{message}") as caught:
        play([["9."]], game_that_returns(step))
    assert "\n" not in str(caught.value)


def game_with_max_turns(turns):
    game = Guessing()
    game.max_turns = turns
    return game


ENDLESS = SimpleNamespace(reset=Guessing().reset, step=Guessing().step)
SEEDED = SimpleNamespace(reset=lambda problem, seed: seed, step=Guessing().step, max_turns=2)
TEXT_STEP = SimpleNamespace(reset=Guessing().reset, step=lambda completion: completion, max_turns=2)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"environment": ENDLESS}, r"^environment\.max_turns: .*, a whole number of at least 1; got None"),
        ({"environment": game_with_max_turns(0)}, r"^environment\.max_turns: .*Guessing must set .*; got 0"),
        ({"environment": game_with_max_turns(True)}, r"^environment\.max_turns: .*; got True"),
        (
            {"environment": even_length},
            r"^environment\.reset: an environment must have the methods .*even_length without reset and step",
        ),
        (
            {"environment": SEEDED},
            r"^environment\.reset: .* the method reset\(problem\); missing a required argument: 'seed'\.$",
        ),
        ({"environment": TEXT_STEP}, r"^environment\.step: .* step\(state, completion\); too many positional arguments\.$"),
        ({"environment": Guessing(), "reward": even_length}, "^environment: the rewards come from its steps, .* got both"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_an_object_that_is_not_an_environment_is_refused_before_anything_is_written(tmp_path, parts, message):
    path = tmp_path / "refused"
    with pytest.raises(InputError, match=message) as caught:
        rljax.train(OWN.replace(run=str(path)), policy=POLICY, problems=PROBLEMS, **parts)
    assert "\n" not in str(caught.value)
    assert not path.exists()


TURNS = {"algorithm": "mt_grpo", "algorithm_options": {"beta": 0.0}}


def test_a_turn_is_rewarded_at_its_last_token():
    script = [["9.", "1.", "0."], ["1."], ["?.", "5.", "2."]]
    rollout = play(script, **TURNS)[0].rollout
    shown = ["9.<<1.<<0.", "1.", "?.?5.<<2."]
    ends = [[text == "." for text in line] + [False] * (12 - len(line)) for line in shown]
    assert rollout.step_end[:, 0].tolist() == ends
    rewards = [[0.25, 0.25, 1.0], [1.0], [0.0, 0.25, 1.0]]
    for place, expected in enumerate(rewards):
        assert rollout.turn_rewards[place, 0][rollout.step_end[place, 0]].tolist() == expected
    np.testing.assert_array_equal(rollout.turn_rewards, rollout.step_rewards)
    np.testing.assert_allclose(rollout.turn_rewards.sum(-1), rollout.rewards)
    assert play(script)[0].rollout.turn_rewards is None, "an algorithm that only uses outcomes does not read them"


def test_turns_are_credited_in_a_run(tmp_path):
    config = OWN.replace(run=str(tmp_path / "turns"), steps=1, heldout_problems=1, **TURNS)
    result = rljax.train(config, policy=POLICY, problems=PROBLEMS, environment=Guessing())
    row = next(
        row for row in map(json.loads, (result.run / "metrics.jsonl").read_text().splitlines()) if row["phase"] == "rl"
    )
    assert row["advantage_variance"] > 0
    assert row["grad_norm"] > 0


def test_a_step_reward_and_an_environment_are_refused(tmp_path):
    config = OWN.replace(
        run=str(tmp_path / "refused"), algorithm="grpo_process", step_reward="steps.py:f", algorithm_options={}
    )
    with pytest.raises(InputError, match=r"^step_reward='steps.py:f': the steps are the environment's turns"):
        rljax.train(config, policy=POLICY, problems=PROBLEMS, environment=Guessing())
    assert not (tmp_path / "refused").exists()


class Stating(Guessing):
    """Also states whether a guess is correct; the reward is positive for wrong digits, too."""

    def step(self, state, completion):
        return super().step(state, completion)._replace(correct=completion[:1] == str(state))


def test_an_environment_states_what_is_correct():
    """Prompt 0 is solved in two turns, prompt 1 is not solved in three, and prompt 2 runs out of tokens."""
    script = [["9.", "0."], ["9.", "9.", "9."], ["77"]]
    stated, silent = (play(script, environment)[0] for environment in (Stating(), Guessing()))
    assert silent.rollout.correct is None
    assert stated.rollout.correct[:, 0].tolist() == [1.0, 0.0, 0.0]
    assert [array[:, 0].tolist() for array in right_and_known(stated.rollout)] == [[True, False, False], [True] * 3]
    assert right_and_known(silent.rollout)[0][:, 0].tolist() == [True, True, True], "rewards above 0"
    both = concatenate([silent, stated])
    assert right_and_known(both.rollout)[1][:, 0].tolist() == [False] * 3 + [True] * 3
    with pytest.raises(InputError, match=r"correct in .* must be True, False or None; got 'yes'"):
        check_step(Guessing(), Step(None, correct="yes"))


def test_a_run_has_an_accuracy_if_its_environment_states_what_is_correct(tmp_path, capsys):
    run = tmp_path / "run"
    parts = {"policy": POLICY, "problems": PROBLEMS}
    rljax.train(OWN.replace(steps=1, max_response_tokens=8, run=str(run)), environment=Stating(), **parts)
    printed = capsys.readouterr().out
    assert "step 1: held-out accuracy " in printed or "Held-out accuracy: " in printed
    assert "rewards above 0" not in printed
    report = evaluate(run, environment=Stating(), problems=PROBLEMS[1], policy=POLICY)
    assert report.headline().startswith("accuracy ")
    plain = evaluate(run, environment=Guessing(), problems=PROBLEMS[1], policy=POLICY)
    assert plain.headline().startswith("share of rewards above 0: ")


class AsyncReset(Guessing):
    """Its reset is a coroutine."""

    async def reset(self, problem):
        return int(problem.answer)


class AsyncStep(Guessing):
    """Its step is a coroutine."""

    async def step(self, state, completion):
        await asyncio.sleep(0)
        return super().step(state, completion)


class HiddenAsyncReset(Guessing):
    """Its reset returns a coroutine, which its signature does not show."""

    def reset(self, problem):
        return AsyncReset().reset(problem)


@pytest.mark.parametrize("environment", [AsyncReset(), AsyncStep(), HiddenAsyncReset()])
def test_an_environment_of_coroutines_plays_the_same_episodes(environment):
    script = [["9.", "1.", "0."], ["1."], ["?.", "5.", "2."]]
    found, plain = play(script, environment)[0], play(script)[0]
    assert [text_of(found, place) for place in range(3)] == [text_of(plain, place) for place in range(3)]
    assert found.rollout.rewards.tolist() == plain.rollout.rewards.tolist()
