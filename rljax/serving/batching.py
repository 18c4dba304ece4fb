"""Continuous batching: one thread owns the devices, and assigns each freed row to the next waiting request."""

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from rljax.models import Params
from rljax.rollout.stop_strings import Decode, may_have_stopped, stop_end
from rljax.serving.decoding_rows import STEPS, RowDecoder, SampledTokens, prompt_batch_sizes


class ResponseSampling(NamedTuple):
    """How one response is sampled."""

    max_tokens: int
    """Maximum number of tokens in the response."""
    temperature: float
    """Sampling temperature; 0 selects the most likely token."""
    top_k: int | None
    """Sample only from the k most likely tokens."""
    top_p: float | None
    """Sample only from the smallest set of tokens whose total probability is at least this."""
    seed: int
    """Random seed, below 2^64."""
    stop: tuple[str, ...] = ()
    """Texts that end the response."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end the response, in addition to the model's own end tokens."""
    top: int = 0
    """Number of most likely tokens that are reported with each token."""


class Piece(NamedTuple):
    """New tokens of a response."""

    tokens: list[int]
    """Token ids."""
    logp: list[float]
    """Log-probabilities under softmax(logits / temperature), with temperature 1 if decoding is greedy."""
    behaviour_logp: list[float]
    """Log-probabilities under the exact sampling distribution."""
    top: list[list[tuple[int, float]]]
    """For each token, the most likely tokens at its position with their log-probabilities."""
    finish: Literal["stop", "length"] | None
    """Why the response has ended; None if it has not."""
    version: int
    """Version of the weights that sampled the tokens."""


class DecodingFailure(NamedTuple):
    """The message that a job receives instead of a piece if decoding has failed, so that its response will not be completed."""

    reason: str
    """What happened, in one line."""


@dataclass(eq=False)
class Job:
    """A response to generate.

    Args:
        prompt: token ids.
        sampling: how the response is sampled.
        deliver: a function that receives the pieces. The decoding thread calls it, so it must not block.
    """

    prompt: tuple[int, ...]
    sampling: ResponseSampling
    deliver: Callable[[Piece | DecodingFailure], None]
    tokens: list[int] = field(default_factory=list)
    is_cancelled: bool = False


class QueueFull(Exception):
    """The queue has no room for the responses of a request."""


class ServerClosed(Exception):
    """The server is shutting down, or its decoding thread has failed."""


class Load(NamedTuple):
    """How busy a server is."""

    running: int
    """Number of responses that have a row."""
    waiting: int
    """Number of responses that wait for a row."""
    version: int
    """Version of the weights."""


class NewWeights(NamedTuple):
    """Weights that will replace the current ones."""

    params: Params
    """The weights."""
    version: int
    """Version of the weights."""
    done: "Future[None]"
    """A future that is completed once the weights are in use."""
    in_flight: bool
    """Whether the weights may take effect while responses are running."""


class Batcher:
    """A scheduler that assigns the decoder's rows to jobs, in order of arrival.

    Args:
        decoder: the decoder of the rows; after `start`, only this object's thread may use it.
        text: a function that decodes token ids to text, to find stop strings.
        queue: maximum number of jobs that wait for a row.
        version: version of the decoder's weights.
    """

    def __init__(self, decoder: RowDecoder, text: Decode, *, queue: int, version: int):
        self.decoder, self.text, self.queue, self.version = decoder, text, queue, version
        self.jobs: list[Job | None] = [None] * decoder.count
        self.waiting: deque[Job] = deque()
        self.changes: deque[NewWeights] = deque()
        self.condition = threading.Condition()
        self.is_closing, self.fault = False, ""
        self.thread = threading.Thread(target=self._run, name="rljax-decoding", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue either all jobs or none of them.

        Raises:
            QueueFull: too many jobs are waiting.
            ServerClosed: no more jobs are accepted.
        """
        with self.condition:
            if self.is_closing or self.fault:
                raise ServerClosed(self.fault or "the server is shutting down")
            if len(self.waiting) + len(jobs) > self.queue:
                raise QueueFull
            self.waiting.extend(jobs)
            self.condition.notify()

    def cancel(self, jobs: Collection[Job]) -> None:
        """Cancel jobs whose results are no longer wanted; their rows become free after the current call of the decoding program."""
        with self.condition:
            for job in jobs:
                job.is_cancelled = True
            self.waiting = deque(job for job in self.waiting if not job.is_cancelled)

    def replace_weights(self, params: Params, version: int, *, in_flight: bool = False) -> "Future[None]":
        """Switch to new weights once the responses in progress have ended; jobs that are still waiting are sampled with them.

        Args:
            params: the weights, as `decode_weights` returns them.
            version: version of the weights.
            in_flight: switch after the current call of the decoding program instead, so responses in progress continue with the new
                weights. The cached keys and values of their earlier tokens still come from the old weights.
        """
        done: Future[None] = Future()
        with self.condition:
            if self.is_closing or self.fault:
                raise ServerClosed(self.fault or "the server is shutting down")
            self.changes.append(NewWeights(params, version, done, in_flight))
            self.condition.notify()
        return done

    def close(self, timeout: float) -> bool:
        """Accept no more jobs, complete the accepted jobs, and end the thread.

        Args:
            timeout: maximum wait in seconds.

        Returns:
            Whether all jobs were completed in time.
        """
        with self.condition:
            self.is_closing = True
            self.condition.notify()
        if self.thread.is_alive():
            self.thread.join(timeout)
        return not self.thread.is_alive()

    @property
    def load(self) -> Load:
        """How busy the server is."""
        with self.condition:
            return Load(sum(job is not None for job in self.jobs), len(self.waiting), self.version)

    def _run(self) -> None:
        try:
            while self._wait():
                self._begin()
                self._proceed()
        except Exception as error:  # the clients must be told about any failure
            traceback.print_exc(file=sys.stderr)
            self._fail(f"decoding has failed ({type(error).__name__})")

    def _fail(self, reason: str) -> None:
        with self.condition:
            self.fault = reason
            jobs = [job for job in [*self.jobs, *self.waiting] if job is not None]
            changes, self.changes = self.changes, deque()
            self.jobs, self.waiting = [None] * len(self.jobs), deque()
        for job in jobs:
            job.deliver(DecodingFailure(reason))
        for change in changes:
            if change.done.set_running_or_notify_cancel():
                change.done.set_exception(ServerClosed(reason))

    def _wait(self) -> bool:
        """Wait for work; then switch to new weights, if no response is running or the weights may change in flight.

        Returns:
            Whether there is more work.
        """
        with self.condition:
            while not (any(self.jobs) or self.waiting or self.changes):
                if self.is_closing:
                    return False
                self.condition.wait()
            while self.changes and (self.changes[0].in_flight or not any(self.jobs)):
                change = self.changes.popleft()
                if change.done.set_running_or_notify_cancel():  # False if the request was cancelled while it waited
                    self.decoder.params, self.version = change.params, change.version
                    change.done.set_result(None)
        return True

    def _take(self) -> list[tuple[int, Job]]:
        """Assign free rows to waiting jobs whose prompts can be read in one call."""
        with self.condition:
            taken: list[tuple[int, Job]] = []
            prompts: dict[tuple[int, ...], None] = {}
            while self.waiting and not self.changes:
                row = self.decoder.choose_row([*map(_total_tokens, self.jobs)], _total_tokens(self.waiting[0]))
                if row is None:
                    break
                prompts[self.waiting[0].prompt] = None
                length, _ = self.decoder.shape_for(list(prompts))
                if len(prompts) > max(1, prompt_batch_sizes(length, 1)[-1]):
                    break
                self.jobs[row] = job = self.waiting.popleft()
                taken.append((row, job))
        return taken

    def _begin(self) -> None:
        """Start waiting jobs in free rows."""
        while taken := self._take():
            prompts = {prompt: index for index, prompt in enumerate(dict.fromkeys(job.prompt for _, job in taken))}
            sampled = self.decoder.begin(
                list(prompts),
                {row: prompts[job.prompt] for row, job in taken},
                {row: _sampling_settings(job.sampling) for row, job in taken},
                np.array([job is None for job in self.jobs]),
                wants_top=any(job.sampling.top for _, job in taken),
            )
            for row, job in taken:
                self._deliver(row, job, _row_tokens(sampled, np.s_[:1, row], job.sampling.top))

    def _proceed(self) -> None:
        """Decode up to `STEPS` tokens in every row, and deliver them."""
        with self.condition:
            for row, job in enumerate(self.jobs):
                if job is not None and job.is_cancelled:
                    self.jobs[row] = None
            jobs = dict(enumerate(self.jobs))
        running = {row: job for row, job in jobs.items() if job is not None}
        if not running:
            return
        stopped = np.array([job is None for job in jobs.values()])
        sampled, count = self.decoder.proceed(stopped, wants_top=any(job.sampling.top for job in running.values()))
        for row, job in running.items():
            self._deliver(row, job, _row_tokens(sampled, np.s_[: count[row], row], job.sampling.top))

    def _deliver(
        self, row: int, job: Job, new: tuple[list[int], list[float], list[float], list[list[tuple[int, float]]]]
    ) -> None:
        """Deliver new tokens up to the end of the response, and free the row if it has ended."""
        before = len(job.tokens)
        job.tokens += new[0]
        end = self._find_end(job, before)
        finish = None if end is None else ("length" if end == -1 else "stop")
        if end is not None and end > 0:
            del job.tokens[end:]
        kept = max(0, len(job.tokens) - before)
        if finish is not None:
            with self.condition:
                self.jobs[row] = None
        tokens, logp, behaviour, top = new
        job.deliver(Piece(tokens[:kept], logp[:kept], behaviour[:kept], top[:kept], finish, self.version))

    def _find_end(self, job: Job, before: int) -> int | None:
        """Return a response's length if it has stopped, -1 if it has reached its token limit, and None if it continues."""
        tokens, ends = job.tokens, {*self.decoder.eos_ids, *job.sampling.stop_ids}
        found = next((index + 1 for index in range(before, len(tokens)) if tokens[index] in ends), None)
        if job.sampling.stop:
            array = np.asarray(tokens[:found], np.int32)
            is_over = found is not None or len(tokens) >= job.sampling.max_tokens
            if is_over or may_have_stopped(array, job.sampling.stop, self.text, new=STEPS + 1):
                by_text = stop_end(array, job.sampling.stop, self.text)
                found = found if by_text is None else by_text
        if found is not None:
            return found
        return -1 if len(tokens) >= job.sampling.max_tokens else None


def _total_tokens(job: Job | None) -> int:
    """Return the number of tokens in a job's prompt and its longest possible response together; 0 for no job."""
    return 0 if job is None else len(job.prompt) + job.sampling.max_tokens


def _sampling_settings(sampling: ResponseSampling) -> tuple[float, int | None, float | None, int, int]:
    """Return the sampling settings that the decoding program reads."""
    return sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed, sampling.max_tokens


def _row_tokens(
    sampled: SampledTokens, index: tuple[slice, int], top: int
) -> tuple[list[int], list[float], list[float], list[list[tuple[int, float]]]]:
    """Return one row's new tokens with their log-probabilities; `index` selects from arrays `[steps, rows]`."""
    tokens, logp, behaviour = (np.asarray(part)[index].tolist() for part in sampled[:3])
    if not top:
        return tokens, logp, behaviour, [[] for _ in tokens]
    ids, values = (np.asarray(part)[index][:, :top].tolist() for part in sampled[3:])
    return tokens, logp, behaviour, [list(zip(*pair, strict=True)) for pair in zip(ids, values, strict=True)]
