"""Play episodes: the engine samples the policy's turns, the environment answers them, and each episode becomes one response.

Token ids are never decoded and encoded again, so exactly the sampled tokens are scored. On several hosts, each episode is played
on one of them, which sends the environment's replies to the others.
"""

import json
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, chdir, nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float32

from rljax.data.problem import Problem
from rljax.data.tokenizer import Tokenizer, completion_text
from rljax.errors import InputError
from rljax.models import Params
from rljax.parallel import gather_texts, run_together
from rljax.rewards.correctness import Failed
from rljax.rewards.reward_call import check_failures, locate_error, qualified_name, read_result
from rljax.rollout.begin_dialogue import begin_dialogue
from rljax.rollout.cached_dialogue import TurnQueue
from rljax.rollout.engine_protocols import Dialogue, Engine, Request, Response, check_responses, join_arrays, observe
from rljax.rollout.environment import (
    CallSettings,
    Environment,
    Message,
    Player,
    call_plain,
    check_environment,
    check_step,
    copy_problem,
    read_call_settings,
)
from rljax.rollout.environment_calls import CallBatch, Overdue, Raised, StepRunner
from rljax.rollout.judging import Verdicts
from rljax.text import one_line, replace_surrogates


class _Episode(NamedTuple):
    """An episode, and what has happened in it so far."""

    request: Request
    """Request of the first turn."""
    problem: Problem
    """The problem that the episode is about."""
    state: Any = None
    """The episode's state in the environment; None on hosts that do not play the episode."""
    pieces: tuple[Response, ...] = ()
    """Turns, and the observations between them, in order."""
    turns: int = 0
    """Number of turns so far, including those of another policy."""
    rewards: tuple[float | None, ...] = ()
    """Reward of each turn; None for no verdict."""
    correct: bool | None = None
    """Whether the episode is solved, according to the environment's last report; None if there is no report."""
    parts: Mapping[str, float] = MappingProxyType({})
    """Sum of each part of the reward over the turns, by name."""
    metrics: Mapping[str, float] = MappingProxyType({})
    """Sum of each metric over the turns, by name."""
    other_turns: tuple[int, ...] = ()
    """Indices of the pieces that are turns of another policy."""
    failure: Failed | None = None
    """The environment's failure in this episode, if there was one."""
    done: bool = False
    """Whether the episode has ended."""
    is_others_turn: bool = False
    """Whether another policy takes the next turn."""

    @property
    def reward(self) -> float | None:
        """Sum of the turns' rewards; None if no turn has one."""
        rewards = [reward for reward in self.rewards if reward is not None]
        return sum(rewards) if rewards else None

    @property
    def length(self) -> int:
        """Number of tokens after the prompt."""
        return sum(len(piece.tokens) for piece in self.pieces)

    @property
    def room(self) -> int:
        """Number of tokens left in the episode's budget."""
        return self.request.sampling.max_tokens - self.length


class _Reply(NamedTuple):
    """How the environment's answer to a turn, or its `reset`, changes an episode; hosts exchange replies as JSON."""

    reward: float | None = None
    """Reward of the turn."""
    correct: bool | None = None
    """Whether the episode is solved, if the environment can tell."""
    parts: Mapping[str, float] = MappingProxyType({})
    """Parts of the turn's reward, by name."""
    metrics: Mapping[str, float] = MappingProxyType({})
    """The turn's metrics, by name."""
    observation: Sequence[int] = ()
    """Token ids of the observation that the policy sees next."""
    finish: str | None = None
    """Why the episode was cut off: "turns" or "length"; None if it was not."""
    failure: Sequence[Any] | None = None
    """Kind and reason of the environment's failure; None if it did not fail."""
    done: bool = False
    """Whether the episode has ended."""
    is_others_turn: bool = False
    """Whether another policy takes the next turn."""


class EpisodeContext(NamedTuple):
    """The environment and its settings, which all episodes share."""

    environment: Environment
    """The environment that answers the policy's turns."""
    tokenizer: Tokenizer
    """The tokenizer that decodes turns and encodes observations."""
    settings: CallSettings
    """How the environment is called."""
    runner: StepRunner
    """The runner of the environment's calls."""


def play(
    engine: Engine,
    environment: Environment,
    params: Params,
    requests: Sequence[Request],
    problems: Sequence[Problem],
    tokenizer: Tokenizer,
    *,
    max_failure_share: float,
    seconds: float | None = None,
    turn_rewards: int | None = None,
    judging: Callable[[], AbstractContextManager] = nullcontext,
    other: Player | None = None,
) -> tuple[list[Response], Verdicts]:
    """Play an episode for each request.

    Args:
        engine: the engine that samples the policy's turns.
        environment: the environment that answers the turns.
        params: parameters of the policy.
        requests: the first turn of each episode; its token budget is the budget of the complete episode, including observations.
        problems: the problem of each request.
        tokenizer: the tokenizer that decodes turns and encodes observations.
        max_failure_share: largest fraction of the episodes in which the environment may fail.
        seconds: time limit of a call of the environment; None for the environment's own limit.
        turn_rewards: T, the number of token slots. If this is not None, the verdicts contain the reward of each turn at the turn's
            last token, as `step_rewards` and `turn_rewards`, `[N, T]`.
        judging: function that returns a context, which is entered while waiting for the environment.
        other: the player that takes the turns for which `environment.is_others_turn` returns True; by default the policy itself.
            The tokens of these turns are read but not trained on. Their rewards are added to the policy's turn before them, or
            else to its next turn.

    Returns:
        The responses, one per episode, and their verdicts.

    Raises:
        InputError: the engine or the environment breaks its contract, or the environment failed too often.
    """
    check_environment(environment)
    settings = read_call_settings(environment)
    settings = settings if seconds is None else settings._replace(seconds=seconds)
    with StepRunner(seconds=settings.seconds, max_concurrent=settings.at_once) as runner:
        context = EpisodeContext(environment, tokenizer, settings, runner)
        with judging():
            episodes = _begin_episodes(context, requests, problems)
        _play_turns(context, engine, params, episodes, judging, other or Player(engine, params))
    episodes = [_with_own_turns_only(episode) for episode in episodes]
    result = read_result(
        [episode.reward if episode.failure is None else episode.failure for episode in episodes],
        qualified_name(environment),
        len(episodes),
    )
    check_failures(result, qualified_name(environment), max_failure_share, what="environment")
    verdicts = Verdicts(
        result.values.astype(np.float32),
        result.valid,
        result.failed,
        _collect_sums([episode.parts for episode in episodes]),
        correct=_collect_correct(episodes),
        metrics=_collect_sums([episode.metrics for episode in episodes]),
    )
    if turn_rewards is not None:
        on_tokens = [_assign_to_tokens(episode, turn_rewards) for episode in episodes]
        rewards, ends = (np.stack(arrays) for arrays in zip(*on_tokens, strict=True))
        verdicts = verdicts._replace(step_rewards=rewards, step_end=ends, turn_rewards=rewards)
    return [_join_pieces(episode) for episode in episodes], verdicts


def _play_turns(
    context: EpisodeContext,
    engine: Engine,
    params: Params,
    episodes: list[_Episode],
    judging: Callable[[], AbstractContextManager],
    other: Player,
) -> None:
    """Play the turns of episodes until all episodes are done; the list `episodes` is updated.

    The order does not depend on timing. Turns that ended together are passed to the environment together, and this function waits
    for all of these steps: immediately or, if the environment sets `waits`, after the engine has sampled that many more times.
    """
    first = {index: _next_turn(episode) for index, episode in enumerate(episodes)}
    turns, theirs = _split_by_player(episodes, first)
    samplers = [_TurnSampler.begin(Player(engine, params), turns, first)]
    _add_for_other(samplers, other, theirs, first)
    running: deque[tuple[list[int], list[int], CallBatch]] = deque()
    while running or any(sampler.turns for sampler in samplers):
        active = [sampler for sampler in samplers if sampler.turns]
        if active:
            responses = {}
            for sampler in active:
                found = _sample_turns(sampler.dialogue, sampler.turns)
                responses |= found
                for index, response in found.items():
                    del sampler.turns[index]
                    episodes[index] = _with_turn(episodes[index], response, is_own=sampler is samplers[0])
            acting = [index for index in responses if _is_played_here(index) and episodes[index].failure is None]
            with chdir("."):  # restores the working directory if the environment changes it
                step, played = context.environment.step, [episodes[index] for index in acting]
                batch = context.runner.start(
                    [partial(step, episode.state, _turn_text(context, episode)) for episode in played]
                )
            running.append((list(responses), acting, batch))
        while running and (not any(sampler.turns for sampler in samplers) or len(running) > context.settings.waits):
            indices, acting, batch = running.popleft()
            with judging(), chdir("."):
                replies = _share_replies(partial(_reply_to_turns, context, episodes, acting, batch))
            for index in indices:
                episodes[index] = _advance(episodes[index], *replies.get(index, (None, _Reply(done=True))))
            added = {index: _next_turn(episodes[index]) for index in indices if not episodes[index].done}
            for sampler in samplers:
                sampler.end([index for index in indices if episodes[index].done])
            turns, theirs = _split_by_player(episodes, added)
            samplers[0].add(turns)
            _add_for_other(samplers, other, theirs, first)


class _TurnSampler(NamedTuple):
    """Samples the turns that one policy takes in all episodes."""

    dialogue: Dialogue
    """The dialogue that samples the turns."""
    turns: dict[int, Request]
    """The turns that have not ended, by episode index; updated as turns begin and end."""

    @classmethod
    def begin(cls, player: Player, turns: dict[int, Request], first: Mapping[int, Request]) -> "_TurnSampler":
        """Begin turns; `first`, the first turns of all episodes, determines the lengths of the rows."""
        later = [request for index, request in first.items() if index not in turns]
        return cls(begin_dialogue(player.engine, player.params, turns, later), dict(turns))

    def add(self, turns: Mapping[int, Request]) -> None:
        """Add turns."""
        if turns:
            self.dialogue.add(turns)
            self.turns.update(turns)

    def end(self, indices: Collection[int]) -> None:
        """Tell the built-in engine which episodes have ended."""
        if isinstance(self.dialogue, TurnQueue):
            self.dialogue.end(indices)


def _add_for_other(
    samplers: list[_TurnSampler], other: Player, turns: dict[int, Request], first: Mapping[int, Request]
) -> None:
    """Add turns of the other policy; its first turns create its sampler."""
    if turns and len(samplers) == 1:
        samplers.append(_TurnSampler.begin(other, turns, first))
    elif turns:
        samplers[1].add(turns)


def _split_by_player(
    episodes: Sequence[_Episode], turns: Mapping[int, Request]
) -> tuple[dict[int, Request], dict[int, Request]]:
    """Divide turns into those of the trained policy and those of the other policy."""
    own, theirs = {}, {}
    for index, request in turns.items():
        (theirs if episodes[index].is_others_turn else own)[index] = request
    return own, theirs


def _with_own_turns_only(episode: _Episode) -> _Episode:
    """Change the other policy's turns into observations, and add their rewards to turns of the trained policy.

    An episode in which the trained policy has no turn has no verdict; the metric `episode_no_turn` counts such episodes.
    """
    if not episode.other_turns:
        return episode
    turns = [index for index, piece in enumerate(episode.pieces) if piece.mask.any()]
    if not {*turns} - {*episode.other_turns}:
        return episode._replace(
            pieces=tuple(observe(piece, piece.tokens.tolist()) for piece in episode.pieces),
            rewards=(),
            metrics=_add_numbers(episode.metrics, {"no_turn": 1.0}),
        )
    rewards: list[list[float]] = []
    rewards_before_first: list[float] = []
    for index, reward in zip(turns, episode.rewards, strict=False):  # a failed episode lacks the last reward
        earned = [] if reward is None else [reward]
        if index not in episode.other_turns:
            rewards.append([*rewards_before_first, *earned])
            rewards_before_first = []
        else:
            (rewards[-1] if rewards else rewards_before_first).extend(earned)
    return episode._replace(
        pieces=tuple(
            observe(piece, piece.tokens.tolist()) if index in episode.other_turns else piece
            for index, piece in enumerate(episode.pieces)
        ),
        rewards=tuple(sum(each) if each else None for each in rewards),
        metrics=_add_numbers(episode.metrics, {"no_turn": 0.0}),
    )


def _collect_sums(episodes: Sequence[Mapping[str, float]]) -> dict[str, Float32[np.ndarray, "N"]] | None:
    """Collect the episodes' sums into one array per name, with NaN for episodes without that name; None if there are no names."""
    names = dict.fromkeys(name for numbers in episodes for name in numbers)
    columns = {name: [numbers.get(name, np.nan) for numbers in episodes] for name in names}
    return {name: np.array(values, np.float32) for name, values in columns.items()} or None


def _collect_correct(episodes: Sequence[_Episode]) -> Float32[np.ndarray, "N"] | None:
    """Return `Verdicts.correct`: which episodes the environment reported as solved; None if it reported nothing.

    An episode that was cut off before the environment reported anything is not correct.
    """
    if all(episode.correct is None for episode in episodes):
        return None
    stated = [
        False if episode.correct is None and episode.pieces[-1].truncated else episode.correct for episode in episodes
    ]
    return np.array([np.nan if correct is None else float(correct) for correct in stated], np.float32)


def _assign_to_tokens(episode: _Episode, length: int) -> tuple[Float32[np.ndarray, "T"], Bool[np.ndarray, "T"]]:
    """Return an array with each turn's reward at its last token (0 without a verdict), and the mask of these tokens."""
    rewards, ends = np.zeros(length, np.float32), np.zeros(length, bool)
    after = np.cumsum([len(piece.tokens) for piece in episode.pieces])
    last = [end - 1 for end, piece in zip(after, episode.pieces, strict=True) if piece.mask.any()]
    if episode.failure is None:
        ends[last] = True
        rewards[last] = [0.0 if reward is None else reward for reward in episode.rewards]
    return rewards, ends


def _is_played_here(index: int) -> bool:
    """Return True if this host plays the episode with this index."""
    return index % jax.process_count() == jax.process_index()


def _share_replies(reply: Callable[[], Mapping[int, tuple[Any, _Reply]]]) -> dict[int, tuple[Any, _Reply]]:
    """Return the replies to the episodes of all hosts; the state is None for an episode of another host.

    Raises:
        InputError: the environment or its answer is invalid, here or on another host.
    """
    own = run_together(reply)
    shared = {}
    for text in gather_texts(json.dumps({index: answer._asdict() for index, (_, answer) in own.items()}, default=dict)):
        shared |= {int(index): (None, _Reply(**fields)) for index, fields in json.loads(text).items()}
    return shared | {index: (state, shared[index][1]) for index, (state, _) in own.items()}


def _begin_episodes(context: EpisodeContext, requests: Sequence[Request], problems: Sequence[Problem]) -> list[_Episode]:
    """Begin episodes. If the environment cannot begin an episode, the episode counts as failed and ends after its first turn."""
    played = [index for index in range(len(problems)) if _is_played_here(index)]
    resets = [partial(context.environment.reset, copy_problem(problems[index])) for index in played]

    def begin() -> dict[int, tuple[Any, _Reply]]:
        with chdir("."):
            states = context.runner.start(resets).wait()
        return {index: _reply_to_reset(context, state) for index, state in zip(played, states, strict=True)}

    replies = _share_replies(begin)
    return [
        _Episode(
            request,
            problem,
            replies[index][0],
            metrics={"overflow": 0.0},
            failure=_read_failure(replies[index][1]),
            is_others_turn=replies[index][1].is_others_turn,
        )
        for index, (request, problem) in enumerate(zip(requests, problems, strict=True))
    ]


def _reply_to_reset(context: EpisodeContext, outcome: object) -> tuple[Any, _Reply]:
    failure = _find_failure(outcome)
    if failure is not None:
        return None, _Reply(failure=(failure.kind, failure.reason))
    return outcome, _Reply(is_others_turn=_is_others_turn(context, outcome))


def _is_others_turn(context: EpisodeContext, state: object) -> bool:
    """Return True if another policy takes the turn in this state.

    Raises:
        InputError: `is_others_turn` raises an exception, or returns neither True nor False.
    """
    function = getattr(context.environment, "is_others_turn", None)
    answer = function is not None and call_plain("is_others_turn", function, state)
    if not isinstance(answer, bool):
        raise InputError(f"environment.is_others_turn: True or False is expected; got {answer!r:.80}.")
    return answer


def _read_failure(reply: _Reply) -> Failed | None:
    return None if reply.failure is None else Failed(*reply.failure)


def _find_failure(outcome: object) -> Failed | None:
    """Describe what went wrong in a call of the environment; None if it returned.

    Raises:
        InputError: the environment raised this error, which tells the user what to change.
    """
    if isinstance(outcome, Overdue):
        return Failed("timed_out", f"it took longer than {outcome.seconds:g} s")
    if not isinstance(outcome, Raised):
        return None
    if isinstance(outcome.error, InputError | KeyboardInterrupt):
        raise outcome.error
    return Failed("raised", f"{one_line(outcome.error)}{locate_error(outcome.error)}")


def _next_turn(episode: _Episode) -> Request:
    """Build the request of the next turn."""
    request, turn = episode.request, episode.turns
    context = request.prompt_tokens + tuple(int(token) for piece in episode.pieces for token in piece.tokens)
    seed = request.seed ^ (turn * 0x9E3779B97F4A7C15 % 2**64)
    return request._replace(prompt_tokens=context, sampling=request.sampling._replace(max_tokens=episode.room), seed=seed)


def _sample_turns(dialogue: Dialogue, turns: Mapping[int, Request]) -> Mapping[int, Response]:
    """Sample until some turns have ended, and return their responses."""
    responses = dialogue.sample_turns()
    if not responses or not responses.keys() <= turns.keys():
        raise InputError(
            f"engine.dialogue: sample_turns must return responses to some of the turns of episodes {sorted(turns)}; got responses "
            f"to {sorted(responses)}."
        )
    check_responses([turns[index] for index in responses], list(responses.values()))
    return responses


def _with_turn(episode: _Episode, turn: Response, *, is_own: bool) -> _Episode:
    """Append a turn of the trained policy, or of the other policy, to an episode."""
    other_turns = episode.other_turns if is_own else (*episode.other_turns, len(episode.pieces))
    return episode._replace(pieces=(*episode.pieces, turn), turns=episode.turns + 1, other_turns=other_turns)


def _reply_to_turns(
    context: EpisodeContext, episodes: Sequence[_Episode], acting: Sequence[int], batch: CallBatch
) -> dict[int, tuple[Any, _Reply]]:
    """Wait for the steps of a batch; return the new state and the reply for each episode."""
    outcomes = zip(acting, batch.wait(), strict=True)
    return {index: _reply_to_turn(context, episodes[index], outcome) for index, outcome in outcomes}


def _reply_to_turn(context: EpisodeContext, episode: _Episode, outcome: object) -> tuple[Any, _Reply]:
    """Return the new state of an episode, and the environment's reply to its last turn."""
    failure = _find_failure(outcome)
    if failure is not None:
        return None, _Reply(failure=(failure.kind, failure.reason), done=True)
    check_step(context.environment, outcome)
    step: Any = outcome
    reply = _Reply(
        step.reward if step.reward is None or isinstance(step.reward, int) else float(step.reward),
        None if step.correct is None else bool(step.correct),
        _add_numbers({}, step.parts),
        _add_numbers({}, step.metrics),
        done=True,
    )
    if step.done or episode.pieces[-1].truncated:
        return step.state, reply
    if episode.turns == context.environment.max_turns:
        return step.state, reply._replace(finish="turns")
    observation = _encode_observation(context, episode, step.observation)
    if len(observation) >= episode.room:
        return step.state, reply._replace(finish="length", metrics=_add_numbers(reply.metrics, {"overflow": 1.0}))
    is_others_turn = _is_others_turn(context, step.state)
    return step.state, reply._replace(observation=[*map(int, observation)], done=False, is_others_turn=is_others_turn)


def _advance(episode: _Episode, state: object, reply: _Reply) -> _Episode:
    """Continue an episode with the environment's reply to its last turn."""
    failure = episode.failure or _read_failure(reply)
    if failure is not None:
        return episode._replace(failure=failure, done=True)
    *before, turn = episode.pieces
    turn = turn if reply.finish is None else turn._replace(finish=reply.finish)
    observed = [observe(turn, reply.observation)] if reply.observation else []
    return episode._replace(
        state=state,
        pieces=(*before, turn, *observed),
        rewards=(*episode.rewards, reply.reward),
        correct=episode.correct if reply.correct is None else reply.correct,
        parts=_add_numbers(episode.parts, reply.parts),
        metrics=_add_numbers(episode.metrics, reply.metrics),
        done=reply.done,
        is_others_turn=reply.is_others_turn,
    )


def _add_numbers(before: Mapping[str, float], more: Mapping[str, float] | None) -> Mapping[str, float]:
    return before if more is None else {**before, **{name: before.get(name, 0.0) + float(more[name]) for name in more}}


def _turn_text(context: EpisodeContext, episode: _Episode) -> str:
    """Return the text of the last turn; the first turn's text includes the beginning that the prompt contains, if it has one."""
    sampled = episode.pieces[-1].tokens[episode.pieces[-1].mask].tolist()
    if context.settings.tools:
        from rljax.data.tool_calls import read_turn  # noqa: PLC0415  most runs have no tools

        return read_turn(context.tokenizer, sampled, is_first=episode.turns == 1)
    return completion_text(context.tokenizer, sampled) if episode.turns == 1 else context.tokenizer.decode(sampled)


def _encode_observation(context: EpisodeContext, episode: _Episode, observation: str | Sequence[Message]) -> Sequence[int]:
    """Return the token ids of an observation.

    Raises:
        InputError: the tokenizer cannot encode the observation.
    """
    try:
        if isinstance(observation, str):
            return context.tokenizer.encode(replace_surrogates(observation))
        from rljax.data.turns import encode_messages  # noqa: PLC0415  most runs have no messages between turns

        return encode_messages(context.tokenizer, episode.problem, _turn_text(context, episode), observation)
    except InputError as error:
        raise InputError(f"the observation of the environment {qualified_name(context.environment)}: {error}") from error


def _join_pieces(episode: _Episode) -> Response:
    """Join the pieces of an episode into one response."""
    return episode.pieces[-1]._replace(turns=episode.turns - len(episode.other_turns), **join_arrays(episode.pieces))
