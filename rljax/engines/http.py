"""HTTP requests with JSON; temporary failures are retried for a limited time, so a run survives a server's restart."""

import random
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from rljax.errors import InputError, ServerLostError

TEMPORARY_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses after which the same request may succeed."""
MOST_WAIT_SECONDS = 5.0
"""Longest wait between two tries, in seconds."""


class Http:
    """A client of one server; several threads may use it.

    Args:
        url: address of the server, such as `http://127.0.0.1:8000`.
        key: API key; None if the server needs no key.
        patience: seconds for which a failing request is retried.
        connections: maximum number of connections at once.
    """

    def __init__(self, url: str, *, key: str | None, patience: float, connections: int) -> None:
        self.url, self.patience = url.rstrip("/"), patience
        self.tell: Callable[[str], None] = lambda text: None
        """Called with one sentence when the server stops answering, and with another when it answers again."""
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        timeout = httpx.Timeout(None, connect=10.0)  # no read timeout, because sampling may take long
        self._client = httpx.Client(base_url=self.url, headers=headers, limits=limits, timeout=timeout, trust_env=False)
        weakref.finalize(self, self._client.close)
        self._lock, self._is_lost = threading.Lock(), False
        self.losses = 0
        """How often the server stopped answering; each time it may have restarted and lost its weights."""

    def get(self, path: str) -> Any:
        """Return the JSON at a path; the errors are those of `post`."""
        return self._call("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send JSON and return the JSON of the answer.

        Raises:
            ServerLostError: the server did not answer in time.
            InputError: the server refused the request, or its answer is not JSON.
        """
        return self._call("POST", path, body)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        deadline, tries = time.monotonic() + self.patience, 0
        while True:
            try:
                answer = self._client.request(method, path, json=body)
            except httpx.TransportError as error:
                fault = f"{type(error).__name__}: {error}"
            else:
                if answer.status_code not in TEMPORARY_STATUSES:
                    self._report(is_lost=False)
                    return self._read(answer, path)
                fault = _describe_error(answer)
                if answer.status_code == 429:  # a full queue is not a failure, because it empties as responses finish
                    deadline = time.monotonic() + self.patience
            if time.monotonic() >= deadline:
                raise ServerLostError(
                    f"the server {self.url} did not answer {path} for {self.patience:g} seconds ({fault})."
                )
            if not fault.startswith("429"):
                self._report(is_lost=True, fault=fault)
            time.sleep(min(MOST_WAIT_SECONDS, 0.1 * 2**tries) * random.uniform(0.5, 1.0))
            tries += 1

    def _read(self, answer: httpx.Response, path: str) -> Any:
        if answer.is_error:
            raise InputError(f"the server {self.url} refused {path}: {_describe_error(answer)}")
        try:
            return answer.json()
        except ValueError as error:
            raise InputError(
                f"the server {self.url} answered {path} with something other than JSON: {answer.text[:80]!r}."
            ) from error

    def _report(self, *, is_lost: bool, fault: str = "") -> None:
        """Report a change: that the server stopped answering, or that it answers again."""
        with self._lock:
            if self._is_lost == is_lost:
                return
            self._is_lost = is_lost
            self.losses += is_lost
        lost = f"The server {self.url} does not answer ({fault}); trying again for {self.patience:g} seconds."
        self.tell(lost if is_lost else f"The server {self.url} answers again.")


def _describe_error(answer: httpx.Response) -> str:
    """Return an answer's status and message in one line."""
    try:
        error = answer.json()["error"]
        message = error["message"] if isinstance(error, dict) else error
    except (ValueError, KeyError, TypeError):
        message = answer.text
    return f"{answer.status_code} {' '.join(str(message).split())[:300]}"
