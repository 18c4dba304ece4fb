"""`rljax serve --drift T`: raise an alarm if served answers differ from held-out answers in length or log-probability."""

import math
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats
from jaxtyping import Float
from prometheus_client import CollectorRegistry, Counter, Gauge

from rljax.serving.extensions import Extension, SampledAnswer

WINDOW = 100
"""Number of served answers that are compared at once with the answers to held-out problems."""
ALPHA = 0.001
"""Probability of a false alarm per window."""
MIN_HELDOUT = 50
"""Minimum number of answers to held-out problems."""
MEASURES = ("length", "mean_logprob")
"""An answer's number of tokens, including its end token, and their mean log-probability in nats (its confidence)."""


class HeldoutAnswers(NamedTuple):
    """A model's answers to held-out problems, and how they were sampled."""

    values: Float[np.ndarray, "P 2"]
    """The `MEASURES` of each answer."""
    temperature: float
    """Sampling temperature."""
    stop: tuple[str, ...]
    """Texts that end an answer."""

    @property
    def longest(self) -> int:
        """Number of tokens of the longest answer."""
        return int(self.values[:, 0].max())


def welch_test(new: Float[np.ndarray, "N"], reference: Float[np.ndarray, "P"]) -> tuple[float, float]:
    """Test whether two samples have the same mean.

    ::

        t = (m₁ − m₂) / √(v₁ + v₂)    v = s² / n    df = (v₁ + v₂)² / (v₁² / (n₁ − 1) + v₂² / (n₂ − 1))

    Args:
        new: at least two values, with mean m₁ and unbiased variance s₁².
        reference: at least two values.

    Returns:
        t, and the two-sided p value; if both variances are 0, t is 0 or infinite.

    Example:
        >>> t, p = welch_test(np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0]))
        >>> round(t, 3), round(p, 3)
        (-3.674, 0.021)

    Source:
        Welch, The generalization of "Student's" problem when several different population variances are involved (1947).
    """
    difference = float(new.mean() - reference.mean())
    first, second = (float(values.var(ddof=1)) / len(values) for values in (new, reference))
    if np.ptp(new) == np.ptp(reference) == 0:  # the variance of equal values need not be exactly 0
        return (0.0, 1.0) if new[0] == reference[0] else (math.copysign(math.inf, difference), 0.0)
    freedom = (first + second) ** 2 / (first**2 / (len(new) - 1) + second**2 / (len(reference) - 1))
    t = difference / math.sqrt(first + second)
    return t, float(2 * scipy.stats.t.sf(abs(t), freedom))


class DriftMonitor(Extension):
    """An extension that compares each window of `WINDOW` answers with the held-out answers, and raises an alarm if they differ.

    A window differs if the p value of one of the two measures is below `ALPHA` / 2 (Bonferroni); the alarm is cleared by a window
    that does not differ. Windows contain only answers that were sampled like the held-out answers: at the same temperature, from
    the full vocabulary, with the same stop strings, and with a token limit of at least the longest held-out answer's length. If a
    prompt has several samples, only the first counts, because samples of one prompt are not independent.

    Args:
        heldout: the model's answers to held-out problems.
        say: a function that prints a warning.
    """

    def __init__(self, heldout: HeldoutAnswers, say: Callable[[str], None]):
        self.heldout, self.say = heldout, say
        self.window: list[tuple[float, float]] = []
        self.is_raised = False
        self.lock = threading.Lock()

    def register(self, registry: CollectorRegistry) -> None:
        """Add the metrics: the means, the test statistics and the alarm."""
        own = {"registry": registry, "namespace": "rljax"}
        self.mean = Gauge(
            "drift_mean", "Mean over the held-out answers and over the last window.", ["measure", "of"], **own
        )
        self.t = Gauge("drift_t", "Welch's t of the last window.", ["measure"], **own)
        self.alarm = Gauge("drift_alarm", "1 if the last window differs from the held-out answers, else 0.", **own)
        self.answers = Counter("drift_answers", "Answers that are compared.", **own)
        for measure, mean in zip(MEASURES, self.heldout.values.mean(0), strict=True):
            self.mean.labels(measure, "heldout").set(mean)

    def settle(self, answers: list[SampledAnswer]) -> list[SampledAnswer]:
        """Add comparable answers to the window, and return all answers unchanged."""
        with self.lock:
            for answer in filter(self.is_comparable, answers):
                self.answers.inc()
                self.window.append((len(answer.choice.tokens), float(np.mean(answer.choice.logp))))
                if len(self.window) == WINDOW:
                    self._compare(np.array(self.window, np.float64))
                    self.window.clear()
        return answers

    def is_comparable(self, answer: SampledAnswer) -> bool:
        """Return True if an answer was sampled like the held-out answers."""
        own, sampling = self.heldout, answer.sampling
        is_same = (sampling.temperature, sampling.stop) == (own.temperature, own.stop)
        is_full = sampling.top_k is None and sampling.top_p is None and not sampling.stop_ids
        return answer.sample == 0 and is_same and is_full and sampling.max_tokens >= own.longest

    def _compare(self, window: Float[np.ndarray, "N 2"]) -> None:
        """Compare a window with the held-out answers, and print a warning when the alarm is raised."""
        tests = [welch_test(new, old) for new, old in zip(window.T, self.heldout.values.T, strict=True)]
        for measure, mean, (t, _) in zip(MEASURES, window.mean(0), tests, strict=True):
            self.mean.labels(measure, "window").set(mean)
            self.t.labels(measure).set(t)
        differs = min(p for _, p in tests) < ALPHA / 2
        self.alarm.set(differs)
        if differs and not self.is_raised:
            self.say(describe_drift(window.mean(0), self.heldout.values.mean(0), [t for t, _ in tests]))
        self.is_raised = differs


def describe_drift(new: Sequence[float] | np.ndarray, heldout: Sequence[float] | np.ndarray, tests: Sequence[float]) -> str:
    """Describe in one line how the last window differs from the held-out answers.

    Example:
        >>> describe_drift([12, -0.5], [20, -0.2], [-6, -4])
        'warning: drift: mean of 100 answers: 12 tokens (held out 20, t = -6), log-probability -0.5 (held out -0.2, t = -4)'
    """
    (length, logprob), (old_length, old_logprob), (first, second) = new, heldout, tests
    return (
        f"warning: drift: mean of {WINDOW} answers: {length:.4g} tokens (held out {old_length:.4g}, t = {first:.3g}), "
        f"log-probability {logprob:.3g} (held out {old_logprob:.3g}, t = {second:.3g})"
    )
