"""Metrics of a server, in the text format of Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rljax.serving.batching import Load

BUCKET_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Upper bounds of the histogram buckets, in seconds."""


class Metrics:
    """Counters, histograms and gauges of one server.

    Args:
        load: a function that returns how busy the server is; it is called whenever the metrics are read.
    """

    def __init__(self, load: Callable[[], Load]):
        self.registry = CollectorRegistry()
        own = {"registry": self.registry, "namespace": "rljax"}
        self.requests = Counter("requests", "Requests by path and status.", ["path", "status"], **own)
        self.prompt_tokens = Counter("prompt_tokens", "Prompt tokens.", **own)
        self.completion_tokens = Counter("completion_tokens", "Sampled tokens.", **own)
        self.cancelled = Counter("cancelled_requests", "Requests whose client disconnected before the end.", **own)
        self.unlogged = Counter("unlogged_answers", "Answers that could not be written to the log.", **own)
        self.first_token = Histogram("first_token_seconds", "Time to the first token.", buckets=BUCKET_BOUNDS, **own)
        self.duration = Histogram(
            "request_seconds", "Time to the end of a request's last response.", buckets=BUCKET_BOUNDS, **own
        )
        gauges = {
            "running": "Responses that are being sampled.",
            "waiting": "Responses that wait for a free row of the batch.",
            "version": "Version of the weights.",
        }
        for name, text in gauges.items():
            Gauge(name, text, **own).set_function(lambda name=name: float(getattr(load(), name)))

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)
