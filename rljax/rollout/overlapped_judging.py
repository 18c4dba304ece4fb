"""Judge responses while the engine is still sampling others.

The engine samples in a background thread. The reward function is called in the run's own thread, as always, so it may use signals,
and Ctrl-C reaches it. The reward function gets the same responses in the same order, whatever the timing, so the results are the
same as if all responses were judged at the end.
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
from rljax.rollout.engine_protocols import Engine, Request, Response, StreamingEngine, check_responses, sample_responses
from rljax.rollout.judging import Judge, RewardOutput, Verdicts


def split_into_calls(requests: Sequence[Request], groups: int) -> list[list[int]]:
    """Split requests into parts of `groups` groups each, one part per call of the reward; the last part may have fewer groups.

    Args:
        requests: the requests; requests of one group must be adjacent.
        groups: number of groups per part.

    Returns:
        For each part, the indices of its requests.
    """
    order = list(dict.fromkeys(request.group for request in requests))
    part = {group: index // groups for index, group in enumerate(order)}
    indices: list[list[int]] = [[] for _ in range(max(part.values()) + 1)]
    for index, request in enumerate(requests):
        indices[part[request.group]].append(index)
    return indices


def judge_while_sampling(
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
    """Sample responses and judge `groups` groups at a time, as soon as these groups and all earlier groups have ended.

    An engine that does not stream samples all responses first; the reward function is called in the same way.

    Args:
        engine: the engine that samples the responses.
        judge: the judge of the responses.
        params: parameters of the policy.
        requests: the requests; requests of one group must be adjacent.
        problems: the problem of each request.
        length: T, length of the arrays over tokens.
        groups: number of groups per call of the reward function.
        judging: function that returns a context, which is entered while the reward function is called.

    Raises:
        InputError: the engine or the reward breaks its contract, or the reward failed on too many responses over all calls.
    """
    responses: dict[int, Response] = {}
    outputs: list[RewardOutput] = []
    before = 0
    with sampling_in_background(engine, params, requests) as pieces:
        for indices in split_into_calls(requests, groups):
            while not responses.keys() >= set(indices):
                responses |= _check_piece(next(pieces, None), responses, len(requests))
            ready = [responses[index] for index in indices]
            check_responses([requests[index] for index in indices], ready)
            with judging():
                outputs.append(
                    judge.call_reward([problems[index] for index in indices], ready, before=before, total=len(requests))
                )
            before += len(indices)
        for piece in pieces:  # no more responses are needed, but errors at the end of the stream must still be reported
            _check_piece(piece, responses, len(requests))
    return [responses[index] for index in range(len(requests))], judge.verdicts(outputs, length)


@contextmanager
def sampling_in_background(
    engine: Engine, params: Params, requests: Sequence[Request]
) -> Generator[Iterator[Mapping[int, Response]]]:
    """Let an engine sample in a background thread, and yield its responses as they end; leaving the context ends the thread.

    Args:
        engine: the engine that samples the responses; if it cannot stream, it samples all of them first, in this thread.
        params: parameters of the policy.
        requests: a request for each response.
    """
    if not isinstance(engine, StreamingEngine):
        yield iter([dict(enumerate(sample_responses(engine, params, requests)))])
        return
    pieces: SimpleQueue[Mapping[int, Response] | BaseException | None] = SimpleQueue()
    stop_requested, settings = threading.Event(), thread_settings()

    def sample() -> None:
        try:
            check_settings(settings, "--reward-groups samples")
            for piece in engine.stream(params, requests):
                pieces.put(piece)
                if stop_requested.is_set():
                    break
        except BaseException as error:  # any kind: the run's thread waits for the outcome and raises the error
            pieces.put(error)
        finally:
            pieces.put(None)

    thread = threading.Thread(target=sample, name="engine")
    thread.start()
    try:
        yield _receive_pieces(pieces)
    finally:
        stop_requested.set()
        thread.join()


def _receive_pieces(
    pieces: "SimpleQueue[Mapping[int, Response] | BaseException | None]",
) -> Iterator[Mapping[int, Response]]:
    """Yield the pieces from a queue until None; raise an error that comes out of the queue."""
    while (piece := pieces.get()) is not None:
        if isinstance(piece, BaseException):
            raise piece
        yield piece


def _check_piece(piece: object, earlier: Mapping[int, Response], count: int) -> Mapping[int, Response]:
    """Check that a piece of a stream answers only requests that have no answer yet, out of `count` requests; return the piece."""
    if piece is None:
        missing = next(index for index in range(count) if index not in earlier)
        raise InputError(
            f"engine.stream: each of {count} requests needs a response; the stream ended without one to request {missing}."
        )
    if not isinstance(piece, Mapping):
        raise InputError(
            f"engine.stream: each yielded value must be a dict of responses by request index; got {piece!r:.80}."
        )
    for index in piece:
        if index in earlier or index not in range(count):
            raise InputError(
                f"engine.stream: each key must be the index of an unanswered request, from 0 to {count - 1}; got {index!r:.80}."
            )
    return piece


def thread_settings() -> dict[str, Any]:
    """Return JAX's settings in this thread."""
    return {name: getattr(jax.config, name) for name in jax.config.values if hasattr(jax.config, name)}


def check_settings(expected: Mapping[str, Any], what: str) -> None:
    """Refuse JAX settings that were set only in the run's thread, because this thread would not use them.

    Args:
        expected: the settings in the run's thread.
        what: the flag and what it does in this thread, such as "--reward-groups samples".

    Raises:
        InputError: a setting differs.
    """
    found = thread_settings()
    other = [name for name, value in expected.items() if found[name] != value]
    if other:
        raise InputError(
            f"{what} in another thread, where JAX's setting {other[0]} is {found[other[0]]!r} and not "
            f"{expected[other[0]]!r}, because it was set with `with`; set it with jax.config.update instead."
        )
