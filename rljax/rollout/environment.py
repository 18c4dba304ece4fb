"""Environments of several turns: the policy acts, the environment answers, and the policy sees the answer in its own context.

A reward function is an environment of one turn. An observation is part of the response: later tokens see it, but it is not
trained on.
Token ids are never decoded and encoded again, so what is scored is exactly what was drawn.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, chdir, nullcontext
from functools import partial
from numbers import Real
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from rljax.data.problem import Problem
from rljax.data.tokenizer import Tokenizer
from rljax.errors import InputError
from rljax.models import Params
from rljax.parallel import agree
from rljax.records import documented
from rljax.rewards.calling import called_name, check_failures, read_answer
from rljax.rewards.failure import Failed
from rljax.rollout.dialogue import Rereading
from rljax.rollout.judging import Verdicts
from rljax.rollout.request import Dialogue, DialogueEngine, Engine, Request, Response, check_responses
from rljax.text import one_line


@documented
class Step(NamedTuple):
    """An environment's answer to one turn of the policy."""

    state: Any
    """State of the episode after the turn."""
    observation: str = ""
    """Text that the policy sees before its next turn; not read when the episode is done. An observation that leaves no
    room for another token ends the episode (`Response.finish` is "length")."""
    reward: float | None = None
    """Reward of this turn; None for no opinion. The reward of a response is the sum over its turns."""
    done: bool = True
    """Whether the episode has ended."""


@runtime_checkable
class Environment(Protocol):
    """Answers the turns of the policy. On several hosts every process plays all episodes, so it has to be deterministic.

    Many episodes run at once, and their turns alternate: keep everything that belongs to an episode in its state. An exception
    counts as a failure of that episode alone, like an exception of a reward function.
    """

    max_turns: int
    """Largest number of turns of an episode, at least 1; an episode that reaches it is cut off."""

    def reset(self, problem: Problem) -> Any:
        """Begin an episode; return its state. The policy sees the problem's prompt."""
        ...

    def step(self, state: Any, completion: str) -> Step:
        """Answer one turn of the policy.

        Args:
            state: what `reset` returned, or the state of the episode's last step.
            completion: text of the policy's turn, without special tokens such as EOS.
        """
        ...


@documented
class _Episode(NamedTuple):
    """An episode so far."""

    request: Request
    """Request of the first turn."""
    state: Any
    """The environment's state of the episode."""
    pieces: tuple[Response, ...] = ()
    """Turns of the policy, and the observations between them."""
    turns: int = 0
    """Number of turns of the policy."""
    reward: float | None = None
    """Sum of the turns' rewards; None while there is none."""
    failure: Failed | None = None
    """Failure of the environment, if there was one."""
    done: bool = False
    """Whether the episode has ended."""

    @property
    def length(self) -> int:
        """Tokens after the prompt."""
        return sum(len(piece.tokens) for piece in self.pieces)

    @property
    def room(self) -> int:
        """Tokens left in its budget."""
        return self.request.sampling.max_tokens - self.length


def check_environment(environment: Environment) -> None:
    """Refuse an object that is not an environment, or whose episodes may never end.

    Raises:
        InputError: `reset`, `step` or `max_turns` is missing, or `max_turns` is not a whole number of at least 1.
    """
    missing = [name for name in ("reset", "step") if not callable(getattr(environment, name, None))]
    if missing:
        raise InputError(
            f"environment.{missing[0]}: an environment must have the methods reset(problem) and step(state, completion); "
            f"got {called_name(environment)} without {' and '.join(missing)}."
        )
    turns = getattr(environment, "max_turns", None)
    if not isinstance(turns, int) or isinstance(turns, bool) or turns < 1:
        raise InputError(
            f"environment.max_turns: {called_name(environment)} must set the largest number of turns of an episode, a whole number "
            f"of at least 1; got {turns!r}."
        )


def check_step(environment: Environment, step: object) -> None:
    """Refuse an invalid answer of an environment.

    Raises:
        InputError: the answer is not a `Step`, its reward is not a number, or its observation is not a string.
    """
    name = called_name(environment)
    if not isinstance(step, Step):
        raise InputError(f"environment.step: {name} must return an rljax.rollout.Step; got {step!r:.80}.")
    if not (step.reward is None or isinstance(step.reward, Real)):
        raise InputError(
            f"environment.step: the reward of a turn in {name} must be a number, or None for no opinion; got {step.reward!r:.80}."
        )
    if not isinstance(step.observation, str):
        raise InputError(f"environment.step: the observation in {name} must be a string; got {step.observation!r:.80}.")


def play(
    engine: Engine,
    environment: Environment,
    params: Params,
    requests: Sequence[Request],
    problems: Sequence[Problem],
    tokenizer: Tokenizer,
    *,
    max_failure_share: float,
    judging: Callable[[], AbstractContextManager] = nullcontext,
) -> tuple[list[Response], Verdicts]:
    """Play an episode for each request.

    Args:
        engine: draws the policy's turns.
        environment: answers them.
        params: parameters of the policy.
        requests: the first turns; their token budget is that of the whole episode, observations included.
        problems: one for each request.
        tokenizer: decodes turns and encodes observations.
        max_failure_share: largest share of the episodes in which the environment may raise.
        judging: its context is entered while the environment is called.

    Returns:
        The responses, one for each episode, and their verdicts.

    Raises:
        InputError: the engine or the environment breaks its contract, or the environment raised too often.
    """
    check_environment(environment)
    with judging():
        episodes = [_begun(environment, *pair) for pair in zip(requests, problems, strict=True)]
    turns = {place: _next_turn(episode) for place, episode in enumerate(episodes)}
    dialogue = (engine.dialogue if isinstance(engine, DialogueEngine) else partial(Rereading, engine))(params, turns)
    while turns:
        responses = _ended(dialogue, turns)
        with judging():
            for place, response in responses.items():
                episodes[place] = _advanced(environment, episodes[place], response, tokenizer)
        added = {place: _next_turn(episodes[place]) for place in responses if not episodes[place].done}
        dialogue.add(added)
        turns = {place: request for place, request in turns.items() if place not in responses} | added
    agree("observations of the environment", repr([[piece.tokens.tolist() for piece in e.pieces] for e in episodes]))
    answer = read_answer(
        [episode.reward if episode.failure is None else episode.failure for episode in episodes],
        called_name(environment),
        len(episodes),
    )
    check_failures(answer, called_name(environment), max_failure_share)
    return [_response(episode) for episode in episodes], Verdicts(answer.values, answer.valid, answer.failed)


def _begun(environment: Environment, request: Request, problem: Problem) -> _Episode:
    """Begin an episode. If the environment cannot begin it, the episode has failed and ends after its first turn."""
    try:
        with chdir("."):
            return _Episode(request, environment.reset(problem))
    except (InputError, KeyboardInterrupt):  # the message of the first already tells the user what to change
        raise
    except BaseException as error:  # an environment is user code and may raise anything
        return _Episode(request, None, failure=Failed("raised", one_line(error)))


def _next_turn(episode: _Episode) -> Request:
    """Request of the next turn."""
    request, turn = episode.request, episode.turns
    context = request.prompt_tokens + tuple(int(token) for piece in episode.pieces for token in piece.tokens)
    seed = request.seed ^ (turn * 0x9E3779B97F4A7C15 % 2**64)
    return request._replace(prompt_tokens=context, sampling=request.sampling._replace(max_tokens=episode.room), seed=seed)


def _ended(dialogue: Dialogue, turns: Mapping[int, Request]) -> Mapping[int, Response]:
    """Responses to some turns."""
    responses = dialogue.draw()
    if not responses or not responses.keys() <= turns.keys():
        raise InputError(
            f"engine.dialogue: draw must return responses to some of the turns of episodes {sorted(turns)}; got some to "
            f"{sorted(responses)}."
        )
    check_responses([turns[place] for place in responses], list(responses.values()))
    return responses


def _advanced(environment: Environment, episode: _Episode, turn: Response, tokenizer: Tokenizer) -> _Episode:
    """The episode after a turn of the policy and the environment's answer."""
    episode = episode._replace(pieces=(*episode.pieces, turn), turns=episode.turns + 1)
    if episode.failure is not None:
        return episode._replace(done=True)
    try:
        with chdir("."):
            step = environment.step(episode.state, tokenizer.decode(turn.tokens[turn.mask].tolist()))
    except (InputError, KeyboardInterrupt):  # as above
        raise
    except BaseException as error:  # as above
        return episode._replace(failure=Failed("raised", one_line(error)), done=True)
    check_step(environment, step)
    rewards = [reward for reward in (episode.reward, step.reward) if reward is not None]
    episode = episode._replace(state=step.state, reward=sum(rewards) if rewards else None)
    if step.done or turn.truncated:
        return episode._replace(done=True)
    observation, last = tokenizer.encode(step.observation), episode.turns == environment.max_turns
    if last or len(observation) >= episode.room:
        ended = turn._replace(finish="turns" if last else "length")
        return episode._replace(pieces=(*episode.pieces[:-1], ended), done=True)
    return episode._replace(pieces=(*episode.pieces, _observed(turn, observation))) if observation else episode


def _observed(turn: Response, observation: Sequence[int]) -> Response:
    """Tokens of an observation: the policy sees them, but did not draw them."""
    nothing = np.zeros(len(observation), np.float32)
    return turn._replace(
        tokens=np.asarray(observation, np.int32),
        mask=np.zeros(len(observation), bool),
        behaviour_logp=nothing,
        policy_logp=nothing,
    )


def _response(episode: _Episode) -> Response:
    """A whole episode as one response."""
    names = ("tokens", "mask", "behaviour_logp", "policy_logp")
    joined = {name: np.concatenate([getattr(piece, name) for piece in episode.pieces]) for name in names}
    return episode.pieces[-1]._replace(turns=episode.turns, **joined)
