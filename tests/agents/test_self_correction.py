"""One policy in two roles: proposing an answer and correcting it."""

import numpy as np
import pytest

from rljax.agents import SelfCorrection
from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.rollout.environment import check_step, make_environment

PROBLEM = Problem("7+5=", "12")


def play(environment, *turns):
    """Play an episode and return its steps."""
    state, steps = environment.reset(PROBLEM), []
    for turn in turns:
        steps.append(environment.step(state, turn))
        check_step(environment, steps[-1])
        state = steps[-1].state
    return steps


@pytest.mark.parametrize(
    ("proposal", "final", "rewards", "corrected", "spoiled"),
    [
        ("#12", "#12", (1.0, 1.0), 0.0, 0.0),
        ("#11", "#12", (0.0, 1.5), 1.0, 0.0),
        ("#12", "#11", (1.0, -0.5), 0.0, 1.0),
        ("#11", "#11", (0.0, 0.0), 0.0, 0.0),
        ("eleven", "#12", (0.0, 1.5), 1.0, 0.0),
    ],
)
def test_bonus_is_given_for_progress_between_turns(proposal, final, rewards, corrected, spoiled):
    first, second = play(make_environment("self_correction", '{"bonus": 0.5}'), proposal, final)
    assert (first.reward, second.reward) == rewards
    assert (first.done, second.done) == (False, True)
    assert first.observation[0]["content"].startswith("There may be an error")
    assert second.metrics == {"corrected": corrected, "spoiled": spoiled}
    assert second.correct == (final == "#12"), "only the final answer decides whether an episode is right"


def test_without_bonus_each_answer_has_its_own_reward():
    first, second = play(SelfCorrection(reward="math", request="Sure?"), "It is \\boxed{12}.", "\\boxed{13}")
    assert (first.reward, second.reward) == (1.0, 0.0)
    assert first.observation == [{"role": "user", "content": "Sure?"}]


def test_missing_verdict_fails_the_episode():
    def silent(completions, **columns):
        return [None] * len(completions)

    with pytest.raises(RuntimeError, match="the reward gives no verdict on the answer '#12'"):
        play(SelfCorrection(reward=silent), "#12")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('{"bonus": -1}', "bonus must be at least 0; got -1"),
        ('{"bonus": NaN}', "bonus must be at least 0; got nan"),
        ('{"request": " "}', "request is empty"),
        ('{"reward": "absent"}', "there is no reward 'absent'"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        make_environment("self_correction", options)


def test_spoiling_changes_only_the_second_reward():
    """The penalty for spoiling a right proposal is in the second turn's reward only."""
    repeated, spoiled = ([step.reward for step in play(SelfCorrection(bonus=1.0), "#12", final)] for final in ("#12", "#3"))
    assert repeated == [1.0, 1.0]
    assert spoiled == [1.0, -1.0]
    assert np.subtract(repeated, spoiled).tolist() == [0.0, 2.0]
