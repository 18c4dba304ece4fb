"""Judging of responses while the engine draws others.

The engine draws in a thread, and the reward is called where it always is: in the thread of the run. There it may use signals, and
Ctrl-C reaches it. The calls have the same responses in the same order whatever takes how long, so all numbers are those of judging
after the last response.
"""

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from queue import SimpleQueue
from typing import Any

import jax

from rljax.data.problem import Problem
from rljax.errors import InputError
from rljax.models import Params
from rljax.rollout.judging import Judge, Opinion, Verdicts
from rljax.rollout.request import Engine, Request, Response, StreamingEngine, check_responses


def calls_of(requests: Sequence[Request], groups: int) -> list[list[int]]:
    """Cut requests into those of `groups` groups each; the last part may have fewer.

    Args:
        requests: those of one group beside each other.
        groups: groups of a part.

    Returns:
        For each part the places of its requests.
    """
    order = list(dict.fromkeys(request.group for request in requests))
    part = {group: index // groups for index, group in enumerate(order)}
    places: list[list[int]] = [[] for _ in range(max(part.values()) + 1)]
    for place, request in enumerate(requests):
        places[part[request.group]].append(place)
    return places


def judged_meanwhile(
    engine: Engine,
    judge: Judge,
    params: Params,
    requests: Sequence[Request],
    problems: Sequence[Problem],
    length: int,
    *,
    groups: int,
    judging: Callable[[], AbstractContextManager],
) -> tuple[list[Response], Verdicts]:
    """Draw responses, and judge `groups` whole groups in each call of the reward as soon as they and all before them have ended.

    An engine that does not stream is asked for all responses first; the calls are the same.

    Args:
        engine: draws the responses.
        judge: judges them.
        params: parameters of the policy.
        requests: those of one group beside each other.
        problems: one for each request.
        length: T, slots of the arrays over tokens.
        groups: groups of a call.
        judging: its context is entered while the reward is called.

    Raises:
        InputError: the engine or the reward breaks its contract, or the reward failed on too many responses of all calls.
    """
    responses: dict[int, Response] = {}
    opinions: list[Opinion] = []
    before = 0
    with drawn(engine, params, requests) as pieces:
        for places in calls_of(requests, groups):
            while not responses.keys() >= set(places):
                responses |= _answers(next(pieces, None), responses, len(requests))
            ready = [responses[place] for place in places]
            check_responses([requests[place] for place in places], ready)
            with judging():
                opinions.append(
                    judge.called([problems[place] for place in places], ready, before=before, total=len(requests))
                )
            before += len(places)
        for piece in pieces:  # none is needed any more, but what an engine does wrong at its end is said too
            _answers(piece, responses, len(requests))
    return [responses[place] for place in range(len(requests))], judge.verdicts(opinions, length)


@contextmanager
def drawn(engine: Engine, params: Params, requests: Sequence[Request]) -> Generator[Iterator[Mapping[int, Response]]]:
    """Let an engine draw in a thread, and hand out what it has drawn; the thread has ended after the body.

    Args:
        engine: draws the responses; if it does not stream, it draws all of them first, in this thread.
        params: parameters of the policy.
        requests: the responses to draw.
    """
    if not isinstance(engine, StreamingEngine):
        responses = engine.generate(params, requests)
        check_responses(requests, responses)
        yield iter([dict(enumerate(responses))])
        return
    pieces: SimpleQueue[Mapping[int, Response] | BaseException | None] = SimpleQueue()
    left, settings = threading.Event(), _settings()

    def draw() -> None:
        try:
            _check_settings(settings)
            for piece in engine.stream(params, requests):
                pieces.put(piece)
                if left.is_set():
                    break
        except BaseException as error:  # of any kind: the thread of the run waits for the outcome, and raises it
            pieces.put(error)
        finally:
            pieces.put(None)

    thread = threading.Thread(target=draw, name="engine")
    thread.start()
    try:
        yield _received(pieces)
    finally:
        left.set()
        thread.join()


def _received(pieces: "SimpleQueue[Mapping[int, Response] | BaseException | None]") -> Iterator[Mapping[int, Response]]:
    """Pieces that were put into a queue, up to None; an error is raised."""
    while (piece := pieces.get()) is not None:
        if isinstance(piece, BaseException):
            raise piece
        yield piece


def _answers(piece: object, earlier: Mapping[int, Response], count: int) -> Mapping[int, Response]:
    """Responses of a piece, which must be new ones to some of `count` requests."""
    if piece is None:
        missing = next(place for place in range(count) if place not in earlier)
        raise InputError(
            f"engine.stream: each of {count} requests needs a response; it ended without one to request {missing}."
        )
    if not isinstance(piece, Mapping):
        raise InputError(f"engine.stream: a piece must be a dict of places and responses; got {piece!r:.80}.")
    for place in piece:
        if place in earlier or place not in range(count):
            raise InputError(
                f"engine.stream: a piece must map places of unanswered requests, 0 to {count - 1}, to responses; got {place!r:.80}."
            )
    return piece


def _settings() -> dict[str, Any]:
    """JAX's settings in this thread."""
    return {name: getattr(jax.config, name) for name in jax.config.values if hasattr(jax.config, name)}


def _check_settings(expected: Mapping[str, Any]) -> None:
    """Refuse settings of JAX that hold in the run's thread alone: what is drawn here would be computed in another way."""
    found = _settings()
    other = [name for name, value in expected.items() if found[name] != value]
    if other:
        raise InputError(
            f"--reward-groups draws in another thread, where JAX's setting {other[0]} is {found[other[0]]!r} and not "
            f"{expected[other[0]]!r}, because it was set with `with`; set it with jax.config.update."
        )
