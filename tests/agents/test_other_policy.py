"""Episodes with two policies: token masks, turn rewards, the copy of past parameters (refreshed and resumed), roles and Nim."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_states import first_state, read_checkpoint
from small_runs import SMALL
from third_party_policies import gru_policy

import rljax
from rljax.agents import Nim, SelfCorrection
from rljax.data.problem import Problem
from rljax.data.tokenizer import load_tokenizer
from rljax.errors import InputError
from rljax.options.other_policy import NAME
from rljax.rollout import Response, Step
from rljax.rollout.environment import Player, make_environment, other_policy_in
from rljax.rollout.episodes import play

ALPHABET = "characters:0123456789ab"
TOKENIZER = load_tokenizer(ALPHABET)
EOS = TOKENIZER.eos_token_id
PROBLEMS = [Problem(f"{n}", "ab"[n % 2]) for n in range(10, 26)]
CONFIG = SMALL.replace(
    algorithm="mt_grpo",
    algorithm_options={"beta": 0.0},
    tokenizer=ALPHABET,
    steps=4,
    prompts=4,
    group_size=4,
    learning_rate=3e-2,
    learning_rate_warmup=0,
    eval_every=0,
    sample_every=0,
    checkpoint_every=3,
)


A, B = (jnp.int32(token) for token in TOKENIZER.encode("ab"))


class Alternating:
    """Two players alternate; the policy begins if the answer is "a", the other if it is "b". Turn i is rewarded with 10^i."""

    max_turns, other_policy, refresh_every = 3, "past", 2

    def reset(self, problem):
        return 0, problem.answer == "b"

    def is_others_turn(self, state):
        return state[1]

    def step(self, state, completion):
        turn, is_others = state
        return Step((turn + 1, not is_others), "0", reward=10.0**turn, done=turn == 2)


class Scripted:
    """An engine whose parameters are a token id: each response is that token and EOS."""

    def generate(self, params, requests):
        tokens, logp = np.array([int(params), EOS], np.int32), np.full(2, -0.5, np.float32)
        fields = [(request.prompt_id, request.group, tokens, np.ones(2, bool), logp, logp, "stop") for request in requests]
        return [Response(*values) for values in fields]


def play_episodes(environment, *, other=None):
    """Play two episodes: the policy begins the first, and the other policy begins the second."""
    parts = {"policy": gru_policy(TOKENIZER.vocab_size), "environment": environment, "problems": (PROBLEMS, PROBLEMS[:2])}
    setup, _ = first_state(CONFIG, **parts)
    requests = setup.train.make_requests([0, 1], [0, 1], jax.random.key(0))
    problems = setup.train.prompts.problems[:2]
    options = {"max_failure_share": 0.5, "turn_rewards": 12, "other": other}
    return play(Scripted(), environment, A, requests, problems, TOKENIZER, **options)


def text_of(response):
    return "".join("." if token == EOS else TOKENIZER.decode([token]) for token in response.tokens.tolist())


def test_other_policys_tokens_are_masked():
    (policy_first, other_first), verdicts = play_episodes(Alternating(), other=Player(Scripted(), B))
    assert [text_of(policy_first), text_of(other_first)] == ["a.0b.0a.", "b.0a.0b."]
    np.testing.assert_array_equal(policy_first.mask, [1, 1, 0, 0, 0, 0, 1, 1])
    np.testing.assert_array_equal(other_first.mask, [0, 0, 0, 1, 1, 0, 0, 0])
    for response in (policy_first, other_first):
        np.testing.assert_array_equal(response.behaviour_logp, np.where(response.mask, np.float32(-0.5), 0))
    assert [policy_first.turns, other_first.turns] == [2, 1]
    np.testing.assert_array_equal(verdicts.rewards, [111, 111])


def test_rewards_on_others_turns_go_to_the_policy():
    """They are added to the policy's preceding turn, or to its first turn if none precedes."""
    _, verdicts = play_episodes(Alternating(), other=Player(Scripted(), B))
    expected = np.zeros((2, 12), np.float32)
    expected[0, [1, 7]], expected[1, 4] = [1 + 10, 100], 1 + 10 + 100
    np.testing.assert_array_equal(verdicts.turn_rewards, expected)
    np.testing.assert_array_equal(verdicts.step_end, expected > 0)


def test_policy_plays_both_sides_by_default():
    (policy_first, other_first), _ = play_episodes(Alternating())
    assert [text_of(policy_first), text_of(other_first)] == ["a.0a.0a.", "a.0a.0a."]
    np.testing.assert_array_equal(other_first.mask, [0, 0, 0, 1, 1, 0, 0, 0])


def test_episode_without_policy_turn_is_invalid():
    class Ending(Alternating):
        def step(self, state, completion):
            return Step((1, False), reward=1.0)

    (policy_first, other_first), verdicts = play_episodes(Ending(), other=Player(Scripted(), B))
    assert policy_first.mask.all()
    assert not other_first.mask.any()
    assert verdicts.valid.tolist() == [True, False]
    assert not verdicts.failed.any()
    assert verdicts.metrics["no_turn"][1] == 1.0


def test_is_others_turn_must_return_a_bool():
    class Vague(Alternating):
        def is_others_turn(self, state):
            return None

    with pytest.raises(InputError, match="is_others_turn: True or False is expected; got None"):
        play_episodes(Vague())


def train(run, **changes):
    config = CONFIG.replace(run=str(run), **changes)
    return rljax.train(config, environment=Alternating(), problems=(PROBLEMS, PROBLEMS[:2]))


def leaves_of(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def assert_trees_equal(one, other):
    for a, b in zip(leaves_of(one), leaves_of(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_past_copy_refreshes_and_resumes_exactly(tmp_path):
    parts = {"environment": Alternating(), "problems": (PROBLEMS, PROBLEMS[:2])}
    _, first = first_state(CONFIG, **parts)
    states = {}
    for steps in (1, 2, 3):
        train(tmp_path / f"{steps}", steps=steps)
        states[steps] = read_checkpoint(CONFIG.replace(steps=steps), tmp_path / f"{steps}", **parts).state
    assert_trees_equal(states[1].options[NAME], first.params)
    assert_trees_equal(states[2].options[NAME], states[2].params)
    assert_trees_equal(states[3].options[NAME], states[2].params)
    same = [np.array_equal(a, b) for a, b in zip(leaves_of(states[3].params), leaves_of(states[2].params), strict=True)]
    assert not all(same)
    rljax.train(CONFIG.replace(run=str(tmp_path / "3")), resume="auto", **parts)
    train(tmp_path / "whole")
    ends = [read_checkpoint(CONFIG, tmp_path / run, **parts).state for run in ("3", "whole")]
    assert_trees_equal(*ends)


def test_other_policy_loads_from_a_folder(tmp_path):
    train(tmp_path / "first", steps=1, models="last")

    class Against(Alternating):
        other_policy = str(tmp_path / "first" / "last")

    parts = {"environment": Against(), "problems": (PROBLEMS, PROBLEMS[:2])}
    setup, state = first_state(CONFIG, **parts)
    saved = read_checkpoint(
        CONFIG.replace(steps=1), tmp_path / "first", environment=Alternating(), problems=parts["problems"]
    )
    for worker in (setup.train, setup.heldout):
        assert_trees_equal(worker.other.params, saved.state.params)
    groups = setup.train.generate(state.params, [0, 1], 2, jax.random.key(0))
    assert (groups.rollout.mask <= groups.attention).all()
    assert groups.attention.sum() > groups.rollout.mask.sum() > 0
    rljax.train(CONFIG.replace(run=str(tmp_path / "second"), steps=1), **parts)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"staleness": 1}, "staleness=1: a rollout begins before the copy"),
        (
            {"engine_url": "http://localhost:1"},
            "engine_url='http://localhost:1': the server has the parameters of one policy",
        ),
    ],
)
def test_past_copy_rejects_incompatible_settings(changes, message):
    from rljax.options.other_policy import check_past

    with pytest.raises(InputError, match=message):
        check_past(CONFIG.replace(**changes))


@pytest.mark.parametrize("period", [0, True, "2"])
def test_refresh_every_must_be_positive(period):
    environment = Alternating()
    environment.refresh_every = period
    with pytest.raises(InputError, match="refresh_every: expected a positive whole number of RL steps"):
        first_state(CONFIG, environment=environment, problems=(PROBLEMS, PROBLEMS[:2]))


def test_other_policy_must_be_text_or_none():
    environment = Alternating()
    environment.other_policy = 3
    with pytest.raises(InputError, match="other_policy: 'past', a model folder or None is expected; got 3"):
        other_policy_in(environment)


def test_roles_take_opposite_turns():
    for role, expected in (("proposer", [False, True]), ("checker", [True, False])):
        options = json.dumps({"role": role, "other_policy": "past", "refresh_every": 7})
        environment = make_environment("self_correction", options)
        state = environment.reset(Problem("7+5=", "12"))
        after = environment.step(state, "#11").state
        assert [environment.is_others_turn(state), environment.is_others_turn(after)] == expected
        assert (other_policy_in(environment), environment.refresh_every) == ("past", 7)
    both = SelfCorrection()
    assert not both.is_others_turn(both.reset(PROBLEMS[0]))


@pytest.mark.parametrize(
    "options", [{"role": "judge", "other_policy": "past"}, {"role": "checker"}, {"other_policy": "past"}]
)
def test_role_needs_other_policy(options):
    with pytest.raises(InputError, match="set both, the role to 'proposer' or 'checker' and"):
        SelfCorrection(**options)


def test_nim_against_a_perfect_player():
    """From 7 stones the policy wins by leaving 4; any other move loses."""
    game = Nim()
    state = game.reset(Problem("", "7"))
    step = game.step(state, "I take 3")
    left = step.state.stones
    assert left in (1, 2, 3)
    assert game.step(step.state, str(left)).reward == 1.0
    lost = game.step(state, "1")
    assert lost.state.stones == 4
    assert lost.observation[0]["content"] == "The other player takes 2. 4 are left."
    for move in ("1", "2", "3"):
        assert game.step(lost.state, move).correct is False


@pytest.mark.parametrize("turn", ["", "0", "4", "no", "9" * 5000])
def test_illegal_nim_move_loses(turn):
    for other, reward in (("perfect", 0.0), ("past", 0.0)):
        game = Nim(other)
        step = game.step(game.reset(Problem("", "3")), turn)
        assert (step.done, step.reward, step.metrics) == (True, reward, {"illegal_moves": 1.0})
    game = Nim("past")
    step = game.step(game.reset(Problem("", "3", columns={"first": "other"})), turn)
    assert (step.done, step.reward, step.metrics) == (True, 1.0, {"illegal_moves": 0.0})


def test_nim_with_two_models_alternates():
    game, problem = Nim("past"), Problem("", "4", columns={"first": "other"})
    assert "4 are left" in game.first_messages(problem)[0]["content"]
    state, turns = game.reset(problem), []
    for move in ("1", "1", "2"):
        turns.append(game.is_others_turn(state))
        step = game.step(state, move)
        state = step.state
    assert turns == [True, False, True]
    assert (step.done, step.reward) == (True, 0.0), "the other player took the last stone"


def test_scripted_nim_player_may_begin():
    game, problem = Nim("random"), Problem("x", "9", columns={"first": "other"})
    state = game.reset(problem)
    assert 6 <= state.stones <= 8
    assert not game.is_others_turn(state)
    assert f"takes {9 - state.stones}. {state.stones} are left" in game.first_messages(problem)[0]["content"]
    assert game.reset(problem) == state


@pytest.mark.parametrize("other", ["perfect", "random"])
def test_scripted_nim_player_that_begins_leaves_the_policy_a_turn(other):
    assert Nim(other).reset(Problem("", "4", columns={"first": "other"})).stones >= 1
    with pytest.raises(InputError, match=r"may take all 3 stones.*above 3 in rows"):
        Nim(other).reset(Problem("", "3", columns={"first": "other"}))


@pytest.mark.parametrize(
    "problem", [Problem("", "22"), Problem("", "0"), Problem("", "9" * 5000), Problem("", "5", columns={"first": "me"})]
)
def test_nim_rejects_invalid_problems(problem):
    with pytest.raises(InputError, match="a problem's answer is a number of stones from 1 to 21"):
        Nim().reset(problem)
