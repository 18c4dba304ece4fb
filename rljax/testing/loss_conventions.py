"""The conventions in which implementations of GRPO and related algorithms differ, and the loss of each, as loops in float64."""

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import combinations, product
from math import exp, log, sqrt
from typing import Literal

import numpy as np

from rljax.testing.example import Example


@dataclass(frozen=True)
class Convention:
    """One way to compute a policy loss from group rewards; each field is a choice in which implementations differ."""

    center: Literal["mean", "leave_one_out"] = "mean"
    """The baseline, which is subtracted from a reward: the mean of the group, or the mean of the group's other responses."""
    ddof: Literal[0, 1] | None = 1
    """Delta degrees of freedom of the standard deviation; None if advantages are not divided by a standard deviation."""
    eps: float = 1e-6
    """Number added to the standard deviation."""
    deviation: Literal["group", "batch"] = "group"
    """The rewards whose standard deviation is used: the group's rewards, or all rewards of the batch."""
    kept: Literal["all", "mixed"] = "all"
    """The groups that are trained on: all, or those whose rewards differ."""
    mean: Literal["batch", "prompt", "sequence", "sequence_sum", "constant"] = "sequence"
    """How tokens are averaged: over all tokens; over each prompt's tokens, then over prompts; over each response's tokens, then
    over responses; summed over each response, then averaged over responses; or the same, with each sum divided by `max_length`."""
    ratio: Literal["token", "sequence", "response"] = "token"
    """The probability ratio: each token's own; the geometric mean of the ratios in a response, as in GSPO; or their product."""
    surrogate: Literal["clipped", "cispo", "reinforce"] = "clipped"
    """The objective of a token: the clipped ratio times the advantage; log-probability times advantage, weighted by the clipped
    ratio without its gradient; or log-probability times advantage. For the last two, only the gradients are compared."""
    clip: Literal["ratio", "log_ratio", "none"] = "ratio"
    """What is clipped: the ratio to [1 - low, 1 + high], or the log-ratio to [-low, high]."""
    low: float = 0.2
    """How far the ratio may fall."""
    high: float = 0.2
    """How far the ratio may rise."""
    dual_clip: float | None = None
    """Upper bound of the ratio if the advantage is negative; None if there is no bound."""
    kl: Literal["none", "k1", "k2", "k3", "k3+"] = "none"
    """Estimator of the divergence from the reference policy; `k3+` has the value of k3 and the gradient of k2."""
    beta: float = 0.04
    """Weight of the KL estimate."""
    kl_cap: float | None = None
    """Largest absolute KL estimate of a token: the estimate is clamped to [-kl_cap, kl_cap] (verl and OpenRLHF use 10); None if it
    is not clamped. A clamped token gets no gradient from the KL estimate, except with `k3+`."""
    kl_place: Literal["loss", "reward"] = "loss"
    """Whether the KL estimate is a term of the loss, or its sum over a response's tokens is subtracted from the reward."""
    cache: int = 0
    """Number of tokens before `max_length` over which the overlong punishment grows to -1; 0 if there is no punishment."""
    max_length: int = 3
    """Maximum length of a response, which the overlong punishment and the constant mean use."""

    def in_words(self) -> str:
        """Describe the convention in a sentence."""
        advantage = {"mean": "reward minus the group's mean", "leave_one_out": "reward minus the mean of the others"}[
            self.center
        ]
        if self.ddof is not None:
            advantage += f", divided by the {self.deviation}'s standard deviation (ddof {self.ddof}, eps {self.eps:g})"
        tokens = {
            "batch": "mean over the tokens of the batch",
            "prompt": "mean over the tokens of a prompt, then over prompts",
            "sequence": "mean over the tokens of a sequence, then over sequences",
            "sequence_sum": "sum over the tokens of a sequence, then mean over sequences",
            "constant": f"sum over the tokens of a sequence, divided by {self.max_length}, then mean over sequences",
        }[self.mean]
        bounds = {
            "ratio": f"ratio within [{1 - self.low:g}, {1 + self.high:g}]",
            "log_ratio": f"log-ratio within [{-self.low:g}, {self.high:g}]",
            "none": "no clip",
        }[self.clip]
        parts = [advantage, tokens, "REINFORCE" if self.surrogate == "reinforce" else f"{self.ratio} {bounds}"]
        parts += ["the ratio is a weight without gradient"] * (self.surrogate == "cispo")
        parts += [] if self.dual_clip is None else [f"dual clip at {self.dual_clip:g}"]
        cap = "" if self.kl_cap is None else f" clamped to [{-self.kl_cap:g}, {self.kl_cap:g}]"
        parts.append("no KL" if self.kl == "none" else f"{self.kl}{cap} in the {self.kl_place}, beta {self.beta:g}")
        parts += ["groups with equal rewards dropped"] * (self.kept == "mixed")
        parts += [f"overlong punishment over the last {self.cache} of {self.max_length} tokens"] * bool(self.cache)
        return "; ".join(parts)


LIKE = {
    "grpo": Convention(kl="k3"),
    "dapo": Convention(kept="mixed", mean="batch", high=0.28),
    "dr_grpo": Convention(ddof=None, mean="constant"),
    "gspo": Convention(ratio="sequence", low=3e-4, high=4e-4),
    "cispo": Convention(surrogate="cispo", mean="batch", low=1.0, high=0.28),
    "lite_ppo": Convention(deviation="batch", mean="batch"),
    "rloo": Convention(center="leave_one_out", ddof=None, surrogate="reinforce", clip="none", mean="sequence_sum"),
}
"""Name of an algorithm -> the convention of its paper. If the paper leaves a field undetermined, the value is our choice."""
SLOTS = {
    "advantage": ("center", "ddof", "eps", "deviation"),
    "groups": ("kept",),
    "weights": ("mean",),
    "ratio": ("ratio", "surrogate"),
    "clip": ("clip", "low", "high", "dual_clip"),
    "KL": ("kl", "beta", "kl_place", "kl_cap"),
    "overlong": ("cache", "max_length"),
}
"""Slot of an algorithm -> the fields of `Convention` that determine it."""
ALTERNATIVES = {
    "center": ("mean", "leave_one_out"),
    "ddof": (0, 1, None),
    "eps": (0.0, 1e-9, 1e-8, 1e-6, 1e-5, 1e-4),
    "deviation": ("group", "batch"),
    "kept": ("all", "mixed"),
    "mean": ("batch", "prompt", "sequence", "sequence_sum", "constant"),
    "ratio": ("token", "sequence", "response"),
    "surrogate": ("clipped", "cispo", "reinforce"),
    "clip": ("ratio", "log_ratio", "none"),
    "low": (0.2, 3e-4, 1.0),
    "high": (0.2, 0.28, 4e-4),
    "dual_clip": (None, 3.0),
    "kl": ("none", "k1", "k2", "k3", "k3+"),
    "kl_place": ("loss", "reward"),
    "kl_cap": (None, 10.0),
}
"""Field -> the values that existing implementations use."""
NUMERIC_FIELDS = ("eps", "low", "high", "dual_clip", "kl_cap")
"""Fields that may also have values outside `ALTERNATIVES`."""
MAX_CHANGES = 3
"""The search tries conventions that differ from a paper's in at most this many fields."""


def _canonical(convention: Convention) -> Convention:
    """Set every field that has no effect in this convention to its default, so that equivalent conventions compare equal."""
    unused: dict[str, object] = {}
    default = Convention()
    if convention.ddof is None:
        unused |= {"eps": default.eps, "deviation": default.deviation}
    if convention.surrogate == "reinforce":
        unused |= {"clip": "none", "ratio": default.ratio}
    if convention.surrogate != "clipped":
        unused["dual_clip"] = None
    if convention.clip == "none" or convention.surrogate == "reinforce":
        unused |= {"low": default.low, "high": default.high}
    if convention.kl == "none":
        unused |= {"beta": default.beta, "kl_place": default.kl_place, "kl_cap": default.kl_cap}
    return replace(convention, **unused)  # pyright: ignore[reportArgumentType]


@lru_cache(maxsize=16)
def neighbors(base: Convention, changes: int = MAX_CHANGES) -> tuple[Convention, ...]:
    """Return the conventions that differ from a base in at most `changes` fields, in order of the number of changes."""
    found = {_canonical(base): base}
    for count in range(1, changes + 1):
        for names in combinations(ALTERNATIVES, count):
            values = [[value for value in ALTERNATIVES[name] if value != getattr(base, name)] for name in names]
            for chosen in product(*values):
                convention = replace(base, **dict(zip(names, chosen, strict=True)))
                found.setdefault(_canonical(convention), convention)
    return tuple(found.values())


def difference(one: Convention, base: Convention) -> dict[str, object]:
    """Return the fields in which a convention differs from a base, with the convention's values."""
    names = [field.name for field in fields(one)]
    return {name: getattr(one, name) for name in names if getattr(one, name) != getattr(base, name)}


def _kl(convention: Convention, log_ratio: float) -> tuple[float, float]:
    """Return an estimate of KL(π, reference) from log π - log reference, and its derivative with respect to log π."""
    kind, cap = convention.kl, convention.kl_cap
    if kind == "k1":
        value, slope = log_ratio, 1.0
    elif kind == "k2":
        value, slope = log_ratio**2 / 2, log_ratio
    else:
        value = exp(-log_ratio) - 1 + log_ratio
        slope = log_ratio if kind == "k3+" else 1 - exp(-log_ratio)
    if cap is None or abs(value) <= cap:
        return value, slope
    return (cap if value > 0 else -cap), (slope if kind == "k3+" else 0.0)


def _advantages(example: Example, convention: Convention) -> np.ndarray:
    advantage = np.zeros((example.prompts, example.group))
    all_rewards = [[_reward(example, convention, p, i) for i in range(example.group)] for p in range(example.prompts)]
    for p, rewards in enumerate(all_rewards):
        mean, size = sum(rewards) / len(rewards), len(rewards)
        for i, reward in enumerate(rewards):
            baseline = mean if convention.center == "mean" else (size * mean - reward) / (size - 1)
            advantage[p, i] = reward - baseline
        if max(rewards) == min(rewards):
            advantage[p] = 0.0
        elif convention.ddof is not None:
            pooled = rewards if convention.deviation == "group" else [reward for group in all_rewards for reward in group]
            advantage[p] /= _deviation(pooled, convention.ddof) + convention.eps
    return advantage


def _deviation(rewards: list[float], ddof: int) -> float:
    mean = sum(rewards) / len(rewards)
    return sqrt(sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - ddof))


def _reward(example: Example, convention: Convention, p: int, i: int) -> float:
    reward, length, longest = float(example.rewards[p, i]), int(example.lengths[p, i]), convention.max_length
    if convention.cache and length > longest - convention.cache:
        reward += max(-1.0, (longest - convention.cache - length) / convention.cache)
    if convention.kl != "none" and convention.kl_place == "reward":
        reference_log_ratio = example.old_logp[p, i] - example.ref_logp[p, i]
        reward -= convention.beta * sum(_kl(convention, float(reference_log_ratio[t]))[0] for t in range(length))
    return reward


def _weights(example: Example, convention: Convention) -> np.ndarray:
    """Return the weight of each token in a response, for every response."""
    rows = example.rows if convention.kept == "all" else example.mixed
    lengths, weights = example.lengths, np.zeros((example.prompts, example.group))
    total, prompts = sum(int(lengths[row]) for row in rows), {p for p, _ in rows}
    for p, i in rows:
        if convention.mean == "batch":
            weights[p, i] = 1 / max(total, 1)
        elif convention.mean == "prompt":
            weights[p, i] = 1 / max(sum(int(lengths[row]) for row in rows if row[0] == p), 1) / len(prompts)
        elif convention.mean == "sequence":
            weights[p, i] = 1 / max(int(lengths[p, i]), 1) / len(rows)
        elif convention.mean == "sequence_sum":
            weights[p, i] = 1 / len(rows)
        else:
            weights[p, i] = 1 / convention.max_length / len(rows)
    return weights


def _bounds(convention: Convention) -> tuple[float, float]:
    """Return the bounds that the log-ratio is clipped to."""
    if convention.clip == "none":
        return -np.inf, np.inf
    if convention.clip == "log_ratio":
        return -convention.low, convention.high
    return log(1 - convention.low) if convention.low < 1 else -np.inf, log(1 + convention.high)


def _surrogate(convention: Convention, log_ratio: float, advantage: float) -> tuple[float, float]:
    """Return the surrogate (0 if only gradients are compared), and its derivative with respect to the log-probability."""
    if convention.surrogate == "reinforce":
        return 0.0, advantage
    low, high = _bounds(convention)
    if convention.surrogate == "cispo":
        return 0.0, exp(min(max(log_ratio, low), high)) * advantage
    if advantage < 0 and convention.dual_clip is not None:
        high = log(convention.dual_clip)
    clamped = max(log_ratio, low) if advantage < 0 else log_ratio
    clamped = min(clamped, high) if advantage > 0 or convention.dual_clip is not None else clamped
    return exp(clamped) * advantage, exp(clamped) * advantage if clamped == log_ratio else 0.0


def loss_and_gradient(example: Example, convention: Convention) -> tuple[float, np.ndarray]:
    """Return the loss, to be minimized, and its gradient with respect to `logp`. The rollout must be `Example.compact`."""
    advantage, weights = _advantages(example, convention), _weights(example, convention)
    total, gradient = 0.0, np.zeros(example.mask.shape)
    for p, i in example.rows:
        length = int(example.lengths[p, i])
        log_ratios = example.logp[p, i, :length] - example.old_logp[p, i, :length]
        shared = float(log_ratios.sum()) / (length if convention.ratio == "sequence" else 1)
        for t in range(length):
            log_ratio = float(log_ratios[t]) if convention.ratio == "token" else shared
            value, slope = _surrogate(convention, log_ratio, advantage[p, i])
            slope *= length if convention.ratio == "response" else 1
            if convention.kl != "none" and convention.kl_place == "loss":
                penalty, its_slope = _kl(convention, float(example.logp[p, i, t] - example.ref_logp[p, i, t]))
                value, slope = value - convention.beta * penalty, slope - convention.beta * its_slope
            total -= weights[p, i] * value
            gradient[p, i, t] = -weights[p, i] * slope
    return total, gradient
