"""An engine that samples on a server in another process, with each step's weights.

The weights are passed as a model folder on a disk that both processes can read. They are published only if they have changed, so
a step that samples several times publishes them once.
"""

import math
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from rljax.engines.dialects import Dialect, Reply, Status, dialect_of
from rljax.engines.http import Http
from rljax.errors import InputError
from rljax.models import Params
from rljax.parallel import copy_from_first, is_first, run_on_first
from rljax.records import required
from rljax.rollout.engine_protocols import Request, Response, Sampling
from rljax.text import counted

MOST_CONNECTIONS = 16
"""Maximum number of requests that are sent at once."""
MOST_RESPONSES = 16
"""Maximum number of responses per request."""
MOST_REPUBLISHES = 5
"""How often one sampling call may republish the weights to a server that has lost them; after that, the run ends."""

SaveModel = Callable[[Path, Params], None]
"""Writes the policy with these parameters as a model folder; all processes must call it."""


class PublishedWeights(NamedTuple):
    """The weights that were last published to the server."""

    leaves: tuple["weakref.ref[jax.Array]", ...]
    """Weak references to the arrays of the weights, so that this record does not keep the arrays in memory."""
    folder: Path
    """Folder to which the weights were written."""
    version: int
    """Version of the weights on the server."""
    losses: int
    """The value of `Http.losses` when the weights were published."""


class ServerEngine:
    """Samples by sending requests to a server; see `rljax.rollout.StreamingEngine`.

    Args:
        url: address of the server.
        server: kind of the server: rljax, vllm or sglang.
        save: a function that writes the policy's weights as a model folder.
        folder: the folder to which weights are written; None: a temporary folder on this machine.
        needed: maximum number of tokens of a prompt and its response together.
        sampling: how training responses are sampled.
        vocabulary: number of token ids of the model.
        key: API key of the server; None if it needs no key.
        patience: how long, in seconds, requests are retried while the server does not respond.
        in_flight: if True, the caller must publish weights with `publish_in_flight`, and responses in progress continue with them.
            Responses then contain, for each token, the RL step of its weights.

    Raises:
        InputError: the server does not answer, or does not support the sampling that the run needs.
    """

    def __init__(
        self,
        url: str,
        server: str,
        save: SaveModel,
        *,
        folder: Path | None,
        needed: int,
        sampling: Sampling,
        vocabulary: int,
        key: str | None = None,
        patience: float,
        in_flight: bool = False,
    ) -> None:
        self.in_flight = in_flight
        self._steps: dict[int, int] = {}
        self._publishing = threading.Lock()
        self.dialect: Dialect = dialect_of(server)
        # OpenAI's clients take an address with /v1, but the servers have paths outside it, such as /weights.
        self.http = Http(url.rstrip("/").removesuffix("/v1"), key=key, patience=patience, connections=MOST_CONNECTIONS)
        self._save, self._vocabulary, self._folder = save, vocabulary, folder
        self._published: PublishedWeights | None = None
        found: list[Status] = []
        run_on_first(lambda: found.append(self.dialect.status(self.http)))
        self._status = found[0] if found else Status("", None, None, None)
        run_on_first(lambda: self._check(needed, sampling))

    def _check(self, needed: int, sampling: Sampling) -> None:
        """Refuse a server that does not support the sampling that the run needs."""
        status, url = self._status, self.http.url
        reason = self.dialect.why_unsupported(sampling)
        if reason is not None:
            raise InputError(f"the server {url} cannot sample as this run requires: {reason}.")
        if status.context_length is not None and status.context_length < needed:
            raise InputError(
                f"the server {url} has room for {status.context_length} tokens, but a prompt with its response may have {needed}; "
                f"start it with a context of at least {needed}."
            )
        if status.max_tokens is not None and status.max_tokens < sampling.max_tokens:
            raise InputError(
                f"the server {url} allows responses of {status.max_tokens} tokens, but max_response_tokens={sampling.max_tokens}; "
                "start it with a higher limit, or set a lower one here."
            )

    def report_to(self, tell: Callable[[str], None]) -> None:
        """Call `tell` with one sentence when the server stops answering, and with another when it answers again."""
        self.http.tell = tell

    def generate(self, params: Params, requests: Sequence[Request]) -> list[Response]:
        """Sample a response to each request; the weights are published first if they are new.

        Raises:
            InputError: the server does not answer, refuses a request, or returns something that cannot be a response.
        """
        self._publish(params)
        responses: list[Response] = []
        run_on_first(lambda: responses.extend(response for _, response in sorted(self._sample(requests))))
        return responses if jax.process_count() == 1 else _broadcast_responses(requests, responses)

    def stream(self, params: Params, requests: Sequence[Request]) -> Iterator[dict[int, Response]]:
        """Yield the responses that `generate` would return, in the order of the requests, as they arrive."""
        if jax.process_count() > 1:
            yield dict(enumerate(self.generate(params, requests)))
            return
        self._publish(params)
        for index, response in self._sample(requests):
            yield {index: response}

    def _sample(self, requests: Sequence[Request]) -> Iterator[tuple[int, Response]]:
        """Yield each response with the index of its request; responses from other weights are dropped and sampled again."""
        waiting = list(range(len(requests)))
        for _ in range(MOST_REPUBLISHES):
            again: list[int] = []
            for indices, replies in self._send(requests, waiting):
                if self._is_current(replies):
                    yield from zip(
                        indices, map(self._to_response, (requests[index] for index in indices), replies), strict=True
                    )
                else:
                    again += indices
            if not again:
                return
            self._republish()
            waiting = again
        raise InputError(f"the server {self.http.url} lost its weights {MOST_REPUBLISHES} times in one step.")

    def _send(self, requests: Sequence[Request], waiting: Sequence[int]) -> Iterator[tuple[list[int], list[Reply]]]:
        """Send the waiting requests, combining requests with the same prompt, and yield request indices and replies in order."""
        most = min(MOST_RESPONSES, self._status.max_responses or MOST_RESPONSES) if self.dialect.samples_groups else 1
        calls: list[list[int]] = []
        groups: dict[tuple[tuple[int, ...], Sampling], list[int]] = {}
        for index in waiting:
            groups.setdefault((requests[index].prompt_tokens, requests[index].sampling), []).append(index)
        for indices in groups.values():
            calls += [indices[start : start + most] for start in range(0, len(indices), most)]
        pool = ThreadPoolExecutor(MOST_CONNECTIONS, thread_name_prefix="rljax-engine")
        try:
            yield from zip(
                calls, pool.map(lambda indices: self._ask([requests[index] for index in indices]), calls), strict=True
            )
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, requests: Sequence[Request]) -> list[Reply]:
        replies = self.dialect.replies(self.http.post(self.dialect.path, self.dialect.body(self._status.model, requests)))
        if len(replies) != len(requests):
            raise InputError(
                f"the server {self.http.url} returned {counted(len(replies), 'response')} to "
                f"{counted(len(requests), 'request')}."
            )
        return replies

    def _is_current(self, replies: Sequence[Reply]) -> bool:
        """Return True if all responses were sampled with weights that this engine published and that the server still has.

        Raises:
            InputError: the server has newer weights, which another process must have published.
        """
        published = self._published
        if published is None:
            raise RuntimeError("responses were sampled before any weights were published")
        if not self.dialect.reports_version:
            return self.http.losses == published.losses
        changing, last = bool(self._steps), max(self._steps, default=published.version)
        found = {
            version for reply in replies for version in (reply.token_versions or [None] if changing else [reply.version])
        }
        newer = [version for version in found if version is not None and version > last]
        if newer:
            raise InputError(
                f"the server {self.http.url} has weights of version {max(newer)}, but this run published {last}: "
                "something else also publishes to it. Use one server per run."
            )
        return found <= self._steps.keys() if changing else found == {last}

    def _to_response(self, request: Request, reply: Reply) -> Response:
        """Check a reply, and convert it to a response."""
        if not all(type(token) is int for token in reply.tokens):
            raise InputError(
                f"the server {self.http.url} returned a token id that is not an integer: {reply.tokens!r:.200}."
            )
        for logp in (reply.behaviour_logp, reply.policy_logp):
            if not all(isinstance(value, int | float) and math.isfinite(value) for value in logp):
                raise InputError(
                    f"the server {self.http.url} returned a log-probability that is not a finite number: {logp!r:.200}."
                )
        tokens, behaviour = np.asarray(reply.tokens, np.int32), np.asarray(reply.behaviour_logp, np.float32)
        policy = np.asarray(reply.policy_logp, np.float32)
        if not tokens.size or not tokens.shape == behaviour.shape == policy.shape:
            raise InputError(
                f"the server {self.http.url} returned {tokens.size} tokens, {behaviour.size} log-probabilities of the sampler and "
                f"{policy.size} of the policy; there must be one of each per token, and at least one token."
            )
        if tokens.max() >= self._vocabulary or tokens.min() < 0:
            wrong = tokens.min() if tokens.min() < 0 else tokens.max()
            raise InputError(
                f"the server {self.http.url} returned the token id {wrong}, but the model has only {self._vocabulary} "
                "token ids: the server has another model."
            )
        if reply.finish not in ("stop", "length"):
            raise InputError(
                f"the server {self.http.url} ended a response with {reply.finish!r}, not with 'stop' or 'length'."
            )
        finish = "stop" if reply.finish == "stop" else "length"
        steps = (
            np.array([self._steps[version] for version in reply.token_versions or ()], np.int32) if self._steps else None
        )
        return request.respond(tokens, np.minimum(behaviour, 0), finish, policy_logp=np.minimum(policy, 0), version=steps)

    def _publish(self, params: Params) -> None:
        """Publish the parameters, unless the server already has them or `publish_in_flight` is used."""
        leaves, before = jax.tree.leaves(params), self._published
        if self._steps or (
            before is not None and all(old() is new for old, new in zip(before.leaves, leaves, strict=True))
        ):
            return
        self._send_weights(params, self.dialect.publish)

    def publish_in_flight(self, params: Params, step: int) -> None:
        """Publish parameters with which responses in progress continue; from now on, `generate` uses these and ignores `params`.

        Args:
            params: parameters of the policy.
            step: number of RL steps that the parameters have been trained for.
        """
        send = required(self.dialect.publish_in_flight, "dialect.publish_in_flight")
        with self._publishing:
            self._send_weights(params, send, step)

    def _send_weights(self, params: Params, send: Callable[[Http, str, int], None], step: int | None = None) -> None:
        """Write a model folder with the next version, and make the server load it."""
        leaves, before = jax.tree.leaves(params), self._published
        known = self._status.version if before is None else before.version
        version = (0 if known is None else known) + 1
        folder = self._weights_folder() / f"version-{version}"
        if is_first():
            shutil.rmtree(folder, ignore_errors=True)
        self._save(folder, params)
        losses = self.http.losses
        if step is not None:
            self._steps[version] = step  # responses may contain tokens of this version before the server's answer arrives
        run_on_first(lambda: send(self.http, str(folder), version))
        self._published = PublishedWeights(tuple(map(weakref.ref, leaves)), folder, version, losses)
        if before is not None and is_first():
            shutil.rmtree(before.folder, ignore_errors=True)

    def _republish(self) -> None:
        """Publish the last published parameters again, to a server that has lost them."""
        with self._publishing:
            published = required(self._published, "published weights")
            losses = self.http.losses
            self.dialect.publish(self.http, str(published.folder), published.version)
            self._published = published._replace(losses=losses)

    def _weights_folder(self) -> Path:
        """Return the folder to which weights are written; a temporary folder is removed together with the engine."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="rljax-weights-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder


def _broadcast_responses(requests: Sequence[Request], responses: Sequence[Response]) -> list[Response]:
    """Copy the first process's responses to all processes."""
    count, length = len(requests), max(request.sampling.max_tokens for request in requests)
    lengths, ended = np.zeros(count, np.int32), np.zeros(count, bool)
    tokens, logp = np.zeros((count, length), np.int32), np.zeros((2, count, length), np.float32)
    for index, response in enumerate(responses):
        size = len(response.tokens)
        lengths[index], ended[index], tokens[index, :size] = size, response.finish == "stop", response.tokens
        logp[:, index, :size] = response.behaviour_logp, response.policy_logp
    lengths, ended, tokens, logp = copy_from_first((lengths, ended, tokens, logp))
    return [
        request.respond(
            tokens[index, :size],
            logp[0, index, :size],
            "stop" if ended[index] else "length",
            policy_logp=logp[1, index, :size],
        )
        for index, (request, size) in enumerate(zip(requests, lengths.tolist(), strict=True))
    ]
